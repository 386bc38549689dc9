package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"coppice.dev/coppice/tree"
	"coppice.dev/coppice/wire"
)

// A program that is executed for one message alone, with the body on stdin, finds what else there is to know in its
// environment under these names. A setting is under ExecSetting and its own name, if it is a string, a number or a boolean.
const (
	ExecMessage   = "COPPICE_MESSAGE"
	ExecInbound   = "COPPICE_INBOUND"
	ExecType      = "COPPICE_TYPE"
	ExecControlID = "COPPICE_CONTROL_ID"
	ExecAttempt   = "COPPICE_ATTEMPT"
	ExecSetting   = "COPPICE_SETTING_"
)

// execEnv is what a program is told of a message. What no environment can hold is left out.
func execEnv(r *Request, settings map[string]any) []string {
	var env []string
	add := func(name, value string) {
		if !strings.ContainsRune(value, 0) && !strings.ContainsAny(name, "=\x00") {
			env = append(env, name+"="+value)
		}
	}
	add(ExecMessage, strconv.FormatInt(r.Message, 10))
	add(ExecInbound, r.Inbound)
	add(ExecType, r.Type)
	add(ExecControlID, r.ControlID)
	add(ExecAttempt, strconv.Itoa(r.Attempt))
	for name, value := range settings {
		switch value.(type) {
		case string, bool, int64, float64:
			add(ExecSetting+name, fmt.Sprint(value))
		}
	}
	return env
}

// exec has a program that has just been started work on one message: the body goes to its stdin, and what comes from its
// stdout until it ends is the body of one Send to each of Spec.ExecTo. Nothing at all sends nothing.
func (s *session) exec(ctx context.Context, r *Request) (Result, error) {
	s.worker.begin(r.Message)
	began := time.Now()
	if most := s.spec.Limits.CPU; most > 0 {
		defer watchCPU(s.worker, most, s.exceed).stop()
	}
	s.x.record.note(Step{What: StepRequest, Message: r.Message, Attempt: r.Attempt, Phase: string(r.Phase), Name: r.Name, Bytes: len(r.Body)})
	var body []byte
	err := s.bounded(ctx, func() (err error) {
		body, err = s.through(ctx, r.Body)
		return err
	})
	if err != nil {
		return Result{}, err
	}
	s.x.record.note(Step{What: StepAnswer, Answer: "stdout", Bytes: len(body)})
	result := Result{Took: time.Since(began)}
	for _, to := range s.spec.ExecTo {
		if len(body) > 0 {
			result.Sends = append(result.Sends, wire.Send{To: to, Body: body})
		}
	}
	return result, nil
}

// through writes a body to the program and reads what it makes of it, both at once, since a program may begin to write before it
// has read all, and need not read all. Then it waits for the program's end.
func (s *session) through(ctx context.Context, body []byte) ([]byte, error) {
	written := make(chan struct{})
	go func() {
		defer close(written)
		s.worker.Write(body)
		s.worker.CloseWrite()
	}()
	most := int64(s.spec.caps().Frame)
	out, err := io.ReadAll(io.LimitReader(s.worker, most+1))
	if err == nil && int64(len(out)) <= most {
		select {
		case <-s.worker.Exited():
		case <-ctx.Done():
		}
	}
	s.limit(time.Unix(1, 0)) // of a program that does not read
	<-written
	select {
	case <-s.worker.Exited():
	default:
		if int64(len(out)) > most {
			return nil, raised("result", fmt.Sprintf("the program wrote more than %d bytes to stdout", most))
		}
		return nil, errors.Join(err, os.ErrDeadlineExceeded)
	}
	switch status := s.worker.Status(); {
	case ctx.Err() != nil, err != nil && !s.drained(err):
		return nil, errors.Join(err, os.ErrDeadlineExceeded)
	case int64(len(out)) > most:
		return nil, raised("result", fmt.Sprintf("the program wrote more than %d bytes to stdout", most))
	case status.Success():
		return out, nil
	case status.Known && status.Signal == 0:
		return nil, raised(status.String(), strings.Join(s.worker.whole(), "\n"))
	}
	return nil, io.ErrUnexpectedEOF // judged as the crash that it is
}

// drained says whether a read of stdout that ended without its end has all the same all that the program wrote: somebody whom
// the program left behind holds the pipe, nothing lies in it, and it was not a limit that ended the read.
func (s *session) drained(err error) bool {
	if !errors.Is(err, os.ErrDeadlineExceeded) || s.exceeded() != nil {
		return false
	}
	left := s.worker.Pending()
	return left == tree.Nothing || left == tree.HungUp
}

// raised is the fault of a program that says, by its status, that it cannot.
func raised(kind, text string) error {
	return &HandlerError{wire.Fault{Type: kind, Text: text}}
}
