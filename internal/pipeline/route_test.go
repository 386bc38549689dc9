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

// TestRoutedAtOnce: where no router has to be asked, a message is routed in the transaction that receives it. Red with plans
// left out of Receive, and "after what waits" with the look for what waits left out of the store (storetest looks there, too).
func TestRoutedAtOnce(t *testing.T) {
	atOnce := func(r *rig) *peer {
		emr := toEMR(r, nil)
		r.store.fault = func(call string) (error, bool) {
			if call == "Route" {
				r.event("route")
			}
			return nil, false
		}
		return emr
	}
	t.Run("at once", func(t *testing.T) {
		inTime(t, func(r *rig) {
			emr := atOnce(r)
			r.start()
			r.receive("adt", "A01", "A02")
			emr.got(t, "A01", "A02")
			if n := r.saw("route"); n != 0 {
				t.Errorf("%d messages were routed by themselves", n)
			}
		})
	})
	t.Run("after what waits", func(t *testing.T) {
		inTime(t, func(r *rig) {
			emr := atOnce(r)
			r.start()
			if err := r.store.Hold(r.t.Context(), message.Hold{Target: routing("adt"), Reason: "by hand"}); err != nil {
				t.Fatal(err)
			}
			r.p.Look(routing("adt"))
			r.receive("adt", "A01", "A02")
			emr.got(t)
			if _, err := r.p.Release(r.t.Context(), routing("adt"), false); err != nil {
				t.Fatal(err)
			}
			r.receive("adt", "A03")
			r.pass(time.Second)
			emr.got(t, "A01", "A02", "A03")
		})
	})
}

// TestReceiveOutlivesNoRun: Run does not return while a message is being received under the plans of its handlers, and gives up
// one that the store does not end. Red without endReceiving, and without late in Receive.
func TestReceiveOutlivesNoRun(t *testing.T) {
	for name, c := range map[string]struct {
		takes, stop time.Duration
		received    int
	}{
		"slow":  {3 * time.Second, 2 * time.Second, 1},
		"hangs": {time.Hour, commitWithin, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(r *rig) {
				toEMR(r, nil)
				r.store.latency = func(call string) time.Duration {
					if call == "Receive" {
						return c.takes
					}
					return 0
				}
				r.start()
				told := make(chan error, 1)
				go func() {
					_, err := r.p.Receive(r.t.Context(), message.Incoming{Inbound: "adt", Body: []byte("A01")})
					told <- err
				}()
				r.pass(time.Second)
				if took := r.stop(); took != c.stop {
					t.Errorf("the stop took %v, want %v", took, c.stop)
				}
				if err := <-told; (err == nil) != (c.received == 1) || len(r.store.messages) != c.received {
					t.Errorf("%v, %d messages", err, len(r.store.messages))
				}
			})
		})
	}
}

// TestHandlerHasAnotherOutbound: what waits for a handler may go where the handler may send now, and might not when the message was
// routed, in its order. Red without extend in Run.
func TestHandlerHasAnotherOutbound(t *testing.T) {
	inTime(t, func(r *rig) {
		emr, lab := r.outbound("emr", nil), r.outbound("lab", nil)
		r.handler("admit", failing(errors.New("worker cannot boot")), "emr")
		r.inbound("adt", nil, "admit")
		r.start()
		r.receive("adt", "A01", "A02")
		r.stop()
		r.cfg.Handlers[0].To = []string{"emr", "lab"}
		r.cfg.Handlers[0].Runner = sendTo("emr", "lab")
		r.start()
		r.receive("adt", "A03")
		r.pass(time.Minute)
		emr.got(t, "A01", "A02", "A03")
		lab.got(t, "A01", "A02", "A03")
		r.is(1, message.Processed, "")
	})
}
