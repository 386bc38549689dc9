package sandbox

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"coppice.dev/coppice/tree"
	"coppice.dev/coppice/wire"
)

const (
	// lastWord is how long the pipes of a dead worker, with nothing in them, may stay without an end.
	lastWord = 100 * time.Millisecond
	// lastBreath is how long a wire that was cut short waits for the worker's exit, to tell a crash from a worker that closed
	// its end. On a busy host an exit has been seen a quarter of a second behind the wire's end.
	lastBreath = time.Second
	// farewell is how long an idle worker that has been asked to end may take.
	farewell = 250 * time.Millisecond
)

// session is one worker's life, from its start to the proof that it is gone. Pool.Close and Pool.Members use it from any
// goroutine, its watchers stop it from theirs, everything else belongs to whoever has its seat.
type session struct {
	spec    *Spec
	worker  child
	x       exchange
	rest    rest
	clear   *clearing // the pool's
	began   time.Time
	served  bool                      // it has got a message
	closing atomic.Bool               // the pool is being closed
	acts    sync.WaitGroup            // what goes on beside the dispatches
	gone    atomic.Pointer[time.Time] // when the worker's own end was seen
	ending  chan struct{}             // closed when nobody will read from it any more

	mu    sync.Mutex
	until time.Time   // the end of the wire, once it is known
	over  *LimitError // what ended it, if a limit did
}

// newSession starts a worker's process. Its code is not loaded yet.
func newSession(ctx context.Context, spec *Spec, start starter, clear *clearing) (*session, error) {
	s := &session{spec: spec, clear: clear, began: time.Now(), ending: make(chan struct{}), x: exchange{caps: wire.DefaultCaps()}}
	s.x.record.note(Step{What: StepStart})
	worker, err := start(ctx, spec, s.exceed)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.worker = worker
	over := s.over
	s.mu.Unlock()
	if over != nil {
		s.stop("limit")
	}
	s.x.pipe = worker
	s.acts.Go(func() {
		<-worker.Exited()
		now := time.Now()
		s.gone.Store(&now)
		s.drain()
	})
	return s, nil
}

// drain ends the wire of a worker that has ended. Its tree is being cut, so that what lies in the pipe is all that will ever
// come, and the pipe's end follows; but somebody who has escaped the cut may hold it open. So the wire is ended once nothing has
// been left in it for a moment, however long it takes a busy engine to read what there is.
func (s *session) drain() {
	t := time.NewTimer(lastWord)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-s.ending:
			return
		}
		if s.worker.Pending() != tree.Bytes {
			s.limit(time.Now())
			return
		}
		t.Reset(lastWord)
	}
}

// clearing counts the scratch folders of a pool that are being removed.
type clearing struct {
	sync.WaitGroup
	left atomic.Int64
}

// tidy removes the scratch folder, beside whatever comes next: a worker can make one that takes long.
func (s *session) tidy() {
	s.clear.left.Add(1)
	s.clear.Go(func() {
		defer s.clear.left.Add(-1)
		if err := s.worker.clear(); err != nil && s.spec.Observer.Litter != nil {
			s.spec.Observer.Litter(s.spec.Name, s.worker.folder(), err)
		}
	})
}

// limit sets the end of the wire, after which no read or write of it blocks. It is never put off: whoever sets one knows
// that this worker serves no further dispatch.
func (s *session) limit(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.until.IsZero() || t.Before(s.until) {
		s.until = t
		s.worker.SetDeadline(t)
	}
}

// stop ends the wire at once and begins to cut the tree. The cut looks at the tree first, and nobody waits for that.
func (s *session) stop(cause string) {
	s.limit(time.Unix(1, 0))
	s.acts.Go(func() { s.worker.Cut(cause) })
}

// exceed stops a worker that has gone over a limit. The first call counts. It does not block.
func (s *session) exceed(e *LimitError) {
	s.mu.Lock()
	first, started := s.over == nil, s.worker != nil
	if first {
		s.over = e
	}
	s.mu.Unlock()
	if first && started {
		s.stop("limit")
	}
}

// exceeded is the limit that the worker has gone over, or nil.
func (s *session) exceeded() *LimitError {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// usable says whether another dispatch may be tried: the worker's command has not ended, and no end of the wire is set.
func (s *session) usable() bool {
	select {
	case <-s.worker.Exited():
		return false
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.until.IsZero()
}

// why is the reason for which an unusable worker is to be retired: none if it has ended by itself.
func (s *session) why() error {
	if over := s.exceeded(); over != nil {
		return over
	}
	return nil
}

// boot has the worker load its code.
func (s *session) boot(ctx context.Context) error {
	var ready *wire.Ready
	err := s.bounded(ctx, func() (err error) {
		ready, err = s.x.boot(s.spec.boot())
		return err
	})
	if err != nil {
		return err
	}
	for _, want := range s.spec.Offers {
		if !slices.Contains(ready.Offers, want) {
			return &HandlerError{wire.Fault{Type: "offer", Text: "the worker does not offer " + string(want.Phase) + " " + want.Name}}
		}
	}
	s.rest.looked = time.Now()
	if f := s.spec.Observer.Started; f != nil {
		f(Started{Session: s.spec.Name, Level: s.worker.Level(), Facts: s.worker.Facts(), Took: time.Since(s.began)})
	}
	return nil
}

// timed makes one dispatch, within the time that an attempt has.
func (s *session) timed(ctx context.Context, r *Request) (Result, error) {
	if most := r.timeout(s.spec); most > 0 {
		bounded, cancel := context.WithTimeout(ctx, most)
		defer cancel()
		ctx = bounded
	}
	work := s.dispatch
	if s.spec.Exec {
		work = s.exec
	}
	result, err := work(ctx, r)
	result.Printed = s.worker.printed()
	return result, err
}

// dispatch makes one dispatch. An error that kept does not accept means that this life is over.
func (s *session) dispatch(ctx context.Context, r *Request) (Result, error) {
	if s.rest.open {
		if err := s.rest.look(s.worker, &s.spec.Limits); err != nil {
			return Result{}, &dirtyError{err}
		}
	}
	s.served = true
	began := time.Now()
	deadline, _ := ctx.Deadline()
	if most := s.spec.Limits.CPU; most > 0 {
		defer watchCPU(s.worker, most, s.exceed).stop()
	}
	var answer *wire.Result
	err := s.bounded(ctx, func() (err error) {
		answer, err = s.x.dispatch(r.wire(deadline.Sub(began)), func() (tree.Pending, error) {
			return s.worker.begin(r.Message), s.why() // what it printed before may have been too much
		})
		return err
	})
	if err != nil {
		return Result{}, err
	}
	return resultOf(answer, time.Since(began))
}

// bounded runs a piece of the protocol under ctx, and judges what went wrong. The end of ctx, or of the worker, ends the
// reads and writes of the piece. An answer that was complete by then stands.
func (s *session) bounded(ctx context.Context, piece func() error) error {
	began := time.Now()
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		why := "cancel"
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			why = "deadline"
		}
		s.stop(why)
	})
	err := piece()
	if !stop() {
		<-interrupted
	}
	if kept(err) {
		return err
	}
	dirty, before := errors.AsType[*dirtyError](err)
	if before {
		err = dirty.cause
	}
	var j judgement
	if cutShort(err) {
		j.dead, j.status = s.lastBreath(ctx)
	}
	j.took, j.closed, j.over = time.Since(began), s.closing.Load(), s.exceeded()
	if before && !j.closed {
		dirty.cause = judge(err, j)
		return dirty
	}
	if ctx.Err() != nil {
		j.expired, j.late = context.Cause(ctx), errors.Is(ctx.Err(), context.DeadlineExceeded)
	}
	return judge(err, j)
}

// lastBreath waits a moment for the worker's exit.
func (s *session) lastBreath(ctx context.Context) (bool, tree.Status) {
	t := time.NewTimer(lastBreath)
	defer t.Stop()
	select {
	case <-s.worker.Exited():
		return true, s.worker.Status()
	case <-t.C:
	case <-ctx.Done():
	}
	return false, tree.Status{}
}

// bye asks an idle worker to end, and cuts it if it does not.
func (s *session) bye(ctx context.Context, cause string) {
	s.worker.CloseWrite()
	t := time.NewTimer(farewell)
	defer t.Stop()
	select {
	case <-s.worker.Exited():
		return
	case <-t.C:
	case <-ctx.Done():
	}
	s.worker.Cut(cause)
}

// close begins the end on behalf of Pool.Close: an idle worker is asked first.
func (s *session) close(ctx context.Context, idle bool) {
	s.closing.Store(true)
	if idle {
		s.bye(ctx, "close")
	} else {
		s.worker.Cut("close")
	}
}
