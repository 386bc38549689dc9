package sandbox

import (
	"errors"
	"io"
	"os"
	"time"

	"coppice.dev/coppice/tree"
	"coppice.dev/coppice/wire"
)

// exchange is one session's side of the protocol. It never touches the operating system. One goroutine uses it at a time.
//
//	new --boot--> booting --ready--> idle --request--> waiting --answer--> idle
//
// An error leaves it in no state from which anything may follow: the worker is to be cut.
type exchange struct {
	pipe   io.ReadWriter // the engine's end of the wire: a *tree.Link in earnest, memory in tests
	caps   wire.Caps
	record record
}

// dirtyError is the error of a dispatch that found something before the request's first byte: no message pays.
type dirtyError struct {
	cause error // a *wire.Violation, io.EOF when the worker hung up, a *LimitError; once judged, what Cut.Why is to be
}

func (e *dirtyError) Error() string { return "found between dispatches: " + e.cause.Error() }
func (e *dirtyError) Unwrap() error { return e.cause }

// why is the reason for which the worker is cut, once the cause has been judged: none if it had ended by itself.
func (e *dirtyError) why() error {
	if is[*CrashError](e.cause) {
		return nil
	}
	return e.cause
}

// boot sends the boot message and takes the answer: the offers of a worker that is ready, a *HandlerError from one that
// cannot load its code. The cap that it tells holds from the answer on.
func (x *exchange) boot(b *wire.Boot) (*wire.Ready, error) {
	frame, err := wire.Encode(b, x.caps)
	if err != nil {
		return nil, &TooLargeError{err}
	}
	if b.FrameCap > 0 {
		x.caps.Frame = b.FrameCap
	}
	x.record.said = keep(x.record.said, frame.Header())
	if _, err := frame.WriteTo(x.pipe); err != nil {
		return nil, err
	}
	answer, _, err := x.answer()
	if err != nil {
		return nil, err
	}
	switch m := answer.(type) {
	case *wire.Ready:
		x.record.note(Step{What: StepReady})
		return m, nil
	case *wire.BootFail:
		return nil, &HandlerError{m.Fault}
	}
	return nil, outOfOrder("a " + answer.Type() + " in answer to boot")
}

// dispatch sends one request and takes its answer: a result, or a *HandlerError. Right before the request's first byte it
// looks once whether the worker has written or hung up, or is unfit for it.
func (x *exchange) dispatch(r *wire.Request, look func() (tree.Pending, error)) (*wire.Result, error) {
	frame, err := wire.Encode(r, x.caps)
	if err != nil {
		return nil, &TooLargeError{err}
	}
	switch pending, err := look(); {
	case err != nil:
		return nil, &dirtyError{err}
	case pending == tree.Bytes:
		return nil, &dirtyError{outOfOrder("the worker wrote between dispatches")}
	case pending == tree.HungUp:
		return nil, &dirtyError{io.EOF}
	}
	x.record.note(Step{What: StepRequest, Message: r.Message, Attempt: r.Attempt, Phase: string(r.Phase), Name: r.Name, Bytes: frame.Len()})
	x.record.said = keep(x.record.said, frame.Header())
	if n, err := frame.WriteTo(x.pipe); err != nil {
		if n == 0 && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, os.ErrClosed) {
			return nil, &dirtyError{io.EOF} // nobody holds the other end: it was let go after the look
		}
		return nil, err // what may have been answered to half a request is no answer
	}
	answer, size, err := x.answer()
	if err != nil {
		return nil, err
	}
	answered := Step{What: StepAnswer, Answer: answer.Type(), Bytes: size}
	switch m := answer.(type) {
	case *wire.Result:
		if err := r.Check(m.Binding); err != nil {
			return nil, err
		}
		x.record.note(answered)
		return m, nil
	case *wire.Fail:
		if err := r.Check(m.Binding); err != nil {
			return nil, err
		}
		x.record.note(answered)
		return nil, &HandlerError{m.Fault}
	}
	return nil, outOfOrder("a " + answer.Type() + " in answer to a request")
}

func outOfOrder(detail string) error { return &wire.Violation{Name: wire.BadOrder, Detail: detail} }

// answer reads one frame, and tells its size.
func (x *exchange) answer() (wire.Message, int, error) {
	body, err := wire.ReadFrame(x.pipe, x.caps)
	if err != nil {
		return nil, 0, err
	}
	x.record.heard = keep(x.record.heard, wire.Header(body))
	m, err := wire.Decode(body, wire.Worker, x.caps)
	return m, len(body), err
}

// judgement is what the session knows when an exchange has gone wrong.
type judgement struct {
	expired error         // why the dispatch's context ended, nil if it did not
	closed  bool          // the pool is being closed
	took    time.Duration // since the dispatch began
	dead    bool          // the worker has ended, or did within a moment
	status  tree.Status
	late    bool // it ended because its deadline came
	over    *LimitError
}

// judge orders the blame (first that applies): closed by us; over a limit; deadline or cancel; complete but illegal bytes; cut
// short by death; cut short by a worker that lives.
func judge(err error, j judgement) error {
	v, illegal := errors.AsType[*wire.Violation](err)
	switch {
	case j.closed:
		return ErrClosed
	case j.over != nil:
		return j.over
	case j.expired != nil && j.late:
		return &DeadlineError{After: j.took}
	case j.expired != nil:
		return j.expired
	case illegal && !cutShort(err):
		return &ViolationError{v}
	case j.dead:
		return &CrashError{j.status}
	default:
		return &ViolationError{&wire.Violation{Name: wire.Closed, Detail: "the worker closed its end of the wire and lives on"}}
	}
}

// cutShort says whether the wire ended, or was ended, before the bytes were complete: then the worker's own end decides
// what that means. Complete bytes that are illegal speak for themselves.
func cutShort(err error) bool {
	v, illegal := errors.AsType[*wire.Violation](err)
	return !illegal || v.Name == wire.FrameCut
}

// kept says whether the worker may serve the next dispatch after this error.
func kept(err error) bool {
	return err == nil || is[*HandlerError](err) || is[*TooLargeError](err)
}
