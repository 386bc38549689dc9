package sandbox

import (
	"context"
	"errors"
	"time"

	"coppice.dev/coppice/tree"
)

// ending is the end of a session, under way or over.
type ending struct {
	session *session
	why     error
	message int64
	at      time.Time
	done    chan struct{}
	err     error // a *tree.SurvivorsError; valid once done is closed
}

// end kills the worker and returns at once; the ending is done when the tree is proved empty, or is not in time, and
// everything that belonged to the worker has been cleared away.
func (s *session) end(why error, message int64) *ending {
	close(s.ending)
	e := &ending{session: s, why: why, message: message, at: time.Now(), done: make(chan struct{})}
	if gone := s.gone.Load(); gone != nil {
		e.at = *gone // nobody has looked since
	}
	go func() {
		defer close(e.done)
		report, err := e.kill()
		s.worker.let()
		e.settle(report, err)
	}()
	return e
}

// again tries once more to prove gone what could not be; an ending that is still under way, or went well, stays.
func (e *ending) again() *ending {
	select {
	case <-e.done:
		if e.err == nil {
			return e
		}
	default:
		return e
	}
	next := &ending{session: e.session, why: e.why, message: e.message, at: e.at, done: make(chan struct{})}
	go func() {
		defer close(next.done)
		if report, err := next.kill(); err != nil {
			next.err = err // it has been told already
		} else {
			next.settle(report, nil)
		}
	}()
	return next
}

func (e *ending) kill() (tree.Report, error) {
	ctx, cancel := context.WithTimeout(context.Background(), e.session.spec.KillTimeout)
	defer cancel()
	return e.session.worker.Kill(ctx, cause(e.why))
}

// settle clears the scratch folder away, if nobody is left to use it, and tells the observer.
func (e *ending) settle(report tree.Report, err error) {
	e.err = err
	s := e.session
	if err == nil {
		s.acts.Wait()
		s.tidy()
	}
	why, orderly := e.why, expected(e.why)
	if orderly {
		why = nil
	}
	if f := s.spec.Observer.Cut; f != nil {
		f(Cut{Session: s.spec.Name, Why: why, Expected: orderly, Message: e.message, Report: report, Status: s.worker.Status(), Err: err,
			Output: s.worker.tail(), At: e.at, Steps: s.x.record.steps(), Said: string(s.x.record.said), Heard: string(s.x.record.heard)})
	}
}

// await waits for the end of the ending. The error is the ending's, or ctx's cause.
func (e *ending) await(ctx context.Context) error {
	select {
	case <-e.done:
		return e.err
	default:
	}
	select {
	case <-e.done:
		return e.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// The reasons of ends that are in order.
var (
	errSpent = errors.New("its one dispatch is over") // Spec.Fresh
	errIdle  = errors.New("it was idle for too long") // Limits.Idle
)

// expected says that a worker's end was in order.
func expected(why error) bool {
	return errors.Is(why, ErrClosed) || errors.Is(why, errSpent) || errors.Is(why, errIdle)
}

// cause is the report's word for why a worker was cut.
func cause(why error) string {
	var handler *HandlerError
	var deadline *DeadlineError
	var limit *LimitError
	var crash *CrashError
	var violation *ViolationError
	switch {
	case why == nil:
		return "exit"
	case errors.Is(why, ErrClosed):
		return "close"
	case errors.Is(why, errSpent):
		return "spent"
	case errors.Is(why, errIdle):
		return "idle"
	case errors.As(why, &deadline):
		return "deadline"
	case errors.As(why, &limit):
		return "limit"
	case errors.As(why, &crash):
		return "crash"
	case errors.As(why, &violation):
		return "violation"
	case errors.As(why, &handler):
		return "boot"
	}
	return "cancel"
}
