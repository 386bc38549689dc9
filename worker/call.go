package worker

import (
	"context"
	"errors"
	"strings"

	"coppice.dev/coppice/wire"
)

// Caller calls functions in the process that it is in, without a wire: package sandbox does so where it is told to contain
// nothing. It may be used from any goroutine, as far as the functions may.
type Caller struct {
	s      server
	offers []wire.Offer
}

// NewCaller makes one of functions that get these settings, and whose answers fit into a frame; a frameCap of 0 is the
// protocol's. The error says which function has no name, no code, or the name of
// another.
func NewCaller(settings map[string]any, frameCap int, functions ...Function) (*Caller, error) {
	c := &Caller{s: server{caps: wire.DefaultCaps(), functions: map[wire.Offer]Function{}, settings: settings}}
	if frameCap > 0 {
		c.s.caps.Frame = frameCap
	}
	ready := &wire.Ready{}
	if text := c.s.add(functions, ready); text != "" {
		return nil, errors.New(text)
	}
	c.offers = ready.Offers
	return c, nil
}

// Lacks names the first of the functions asked for that is not there, and lists those that are; empty if all are there.
func (c *Caller) Lacks(asked []wire.Offer) string { return c.s.lacks(asked, c.offers) }

// Call calls the function that the request asks for and returns its answer, a *wire.Result or a *wire.Fail, as a worker with
// the same functions would write it. The body is the function's.
func (c *Caller) Call(ctx context.Context, request *wire.Request) wire.Message {
	answer, _, err := c.s.answer(ctx, request)
	if err != nil {
		return fail(request, faultResult, err.Error(), "")
	}
	// What is not UTF-8 is replaced on the wire.
	switch m := answer.(type) {
	case *wire.Result:
		m.Drop = valid(m.Drop)
		for i, name := range m.Handlers {
			m.Handlers[i] = valid(name)
		}
		for i := range m.Sends {
			m.Sends[i].To = valid(m.Sends[i].To)
		}
	case *wire.Fail:
		m.Fault = wire.Fault{Type: valid(m.Fault.Type), Text: valid(m.Fault.Text), Traceback: valid(m.Fault.Traceback)}
	}
	return answer
}

func valid(s string) string { return strings.ToValidUTF8(s, "\ufffd") }
