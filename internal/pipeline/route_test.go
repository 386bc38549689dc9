package pipeline

import (
	"context"
	"errors"
	"testing"
	"time"

	"coppice.dev/coppice/internal/message"
)

// TestRoute: guards seen red: without plan's Contains the store refuses the handler that is named twice; without the check
// for unknown handlers New's map gives nil and the engine panics.
func TestRoute(t *testing.T) {
	for _, c := range []struct {
		name        string
		chosen      []string
		disposition message.Disposition
		reason      string
		took        []string
		routed      string
	}{
		{name: "none", disposition: message.Unrouted, routed: "routed 1 "},
		{name: "one", chosen: []string{"admit"}, disposition: message.Processed, took: []string{"A01"}, routed: "routed 1 admit"},
		{name: "two", chosen: []string{"copy", "admit"}, disposition: message.Processed, took: []string{"A01", "A01"}, routed: "routed 1 copy+admit"},
		{name: "twice the same", chosen: []string{"admit", "admit"}, disposition: message.Processed, took: []string{"A01"}, routed: "routed 1 admit"},
		{name: "unknown", chosen: []string{"admit", "admti"}, disposition: message.Error,
			reason: `router named "admti", which is not a handler; there are admit, copy`},
	} {
		t.Run(c.name, func(t *testing.T) {
			inTime(t, func(r *rig) {
				emr := r.outbound("emr", nil)
				r.handler("admit", sendTo("emr"), "emr")
				r.handler("copy", sendTo("emr"), "emr")
				r.inbound("adt", choose(c.chosen...))
				r.start()
				r.receive("adt", "A01")
				r.is(1, c.disposition, c.reason)
				emr.got(t, c.took...)
				if c.routed != "" && r.saw(c.routed) != 1 {
					t.Errorf("observer saw %q, want %q", r.events, c.routed)
				}
				if out := r.outcome(1, ""); out.Attempts != 1 {
					t.Errorf("the router's run is recorded with %d attempts", out.Attempts)
				}
			})
		})
	}
}

// TestStaticHandlers: an inbound without a router. Guard seen red: with an outcome that is not RunSent the store reports a
// breach of its contract.
func TestStaticHandlers(t *testing.T) {
	inTime(t, func(r *rig) {
		emr, archive := r.outbound("emr", nil), r.outbound("archive", nil)
		r.handler("admit", sendTo("emr"), "emr")
		r.handler("keep", sendTo("archive"), "archive")
		r.inbound("adt", nil, "admit", "keep")
		r.inbound("void", nil)
		r.start()
		r.receive("adt", "A01", "A03")
		r.receive("void", "A08")
		emr.got(t, "A01", "A03")
		archive.got(t, "A01", "A03")
		r.is(1, message.Processed, "")
		r.is(3, message.Unrouted, "")
		if n := len(r.store.messages[0].runs); n != 2 {
			t.Errorf("%d runs are recorded, want those of the two handlers", n)
		}
	})
}

// TestRouterFails: a router's failures follow the same blame as a handler's, and what waits behind goes on.
func TestRouterFails(t *testing.T) {
	for _, c := range []struct {
		name     string
		err      error
		reason   string
		attempts int
	}{
		{"the message's", fails(TheMessage, "handler", "KeyError", "MSH-9"), "KeyError: MSH-9", 1},
		{"the worker's", fails(TheWorker, "crash", "", "exit status 3"), "poison: exit status 3 (2 attempts)", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			inTime(t, func(r *rig) {
				emr := r.outbound("emr", nil)
				r.handler("admit", sendTo("emr"), "emr")
				r.inbound("adt", function(func(ctx context.Context, m *message.Message, attempt int) (Answer, error) {
					if m.Type == "bad" {
						return Answer{}, c.err
					}
					return Answer{Handlers: []string{"admit"}}, nil
				}))
				r.start()
				r.receive("adt", "bad", "A01")
				r.is(1, message.Error, c.reason)
				r.is(2, message.Processed, "")
				emr.got(t, "A01")
				if out := r.outcome(1, ""); out.Attempts != c.attempts || out.Fault == nil {
					t.Errorf("recorded %d attempts and fault %v, want %d", out.Attempts, out.Fault, c.attempts)
				}
			})
		})
	}
}

func TestRouterHeld(t *testing.T) {
	inTime(t, func(r *rig) {
		boots := time.Now().Add(90 * time.Second)
		emr := r.outbound("emr", nil)
		r.handler("admit", sendTo("emr"), "emr")
		r.inbound("adt", function(func(context.Context, *message.Message, int) (Answer, error) {
			if time.Now().Before(boots) {
				return Answer{}, errors.New("worker cannot boot")
			}
			return Answer{Handlers: []string{"admit"}}, nil
		}))
		r.start()
		r.receive("adt", "A01", "A03")
		r.pass(time.Minute)
		r.is(1, message.Received, "")
		emr.got(t)
		r.pass(2 * time.Minute)
		emr.got(t, "A01", "A03")
		if r.saw("held inbound adt") < 3 || r.saw("released inbound adt") != 1 {
			t.Errorf("observer saw %q", r.events)
		}
	})
}
