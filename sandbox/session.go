package sandbox

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"coppice.dev/coppice/tree"
	"coppice.dev/coppice/wire"
)

// Spec says what a session's workers are. It is not changed after New.
type Spec struct {
	// Name is for people: events and errors carry it, and the scratch folder's name shows it.
	Name string
	// Command is the worker's program, an absolute path, and its arguments. It speaks the protocol of package wire: a
	// program made with package worker, or an interpreter with an SDK.
	Command []string
	// Env is added to the worker's environment, as NAME=value; of the engine's own only an allow-list gets there. The last
	// value of a name counts.
	Env []string
	// File is the code that the worker loads; empty for a program that is its own code.
	File string
	// Offers are the functions that will be asked for. A worker that lacks one cannot boot.
	Offers []wire.Offer
	// Settings reach the functions as they are: strings, bool, int64, float64, []any and map[string]any.
	Settings map[string]any

	// Level is the least containment that will do; 0 takes the best that the host has.
	Level tree.Level
	// Rung, if not empty, is the only rung of package tree to use.
	Rung string
	// Scratch is the folder in which each worker gets a folder of its own; empty is the system's for temporary files.
	Scratch string
	// StartTimeout bounds a start, until the worker is ready; 0 means 10 s.
	StartTimeout time.Duration
	// KillTimeout bounds the wait for the proof that a cut worker is gone; 0 means 10 s.
	KillTimeout time.Duration
	// FrameCap is the most bytes of a frame, at most 4 GiB - 1; 0 means 64 MiB.
	FrameCap int

	Observer Observer
}

// Request asks for one function's work on one message. Phase, Name and Message must be there.
type Request struct {
	Phase     wire.Phase
	Name      string // UTF-8
	Message   int64  // the engine's id of the message, from 1
	Inbound   string
	Type      string
	ControlID string
	Received  time.Time
	Attempt   int // from 1; 0 says 1
	Body      []byte
}

// Result is a function's answer. A router's has Handlers; a handler's has Sends, or is Dropped for a reason.
type Result struct {
	Handlers []string
	Sends    []wire.Send
	Dropped  bool
	Drop     string
	Tags     map[string]string
	Took     time.Duration // from the request's first byte to the answer's last
}

// Session runs functions in a worker process that it starts when it is first needed, keeps for the next dispatch, and
// replaces when it has died or has been cut. It makes one dispatch at a time; its methods may be called from any goroutine.
// One who has made a session must close it.
type Session struct {
	spec Spec
	slot chan struct{} // held by the one dispatch that is under way
	done chan struct{} // closed by Close

	mu     sync.Mutex
	life   *life // the worker that is alive, or is being started
	closed bool

	// clear are the scratch folders that are being removed. The next worker does not wait for them; Close does.
	clear clearing

	// cutting is the end of the worker before, held by whoever has the slot; nil if it is over or there was none.
	cutting *ending
}

// New returns a session. It starts nothing: the first dispatch does, or Boot. An error means that the spec is wrong in
// itself, whatever the host.
func New(spec Spec) (*Session, error) {
	if err := spec.check(); err != nil {
		return nil, fmt.Errorf("new session %q: %w", spec.Name, err)
	}
	spec.StartTimeout = orDefault(spec.StartTimeout, 10*time.Second)
	spec.KillTimeout = orDefault(spec.KillTimeout, 10*time.Second)
	return &Session{spec: spec, slot: make(chan struct{}, 1), done: make(chan struct{})}, nil
}

func (s *Spec) check() error {
	switch {
	case len(s.Command) == 0:
		return errors.New("no command")
	case !filepath.IsAbs(s.Command[0]):
		return fmt.Errorf("the command %q is no absolute path", s.Command[0])
	case s.FrameCap < 0 || int64(s.FrameCap) > math.MaxUint32:
		return fmt.Errorf("a frame cap of %d bytes", s.FrameCap)
	}
	for _, o := range s.Offers {
		if err := checkFunction(o.Phase, o.Name); err != nil {
			return err
		}
	}
	_, err := wire.Encode(s.boot(), wire.DefaultCaps())
	return err
}

// boot is the first message to every worker of the session.
func (s *Spec) boot() *wire.Boot {
	return &wire.Boot{File: s.File, Offers: s.Offers, Settings: s.Settings, FrameCap: s.FrameCap}
}

// checkFunction refuses what a worker would have to take for a violation by the engine, and die of, or could only answer
// with another name: the wire replaces what is not UTF-8.
func checkFunction(phase wire.Phase, name string) error {
	switch {
	case phase != wire.PhaseRoute && phase != wire.PhaseHandle:
		return fmt.Errorf("no phase %q", phase)
	case name == "" || !utf8.ValidString(name):
		return fmt.Errorf("no name for a function: %q", name)
	}
	return nil
}

func (r *Request) check() error {
	if r.Message < 1 {
		return fmt.Errorf("no message has the id %d", r.Message)
	}
	return checkFunction(r.Phase, r.Name)
}

// wire is the request as it goes to the worker, under an id of its own.
func (r *Request) wire(timeout time.Duration) *wire.Request {
	return &wire.Request{
		Binding: wire.Binding{ID: newID(), Phase: r.Phase, Name: r.Name},
		Message: r.Message, Inbound: r.Inbound, MsgType: r.Type, Control: r.ControlID,
		Received: r.Received.UTC().Format(time.RFC3339Nano), Attempt: min(max(r.Attempt, 1), math.MaxInt32),
		Timeout: max(timeout.Milliseconds(), 0), Body: r.Body,
	}
}

func orDefault(d, otherwise time.Duration) time.Duration {
	if d <= 0 {
		return otherwise
	}
	return d
}

// replacements is how many workers one dispatch tries, of which each died or misbehaved before its request.
const replacements = 3

// Boot makes sure that a worker is ready, and starts one if none is. It returns what Dispatch would for a worker that
// cannot boot. ctx needs no deadline: Spec.StartTimeout bounds the start.
func (s *Session) Boot(ctx context.Context) error {
	if err := s.acquire(ctx); err != nil {
		return err
	}
	defer s.release()
	_, err := s.worker(ctx)
	return err
}

// Dispatch sends one request to the worker and returns its answer. The deadline of ctx is the dispatch's: it spans the wait
// for a worker, the write, the run and the read, and a ctx without one is an error. Dispatch returns by then, whatever the
// worker does.
//
// Errors: *HandlerError and *TooLargeError leave the worker alive. *DeadlineError, *CrashError and *ViolationError have cut
// it; so has the cancelling of ctx, whose cause is returned. *BootError: no worker could be made ready, in Spec.StartTimeout
// or by the deadline. *LeftoverError: the worker before is not proved gone yet. ErrClosed: Close was called. The cause of
// ctx also when it ended before a worker was free. An error of no type: the request is wrong in itself, and nothing was
// sent. Blame sorts them.
//
// What the worker wrote, or that it died, before the request's first byte is charged to no message: the worker is replaced
// and the dispatch goes on. If it dies while the request lies unread in the pipe, nobody can tell: that is a *CrashError.
func (s *Session) Dispatch(ctx context.Context, r Request) (Result, error) {
	if _, ok := ctx.Deadline(); !ok {
		return Result{}, errors.New("dispatch: the context has no deadline")
	}
	if err := r.check(); err != nil {
		return Result{}, fmt.Errorf("dispatch: %w", err)
	}
	if want := (wire.Offer{Phase: r.Phase, Name: r.Name}); len(s.spec.Offers) > 0 && !slices.Contains(s.spec.Offers, want) {
		return Result{}, fmt.Errorf("dispatch: %s %q is not among the Offers of the session's Spec", r.Phase, r.Name)
	}
	if err := s.acquire(ctx); err != nil {
		return Result{}, err
	}
	defer s.release()
	var dirty *dirtyError
	for range replacements {
		l, err := s.worker(ctx)
		if err != nil {
			return Result{}, err
		}
		if ctx.Err() != nil {
			return Result{}, context.Cause(ctx)
		}
		result, err := l.dispatch(ctx, &r)
		switch {
		case kept(err):
			return result, err
		case errors.As(err, &dirty):
			s.retire(l, dirty.why(), 0)
		default:
			s.retire(l, err, r.Message)
			return Result{}, err
		}
	}
	return Result{}, &BootError{Name: s.spec.Name, Err: fmt.Errorf("%d workers in a row did not last until their first request: %w",
		replacements, dirty.cause)}
}

// acquire waits for the slot. Whoever has it, and finds the session open, may go on.
func (s *Session) acquire(ctx context.Context) error {
	select {
	case s.slot <- struct{}{}:
	case <-s.done:
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	// A select with more than one way takes any.
	select {
	case <-s.done:
		s.release()
		return ErrClosed
	default:
	}
	if ctx.Err() != nil {
		s.release()
		return context.Cause(ctx)
	}
	return nil
}

func (s *Session) release() { <-s.slot }

// worker returns the living worker, or starts one once the one before is proved gone. The caller has the slot.
func (s *Session) worker(ctx context.Context) (*life, error) {
	s.mu.Lock()
	l := s.life
	s.mu.Unlock()
	if l != nil && l.usable() {
		return l, nil
	}
	if l != nil {
		s.retire(l, nil, 0)
	}
	until, cancel := s.untilClosed(ctx)
	defer cancel()
	err := s.proved(until)
	if err == nil {
		if l, err = s.start(until); err == nil {
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
		boot.Output = s.cutting.life.output.tail()
	}
	return nil, err
}

// untilClosed returns a ctx that ends with the session, too. It costs a goroutine, and is for starts alone.
func (s *Session) untilClosed(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-s.done:
			cancel(ErrClosed)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// proved waits until the worker before is proved gone.
func (s *Session) proved(ctx context.Context) error {
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

// start starts a worker and makes it ready. Errors are *BootError, or ErrClosed.
func (s *Session) start(ctx context.Context) (*life, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, s.spec.StartTimeout)
	defer cancel()
	l, err := newLife(ctx, &s.spec, &s.clear)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = &DeadlineError{After: time.Since(began)}
		}
		return nil, &BootError{Name: s.spec.Name, Err: err}
	}
	s.mu.Lock()
	s.life = l
	closed := s.closed
	s.mu.Unlock()
	if closed {
		err = ErrClosed
	} else {
		err = l.boot(ctx)
	}
	if err == nil {
		return l, nil
	}
	var late *DeadlineError
	if errors.As(err, &late) {
		late.After = time.Since(began)
	}
	s.retire(l, err, 0)
	if errors.Is(err, ErrClosed) {
		return nil, ErrClosed
	}
	return nil, &BootError{Name: s.spec.Name, Err: err}
}

// retire begins the end of a worker: it is killed, and the next worker waits for the proof.
func (s *Session) retire(l *life, why error, message int64) {
	s.mu.Lock()
	if s.life == l {
		s.life = nil
	}
	s.mu.Unlock()
	s.cutting = l.end(why, message)
}

// Close ends the session: an idle worker is asked to end and killed if it does not; a dispatch under way returns ErrClosed
// and its worker is killed. Close returns nil once the worker is proved gone and its scratch folder removed, a *tree.SurvivorsError if that took longer
// than Spec.KillTimeout, and ctx's cause if that ended first; the killing goes on then. It may be called again, to wait
// again, and by any number of goroutines.
func (s *Session) Close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.done)
	}
	l := s.life
	s.mu.Unlock()
	idle := false
	select {
	case s.slot <- struct{}{}:
		idle = true
	default:
	}
	if l != nil {
		l.close(ctx, idle)
	}
	if !idle {
		// The dispatch sees its worker die, and gives the slot back.
		select {
		case s.slot <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	defer s.release()
	s.mu.Lock()
	l = s.life
	s.mu.Unlock()
	if l != nil {
		s.retire(l, ErrClosed, 0)
	}
	if s.cutting != nil {
		s.cutting = s.cutting.again()
		if err := s.cutting.await(ctx); err != nil {
			return err
		}
	}
	return s.cleared(ctx)
}

// cleared waits until the scratch folders are removed.
func (s *Session) cleared(ctx context.Context) error {
	if s.clear.left.Load() == 0 {
		return nil // also when ctx has ended
	}
	done := make(chan struct{})
	go func() {
		s.clear.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Members reads the processes of the worker that is alive; none if none is.
func (s *Session) Members() ([]tree.Member, error) {
	s.mu.Lock()
	l := s.life
	s.mu.Unlock()
	if l == nil {
		return nil, nil
	}
	return l.tree.Members()
}

// newID returns 128 fresh random bits, as the wire writes them.
func newID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the program first
	return hex.EncodeToString(b[:])
}
