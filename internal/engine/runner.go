package engine

import (
	"context"
	"errors"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/pipeline"
	"coppice.dev/coppice/sandbox"
)

// Run makes one attempt in the function's pool. The function's deadline begins with the request: neither a slow start nor the
// wait for another function of a shared worker is charged to it.
func (r *runner) Run(ctx context.Context, m *message.Message, attempt int) (pipeline.Answer, error) {
	p, err := r.pool(m.Inbound)
	if err != nil {
		return pipeline.Answer{}, err
	}
	result, err := p.Dispatch(ctx, sandbox.Request{
		Phase: r.phase, Name: r.name, Message: int64(m.ID), Inbound: m.Inbound, Type: m.Type, ControlID: m.ControlID,
		Received: m.Received, Attempt: attempt, Timeout: r.deadline, Body: m.Body,
	})
	if err != nil {
		return pipeline.Answer{}, r.failure(err, result)
	}
	answer := pipeline.Answer{Handlers: result.Handlers, Dropped: result.Dropped, Drop: result.Drop, Tags: result.Tags,
		Took: result.Took, Code: r.code, Printed: printed(result)}
	for _, s := range result.Sends {
		answer.Sends = append(answer.Sends, message.Send{To: s.To, Body: s.Body})
	}
	return answer, nil
}

func printed(r sandbox.Result) (out []message.Printed) {
	for _, p := range r.Printed {
		out = append(out, message.Printed(p))
	}
	return out
}

// failure puts an error of the pool into the pipeline's terms. What is nobody's fault stays as it is.
func (r *runner) failure(err error, result sandbox.Result) error {
	f := &pipeline.Failure{Code: r.code, Printed: printed(result)}
	switch sandbox.Blame(err) {
	case sandbox.Message:
		f.Blame = pipeline.TheMessage
	case sandbox.Worker:
		f.Blame = pipeline.TheWorker
	default:
		return err
	}
	var handler *sandbox.HandlerError
	var deadline *sandbox.DeadlineError
	var crash *sandbox.CrashError
	var violation *sandbox.ViolationError
	var limit *sandbox.LimitError
	switch {
	case errors.As(err, &handler):
		f.Fault = message.Fault{Kind: "handler", Type: handler.Fault.Type, Text: handler.Fault.Text, Traceback: handler.Fault.Traceback}
	case errors.As(err, &deadline):
		f.Fault = message.Fault{Kind: "deadline", Text: deadline.Error()}
		f.Took = deadline.After
	case errors.As(err, &limit):
		f.Fault = message.Fault{Kind: "limit", Type: limit.Limit, Text: limit.Error()}
	case errors.As(err, &crash):
		f.Fault = message.Fault{Kind: "crash", Text: crash.Error()}
	case errors.As(err, &violation):
		f.Fault = message.Fault{Kind: "violation", Type: violation.Violation.Name, Text: violation.Violation.Detail}
	default:
		f.Fault = message.Fault{Kind: "message", Text: err.Error()}
	}
	return f
}
