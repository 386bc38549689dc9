package sandbox

import (
	"context"
	"errors"

	"coppice.dev/coppice/tree"
)

// ending is the end of a life, under way or over.
type ending struct {
	life    *life
	why     error
	message int64
	done    chan struct{}
	err     error // a *tree.SurvivorsError; valid once done is closed
}

// end kills the worker and returns at once; the ending is done when the tree is proved empty, or is not in time, and
// everything that belonged to the worker has been cleared away.
func (l *life) end(why error, message int64) *ending {
	e := &ending{life: l, why: why, message: message, done: make(chan struct{})}
	go func() {
		defer close(e.done)
		report, err := e.kill()
		l.link.Close()
		l.output.finish()
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
	next := &ending{life: e.life, why: e.why, message: e.message, done: make(chan struct{})}
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
	ctx, cancel := context.WithTimeout(context.Background(), e.life.spec.KillTimeout)
	defer cancel()
	return e.life.tree.Kill(ctx, cause(e.why))
}

// settle clears the scratch folder away, if nobody is left to use it, and tells the observer.
func (e *ending) settle(report tree.Report, err error) {
	e.err = err
	l := e.life
	if err == nil {
		l.acts.Wait()
		l.tidy()
	}
	if f := l.spec.Observer.Cut; f != nil {
		f(Cut{Session: l.spec.Name, Why: reason(e.why), Message: e.message, Report: report, Status: l.tree.Status(), Err: err,
			Output: l.output.tail()})
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

func reason(why error) error {
	if errors.Is(why, ErrClosed) {
		return nil
	}
	return why
}

// cause is the report's word for why a worker was cut.
func cause(why error) string {
	var handler *HandlerError
	var deadline *DeadlineError
	var crash *CrashError
	var violation *ViolationError
	switch {
	case why == nil:
		return "exit"
	case errors.Is(why, ErrClosed):
		return "close"
	case errors.As(why, &deadline):
		return "deadline"
	case errors.As(why, &crash):
		return "crash"
	case errors.As(why, &violation):
		return "violation"
	case errors.As(why, &handler):
		return "boot"
	}
	return "cancel"
}
