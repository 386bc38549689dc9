package sandbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"coppice.dev/coppice/tree"
	"coppice.dev/coppice/wire"
)

// Request asks for one function's work on one message. Phase, Name and Message must be there.
type Request struct {
	Phase     wire.Phase
	Name      string // UTF-8
	Message   int64  // the engine's id of the message, from 1
	Inbound   string
	Type      string
	ControlID string
	Received  time.Time
	Attempt   int           // the first one's number, from 1; 0 says 1
	Timeout   time.Duration // of each attempt; 0 leaves it to the Spec's
	Body      []byte
}

func (r *Request) check() error {
	switch {
	case r.Message < 1:
		return fmt.Errorf("no message has the id %d", r.Message)
	case r.Timeout < 0:
		return fmt.Errorf("a timeout of %v", r.Timeout)
	}
	return checkFunction(r.Phase, r.Name)
}

// timeout is what an attempt has, besides the dispatch's deadline; 0 if there is no such.
func (r *Request) timeout(spec *Spec) time.Duration { return cmp.Or(r.Timeout, spec.Timeout) }

// wire is the request as it goes to the worker, under an id of its own.
func (r *Request) wire(timeout time.Duration) *wire.Request {
	return &wire.Request{
		Binding: wire.Binding{ID: newID(), Phase: r.Phase, Name: r.Name},
		Message: r.Message, Inbound: r.Inbound, MsgType: r.Type, Control: r.ControlID,
		Received: r.Received.UTC().Format(time.RFC3339Nano), Attempt: min(max(r.Attempt, 1), math.MaxInt32),
		Timeout: max(timeout.Milliseconds(), 0), Body: r.Body,
	}
}

// newID returns 128 fresh random bits, as the wire writes them.
func newID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the program first
	return hex.EncodeToString(b[:])
}

// Result is a function's answer. A router's has Handlers; a handler's has Sends, or is Dropped for a reason.
type Result struct {
	Handlers []string
	Sends    []wire.Send
	Dropped  bool
	Drop     string
	Tags     map[string]string
	Took     time.Duration // from the request's first byte to the answer's last
	Printed  []Printed     // what the worker printed meanwhile, of the last attempt
}

// Pool runs functions in worker processes of one spec. It starts a worker when one is first needed, keeps it for the next
// dispatch, and replaces it when it has died or has been cut. Its methods may be called from any goroutine; Spec.Workers
// dispatches are made at once, the others wait. One who has made a pool must close it.
type Pool struct {
	spec  Spec
	start starter
	done  chan struct{} // closed by Close

	turn  chan struct{} // one for each seat that is taken
	seats []*seat

	mu     sync.Mutex
	free   []*seat // those that are not taken; the one to take next is the last
	closed bool

	standby standbys
	breaker breaker
	off     *office // in the place of all of these, if the functions are called in this process

	// clear are the scratch folders that are being removed. The next worker does not wait for them; Close does.
	clear clearing
}

// New returns a pool. It starts nothing: the first dispatch does, or Boot. An error means that the spec is wrong in
// itself, whatever the host.
func New(spec Spec) (*Pool, error) {
	if err := spec.check(); err != nil {
		return nil, fmt.Errorf("new pool %q: %w", spec.Name, err)
	}
	p := newPool(spec.filled(), host)
	if len(spec.Functions) > 0 {
		var err error
		if p.off, err = newOffice(&p.spec); err != nil {
			return nil, fmt.Errorf("new pool %q: %w", spec.Name, err)
		}
	}
	return p, nil
}

func newPool(spec Spec, start starter) *Pool {
	p := &Pool{spec: spec, start: start, done: make(chan struct{}), turn: make(chan struct{}, spec.Workers)}
	p.breaker.pool = p
	p.standby.pool = p
	for range spec.Workers {
		p.seats = append(p.seats, newSeat(p))
	}
	p.free = slices.Clone(p.seats)
	return p
}

// Boot makes sure that a worker is ready, and starts one if none is. It returns what Dispatch would for a worker that
// cannot boot. ctx needs no deadline: Spec.StartTimeout bounds the start.
func (p *Pool) Boot(ctx context.Context) error {
	switch {
	case p.spec.Exec:
		return nil // nothing is started before there is a message
	case p.off != nil:
		return p.off.boot(&p.spec)
	}
	s, err := p.take(ctx)
	if err != nil {
		return err
	}
	defer p.give(s)
	defer s.rests()
	_, err = s.worker(ctx)
	return err
}

// Dispatch sends one request to a worker and returns its answer. With an error the Result has what was printed, and no more. The deadline of ctx is the dispatch's: it spans the wait
// for a worker, the write, the run and the read, and a ctx without one is an error unless there is a Timeout. Dispatch
// returns by then, whatever the worker does.
//
// Errors: *HandlerError and *TooLargeError leave the worker alive. *DeadlineError, *LimitError, *CrashError and
// *ViolationError have cut it, after the last of Spec.Attempts wrapped in a *PoisonError; so has the cancelling of ctx, whose
// cause is returned. *BootError: no worker could be made ready, in Spec.StartTimeout or by the deadline, or the last starts
// have failed and the next is not due yet. *LeftoverError: the worker before is not proved gone yet. ErrClosed: Close was
// called. The cause of ctx also when it ended before a worker was free. An error of no type: the request is wrong in itself,
// and nothing was sent. Blame sorts them.
//
// What the worker wrote, or that it died, before the request's first byte is charged to no message: the worker is replaced
// and the dispatch goes on. If it dies while the request lies unread in the pipe, nobody can tell: that is a *CrashError.
func (p *Pool) Dispatch(ctx context.Context, r Request) (Result, error) {
	if _, ok := ctx.Deadline(); !ok && r.timeout(&p.spec) <= 0 {
		return Result{}, errors.New("dispatch: neither the context has a deadline nor the request a Timeout")
	}
	if err := r.check(); err != nil {
		return Result{}, fmt.Errorf("dispatch: %w", err)
	}
	if want := (wire.Offer{Phase: r.Phase, Name: r.Name}); len(p.spec.Offers) > 0 && !slices.Contains(p.spec.Offers, want) {
		return Result{}, fmt.Errorf("dispatch: %s %q is not among the Offers of the pool's Spec", r.Phase, r.Name)
	}
	if p.spec.Exec && r.Phase != wire.PhaseHandle {
		return Result{}, errors.New("dispatch: a program that is executed for each message is no router")
	}
	if p.off != nil {
		return p.off.dispatch(ctx, &r, p)
	}
	s, err := p.take(ctx)
	if err != nil {
		return Result{}, err
	}
	defer p.give(s)
	defer s.rests()
	r.Attempt = max(r.Attempt, 1)
	for n := 1; ; n++ {
		result, err := s.dispatch(ctx, &r)
		switch {
		case Blame(err) != Worker || p.spec.Attempts == 1:
			return result, err
		case n == p.spec.Attempts:
			return result, &PoisonError{Attempts: n, Err: err}
		case ctx.Err() != nil:
			return result, err
		}
		r.Attempt++
	}
}

// take waits for a seat. Whoever has it, and finds the pool open, may go on.
func (p *Pool) take(ctx context.Context) (*seat, error) {
	select {
	case p.turn <- struct{}{}:
	case <-p.done:
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	// A select with more than one way takes any.
	if ctx.Err() != nil {
		<-p.turn
		return nil, context.Cause(ctx)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.free[len(p.free)-1]
	if p.closed || !s.hold() {
		<-p.turn
		return nil, ErrClosed
	}
	p.free = p.free[:len(p.free)-1]
	return s, nil
}

// takeThis takes one seat if nobody has it, and as little as the pool itself.
func (p *Pool) takeThis(s *seat) bool {
	select {
	case p.turn <- struct{}{}:
	default:
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.free, s)
	if i < 0 || p.closed || !s.hold() {
		<-p.turn
		return false
	}
	p.free = slices.Delete(p.free, i, i+1)
	return true
}

// give gives a seat back. One with a worker is the next to be taken.
func (p *Pool) give(s *seat) {
	short := s.short
	s.short = false
	p.mu.Lock()
	s.letGo()
	if s.session != nil {
		p.free = append(p.free, s)
	} else {
		p.free = slices.Insert(p.free, 0, s)
	}
	p.mu.Unlock()
	<-p.turn
	if short {
		p.standby.fill()
	}
}

// Close ends the pool: idle workers are asked to end and killed if they do not; dispatches under way return ErrClosed
// and their workers are killed. Close returns nil once all workers are proved gone and their scratch folders removed, a
// *tree.SurvivorsError if that took longer than Spec.KillTimeout, and ctx's cause if that ended first; the killing goes on
// then. It may be called again, to wait again, and by any number of goroutines.
func (p *Pool) Close(ctx context.Context) error {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.done)
	}
	p.mu.Unlock()
	if p.off != nil {
		return p.off.close(ctx)
	}
	errs := make([]error, len(p.seats)+1)
	var all sync.WaitGroup
	for i, s := range p.seats {
		all.Go(func() { errs[i] = s.close(ctx) })
	}
	all.Go(func() { errs[len(p.seats)] = p.standby.close(ctx) })
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return p.cleared(ctx)
}

// cleared waits until the scratch folders are removed.
func (p *Pool) cleared(ctx context.Context) error {
	if p.clear.left.Load() == 0 {
		return nil // also when ctx has ended
	}
	done := make(chan struct{})
	go func() {
		p.clear.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Members reads the processes of the workers that are alive; none if none is.
func (p *Pool) Members() ([]tree.Member, error) {
	var all []tree.Member
	for _, s := range p.living() {
		list, err := s.worker.Members()
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return all, nil
}

// living are the sessions that have begun and are not being ended.
func (p *Pool) living() []*session {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := slices.Clone(p.standby.ready)
	for _, s := range p.seats {
		if s.session != nil {
			out = append(out, s.session)
		}
	}
	return out
}
