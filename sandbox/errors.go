package sandbox

import (
	"errors"
	"fmt"
	"time"

	"coppice.dev/coppice/tree"
	"coppice.dev/coppice/wire"
)

// ErrClosed is returned by a dispatch whose pool was closed before or under it.
var ErrClosed = errors.New("pool is closed")

// HandlerError says that the function raised, or returned what no result can say. The worker lives on.
type HandlerError struct {
	Fault wire.Fault
}

func (e *HandlerError) Error() string {
	if e.Fault.Text == "" {
		return "handler raised " + e.Fault.Type
	}
	return "handler raised " + e.Fault.Type + ": " + e.Fault.Text
}

// TooLargeError says that the message does not fit into a frame. Nothing was sent.
type TooLargeError struct {
	Err error // the *wire.Violation that sending it would have been
}

func (e *TooLargeError) Error() string { return "message does not fit into a frame: " + e.Err.Error() }

// Unwrap returns Err.
func (e *TooLargeError) Unwrap() error { return e.Err }

// DeadlineError says that the worker had not answered when the dispatch's deadline came. It has been cut.
type DeadlineError struct {
	After time.Duration // from right before the request's first byte, or at boot from the start, to the deadline
}

func (e *DeadlineError) Error() string {
	return "no answer by the deadline, after " + e.After.Round(time.Millisecond).String()
}

// CrashError says that the worker ended instead of answering: by an exit, by a signal, or because the kernel killed it for want of
// memory, which Status.OOM tells from another SIGKILL as surely as the host lets anybody know.
type CrashError struct {
	Status tree.Status
}

func (e *CrashError) Error() string { return "worker died: " + e.Status.String() }

// ViolationError says that the worker put on the wire what it may not. It has been cut.
type ViolationError struct {
	Violation *wire.Violation
}

func (e *ViolationError) Error() string { return e.Violation.Error() }

// Unwrap returns the violation.
func (e *ViolationError) Unwrap() error { return e.Violation }

// The limits of Limits, as a LimitError names them.
const (
	LimitCPU     = "cpu"
	LimitIdleCPU = "idle-cpu"
	LimitOutput  = "output"
	LimitMemory  = "memory"
)

// LimitError says that the worker used more than the Spec's Limits allow. It has been cut.
type LimitError struct {
	Limit string // LimitCPU and so on
	Most  int64  // the limit: nanoseconds, or bytes
	Used  int64  // what a look showed, in the same unit
}

func (e *LimitError) Error() string {
	switch e.Limit {
	case LimitCPU:
		return fmt.Sprintf("used %v of CPU, more than %v", time.Duration(e.Used).Round(time.Millisecond), time.Duration(e.Most))
	case LimitIdleCPU:
		return fmt.Sprintf("used %v of CPU between dispatches, more than %v", time.Duration(e.Used).Round(time.Millisecond), time.Duration(e.Most))
	case LimitOutput:
		return fmt.Sprintf("printed %d bytes, more than %d", e.Used, e.Most)
	}
	return fmt.Sprintf("keeps %d bytes of memory, more than %d", e.Used, e.Most)
}

// PoisonError says that a message cost as many workers as Spec.Attempts allows.
type PoisonError struct {
	Attempts int
	Err      error // of the last attempt
}

func (e *PoisonError) Error() string {
	return fmt.Sprintf("poison: %d workers did not survive the message: %v", e.Attempts, e.Err)
}

// Unwrap returns Err.
func (e *PoisonError) Unwrap() error { return e.Err }

// BootError says that no worker could be made ready. No message is to blame. Err is what happened: a *HandlerError when
// the worker could not load its code or lacks a function, *DeadlineError, *CrashError or *ViolationError when it failed
// before it was ready, a *tree.LevelError when the host cannot give the level, an *os.PathError when the command cannot be
// executed; or the host's own, when it is out of descriptors or of room for the scratch folder.
type BootError struct {
	Name   string // the pool's
	Err    error
	Output []string // the last lines that the worker printed
	// Until, if not zero, is when the next start is tried: nothing was started for this dispatch, since the starts before it
	// have failed, the last one with Err.
	Until time.Time
}

func (e *BootError) Error() string {
	if raised, ok := errors.AsType[*HandlerError](e.Err); ok {
		return fmt.Sprintf("worker of %s cannot boot: %s: %s", e.Name, raised.Fault.Type, raised.Fault.Text)
	}
	return fmt.Sprintf("worker of %s cannot boot: %v", e.Name, e.Err)
}

// Unwrap returns Err.
func (e *BootError) Unwrap() error { return e.Err }

// LeftoverError says that the worker before could not be proved gone, so that no new one is started yet. The next dispatch
// tries again.
type LeftoverError struct {
	Err error // a *tree.SurvivorsError; the context's cause if that ended the wait
}

func (e *LeftoverError) Error() string {
	return "the worker before is not proved gone: " + e.Err.Error()
}

// Unwrap returns Err.
func (e *LeftoverError) Unwrap() error { return e.Err }

// Fault is whose fault an error is.
type Fault int

// The answers of Blame.
const (
	// Nobody: no worker could be made ready, or the dispatch was cancelled, the pool closed, the request wrong in itself.
	// Another attempt changes nothing about the message.
	Nobody Fault = iota
	// Message: the handler raised, or the message is too large. Another worker would say the same.
	Message
	// Worker: crash, deadline, limit or violation, while it had the message. A fresh worker may succeed.
	Worker
)

// String returns the constant's name in lower case.
func (f Fault) String() string {
	switch f {
	case Nobody:
		return "nobody"
	case Message:
		return "message"
	case Worker:
		return "worker"
	}
	return fmt.Sprintf("Fault(%d)", int(f))
}

// Blame says whose fault an error of Dispatch is.
func Blame(err error) Fault {
	// What happened at boot is wrapped, and is nobody's fault whatever it was.
	switch {
	case err == nil, is[*BootError](err):
		return Nobody
	case is[*HandlerError](err), is[*TooLargeError](err):
		return Message
	case is[*DeadlineError](err), is[*CrashError](err), is[*ViolationError](err), is[*LimitError](err):
		return Worker
	}
	return Nobody
}

// is says whether there is an E in err's chain.
func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}
