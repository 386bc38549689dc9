package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"coppice.dev/coppice/wire"
	"coppice.dev/coppice/worker"
)

// office is where functions are called in this process: what a Pool is without workers.
type office struct {
	caller  *worker.Caller
	desks   chan struct{} // one for each call that has not returned
	overdue atomic.Int64  // calls that their dispatch has given up
}

func newOffice(spec *Spec) (*office, error) {
	caller, err := worker.NewCaller(spec.Settings, spec.FrameCap, spec.Functions...)
	if err != nil {
		return nil, err
	}
	return &office{caller: caller, desks: make(chan struct{}, spec.Workers)}, nil
}

// boot says what a worker of these functions would.
func (o *office) boot(spec *Spec) error {
	if text := o.caller.Lacks(spec.Offers); text != "" {
		return &BootError{Name: spec.Name, Err: &HandlerError{wire.Fault{Type: "offer", Text: text}}}
	}
	return nil
}

// dispatch makes one call. A call that is given up goes on, and has its desk until it returns.
func (o *office) dispatch(ctx context.Context, r *Request, p *Pool) (Result, error) {
	if err := o.boot(&p.spec); err != nil {
		return Result{}, err
	}
	select {
	case <-p.done:
		return Result{}, ErrClosed
	default:
	}
	select {
	case o.desks <- struct{}{}:
	case <-p.done:
		return Result{}, ErrClosed
	case <-ctx.Done():
		if o.overdue.Load() > 0 {
			return Result{}, &LeftoverError{context.Cause(ctx)}
		}
		return Result{}, context.Cause(ctx)
	}
	began := time.Now()
	if most := r.timeout(&p.spec); most > 0 {
		bounded, cancel := context.WithTimeout(ctx, most)
		defer cancel()
		ctx = bounded
	}
	deadline, _ := ctx.Deadline()
	request := r.wire(deadline.Sub(began))
	if _, err := wire.Encode(request, p.spec.caps()); err != nil {
		<-o.desks
		return Result{}, &TooLargeError{err}
	}
	request.Body = bytes.Clone(r.Body) // it is the function's, which may change it
	answered := make(chan wire.Message, 1)
	go func() {
		defer func() { <-o.desks }()
		defer close(answered) // also by a function that ends its goroutine
		answered <- o.caller.Call(ctx, request)
	}()
	select {
	case answer, ok := <-answered:
		if !ok {
			return Result{}, &CrashError{}
		}
		return resultOf(answer, time.Since(began))
	case <-ctx.Done():
	case <-p.done:
	}
	o.overdue.Add(1)
	go func() {
		for range answered {
		}
		o.overdue.Add(-1)
	}()
	switch {
	case ctx.Err() == nil:
		return Result{}, ErrClosed
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return Result{}, &DeadlineError{After: time.Since(began)}
	}
	return Result{}, context.Cause(ctx)
}

// close waits for the calls that are under way. Nobody can cut them.
func (o *office) close(ctx context.Context) error {
	for n := range cap(o.desks) {
		select {
		case o.desks <- struct{}{}:
		case <-ctx.Done():
			for range n {
				<-o.desks
			}
			return fmt.Errorf("a function that is called in process has not returned: %w", context.Cause(ctx))
		}
	}
	for range cap(o.desks) {
		<-o.desks
	}
	return nil
}

// resultOf is an answer as Dispatch returns it.
func resultOf(answer wire.Message, took time.Duration) (Result, error) {
	switch m := answer.(type) {
	case *wire.Result:
		return Result{Handlers: m.Handlers, Sends: m.Sends, Dropped: m.Dropped, Drop: m.Drop, Tags: m.Tags, Took: took}, nil
	case *wire.Fail:
		return Result{}, &HandlerError{m.Fault}
	}
	return Result{}, fmt.Errorf("a %s is no answer", answer.Type())
}
