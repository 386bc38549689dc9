package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// replacements is how many workers one attempt tries, of which each died or misbehaved before its request.
const replacements = 3

// refill is how long a message that has taken a standby is left alone: the start of the next standby, beside it, can take many
// times as long as most messages do.
const refill = 10 * time.Millisecond

// seat is a place for one worker at a time: the next one does not begin before the one before is proved gone.
type seat struct {
	pool  *Pool
	held  chan struct{} // by whoever has the seat: a dispatch, a look, or Close
	since time.Time     // when its worker began to rest
	timer *time.Timer   // when its resting worker is looked at next
	short bool          // it has got a worker since it was taken, so that a standby may be missing
	told  []string      // what the environment of a program tells of the message; Spec.Exec alone

	session *session // the worker that is alive, or is being started; changed under the pool's lock
	cutting *ending  // the end of the worker before; nil if it is over or there was none
}

func newSeat(p *Pool) *seat {
	s := &seat{pool: p, held: make(chan struct{}, 1)}
	s.timer = time.AfterFunc(idleLooks, s.tend)
	s.timer.Stop()
	return s
}

// hold takes the seat, if nobody has it.
func (s *seat) hold() bool {
	select {
	case s.held <- struct{}{}:
		return true
	default:
		return false
	}
}

func (s *seat) letGo() { <-s.held }

// sit puts a worker on the seat, or takes it away.
func (s *seat) sit(l *session) (closed bool) {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	s.session = l
	return s.pool.closed
}

// dispatch makes one attempt.
func (s *seat) dispatch(ctx context.Context, r *Request) (Result, error) {
	if s.pool.spec.Exec {
		s.told = execEnv(r, s.pool.spec.Settings)
	}
	var last error
	for range replacements {
		l, err := s.worker(ctx)
		if err != nil {
			return Result{}, err
		}
		if ctx.Err() != nil {
			return Result{}, context.Cause(ctx)
		}
		result, err := l.timed(ctx, r)
		if kept(err) {
			s.pool.breaker.healed()
			return result, err
		}
		dirty, before := errors.AsType[*dirtyError](err)
		if !before {
			s.retire(l, err, r.Message)
			return result, err
		}
		s.retire(l, dirty.why(), 0)
		last = dirty.cause
	}
	err := &BootError{Name: s.pool.spec.Name, Err: fmt.Errorf("%d workers in a row did not last until their first request: %w",
		replacements, last)}
	s.pool.breaker.failed(err)
	return Result{}, err
}

// worker returns the living worker, or a new one once the one before is proved gone. The caller has the seat.
func (s *seat) worker(ctx context.Context) (*session, error) {
	if l := s.session; l != nil {
		if l.usable() {
			return l, nil
		}
		s.retire(l, l.why(), 0)
	}
	until, cancel := s.pool.untilClosed(ctx)
	defer cancel()
	err := s.proved(until)
	if err == nil {
		var l *session
		if l, err = s.next(until); err == nil {
			s.short = true
			time.AfterFunc(refill, s.pool.standby.fill)
			return l, nil
		}
	}
	switch {
	case errors.Is(context.Cause(until), ErrClosed), errors.Is(err, ErrClosed):
		return nil, ErrClosed
	case errors.Is(ctx.Err(), context.Canceled):
		return nil, context.Cause(ctx)
	}
	var boot *BootError
	if errors.As(err, &boot) && s.cutting != nil {
		// What it printed last is whole once it is gone.
		s.cutting.await(until)
		whole := *boot
		whole.Output = s.cutting.session.worker.tail()
		s.pool.breaker.complete(boot, &whole)
		return nil, &whole
	}
	return nil, err
}

// proved waits until the worker before is proved gone.
func (s *seat) proved(ctx context.Context) error {
	if s.cutting == nil {
		return nil
	}
	s.cutting = s.cutting.again()
	if err := s.cutting.await(ctx); err != nil {
		return &LeftoverError{err}
	}
	s.cutting = nil
	return nil
}

// next takes a standby, or starts a worker. Errors are *BootError, or ErrClosed.
func (s *seat) next(ctx context.Context) (*session, error) {
	if l := s.pool.standby.get(); l != nil {
		s.sit(l)
		return l, nil
	}
	l, err := s.pool.grow(ctx, s.told, s.sit)
	if err != nil && l != nil {
		s.retire(l, boots(err), 0)
	}
	if err != nil {
		return nil, err
	}
	return l, nil
}

// boots is the error in a *BootError, for which the worker is cut.
func boots(err error) error {
	var boot *BootError
	if errors.As(err, &boot) {
		return boot.Err
	}
	return err
}

// retire begins the end of a worker: it is killed, and the next worker waits for the proof.
func (s *seat) retire(l *session, why error, message int64) {
	if s.session == l {
		s.sit(nil)
	}
	s.cutting = l.end(why, message)
}

// rests is called by who has the seat, before it is given back.
func (s *seat) rests() {
	l := s.session
	if l == nil {
		return
	}
	s.since = time.Now()
	switch err := l.rest.begins(l.worker, &l.spec.Limits); {
	case l.spec.Exec:
		s.retire(l, errSpent, 0)
	case !l.usable():
		s.retire(l, l.why(), 0)
	case err != nil:
		s.retire(l, err, 0)
	case l.spec.Fresh && l.served:
		s.retire(l, errSpent, 0)
	default:
		s.wake()
	}
}

// wake sets when to look at the resting worker next.
func (s *seat) wake() {
	limits, wait := &s.pool.spec.Limits, time.Duration(0)
	if limits.IdleCPU > 0 || limits.Memory > 0 {
		wait = s.session.rest.wait
	}
	if limits.Idle > 0 {
		left := max(limits.Idle-time.Since(s.since), 0)
		if wait == 0 || left < wait {
			wait = left
		}
	}
	if limits.Idle > 0 || wait > 0 {
		s.timer.Reset(wait)
	}
}

// tend looks at a resting worker; later, if somebody has the seat just now.
func (s *seat) tend() {
	if !s.pool.takeThis(s) {
		s.pool.mu.Lock()
		defer s.pool.mu.Unlock()
		if !s.pool.closed {
			s.timer.Reset(idleLook)
		}
		return
	}
	defer s.pool.give(s)
	l := s.session
	if l == nil {
		return
	}
	if !l.usable() {
		s.retire(l, l.why(), 0)
		return
	}
	if idle := l.spec.Limits.Idle; idle > 0 && time.Since(s.since) >= idle {
		l.bye(context.Background(), "idle")
		s.retire(l, errIdle, 0)
		return
	}
	if err := l.rest.look(l.worker, &l.spec.Limits); err != nil {
		s.retire(l, err, 0)
		return
	}
	s.pool.breaker.healed()
	s.wake()
}

// close ends the seat's worker, and waits until it is proved gone.
func (s *seat) close(ctx context.Context) error {
	idle := s.hold()
	s.pool.mu.Lock()
	l := s.session
	s.pool.mu.Unlock()
	if l != nil {
		l.close(ctx, idle)
	}
	if !idle {
		// The dispatch sees its worker die, and gives the seat back.
		select {
		case s.held <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	defer s.letGo()
	s.timer.Stop()
	if s.session != nil {
		s.retire(s.session, ErrClosed, 0)
	}
	if s.cutting == nil {
		return nil
	}
	s.cutting = s.cutting.again()
	return s.cutting.await(ctx)
}
