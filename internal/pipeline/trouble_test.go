package pipeline

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"coppice.dev/coppice/internal/message"
)

// badAndGood makes a receiver that turns down "dead" for good, is out of reach for the first try of "late", and takes all
// else.
func badAndGood() func(context.Context, message.Delivery) error {
	late := true
	return func(_ context.Context, d message.Delivery) error {
		switch string(d.Body) {
		case "dead":
			return &message.Rejection{Code: "AR", Final: true}
		case "late":
			if late {
				late = false
				return errors.New("down")
			}
		}
		return nil
	}
}

// TestUnknownCommit: a commit that happened although the store could not tell is not made again, and whoever is next hears
// of it at once. Guards seen red: with each kick moved behind the look at the error, "A01" moves only after a hold or more;
// without last, the body is sent twice; with no look at the attempts in settle, the retry counts twice.
func TestUnknownCommit(t *testing.T) {
	for _, c := range []struct {
		call, body string
		at         time.Duration // by when it is delivered, or dead
	}{
		{"Receive", "A01", 0}, {"Route", "A01", 0}, {"EndRun", "A01", 0}, {"Delivered", "A01", 0},
		{"Retry", "late", time.Second}, {"Bury", "dead", 0},
	} {
		t.Run(c.call, func(t *testing.T) {
			inTime(t, func(r *rig) {
				once := true
				r.store.fault = func(call string) (error, bool) {
					if call == c.call && once {
						once = false
						return errFull, true
					}
					return nil, false
				}
				emr := toEMR(r, badAndGood())
				r.start()
				_, err := r.p.Receive(r.t.Context(), message.Incoming{Inbound: "adt", Body: []byte(c.body)})
				if (err != nil) != (c.call == "Receive") {
					t.Errorf("receive: %v", err)
				}
				synctest.Wait()
				r.pass(c.at)
				want, tries := message.Delivered, 1
				if c.body == "dead" {
					want = message.Dead
				}
				if c.body == "late" {
					tries = 2
				}
				if d := r.delivery(1); d.State != want || d.Attempts != tries {
					t.Errorf("after %v the delivery is %s after %d attempts, want %s after %d", c.at, d.State, d.Attempts, want, tries)
				}
				r.pass(2 * time.Minute)
				if emr.tries() != tries {
					t.Errorf("%d tries, want %d", emr.tries(), tries)
				}
				if seen := r.saw("sent 0000000001-1") + r.saw("buried 0000000001-1"); seen != 1 || r.saw("retried 0000000001-1") != tries-1 {
					t.Errorf("observer saw %q", r.events)
				}
			})
		})
	}
}

// TestLateCommit: a commit that shows only after its kick is found all the same. Seen red with an idle that waits for kicks
// alone.
func TestLateCommit(t *testing.T) {
	inTime(t, func(r *rig) {
		emr := toEMR(r, nil)
		r.start()
		synctest.Wait()
		if _, _, err := r.store.ReceiveRouted(t.Context(), message.Incoming{Inbound: "adt", Body: []byte("A01")}, nil); err != nil {
			t.Fatal(err)
		}
		r.pass(lookAgain)
		emr.got(t, "A01")
	})
}

// TestStoreFailsForAWhile: whatever call it is, the work is held and goes on, nothing is lost, and nothing is sent twice.
// Guard seen red: without last, "Delivered" and "Bury" send again after each hold.
func TestStoreFailsForAWhile(t *testing.T) {
	for _, failing := range []string{"Extend", "NextReceived", "Route", "NextRuns", "EndRun", "Heads", "DeliveryBody", "Delivered", "Retry", "Bury", "all"} {
		t.Run(failing, func(t *testing.T) {
			inTime(t, func(r *rig) {
				until, failed := time.Now().Add(100*time.Second), 0
				r.store.fault = func(call string) (error, bool) {
					if (call == failing || failing == "all" && call != "Receive") && time.Now().Before(until) {
						failed++
						return errFull, false
					}
					return nil, false
				}
				emr := toEMR(r, badAndGood())
				r.cfg.Inbounds[0].Router = choose("admit") // without one, a message is routed in its Receive
				r.start()
				r.receive("adt", "A01", "late", "dead", "A03")
				r.pass(5 * time.Minute)
				if failed == 0 {
					t.Error("nothing failed")
				}
				emr.got(t, "A01", "late", "A03")
				if emr.tries() != 5 {
					t.Errorf("%d tries, want 5", emr.tries())
				}
				for id, want := range []message.Disposition{message.Processed, message.Processed, message.Error, message.Processed} {
					reason := ""
					if want == message.Error {
						reason = "rejected with AR"
					}
					r.is(message.ID(id+1), want, reason)
				}
			})
		})
	}
}

// TestStoreFailsAtStop: what is known of a delivery when the stop comes is recorded if the store can by then, and else the
// delivery repeats. Guard seen red: without settleAtStop the first case repeats, too.
func TestStoreFailsAtStop(t *testing.T) {
	for name, c := range map[string]struct {
		down time.Duration
		took []string
	}{
		"back by then":  {500 * time.Millisecond, []string{"A01"}},
		"still failing": {time.Minute, []string{"A01", "A01"}},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(r *rig) {
				until := time.Now().Add(c.down)
				r.store.fault = func(call string) (error, bool) {
					if call == "Delivered" && time.Now().Before(until) {
						return errFull, false
					}
					return nil, false
				}
				emr := toEMR(r, nil)
				r.start()
				r.receive("adt", "A01")
				r.pass(700 * time.Millisecond)
				if took := r.stop(); took != 0 {
					t.Errorf("the stop took %v", took)
				}
				time.Sleep(time.Minute)
				r.start()
				r.pass(time.Second)
				emr.got(t, c.took...)
				r.is(1, message.Processed, "")
			})
		})
	}
}

// TestEndedByOthers: a delivery that an operator ended while it was on its way does not hold its lane. Guard seen red: with a
// settle that records without a look at the heads, the outbound is held for ever.
func TestEndedByOthers(t *testing.T) {
	inTime(t, func(r *rig) {
		emr := toEMR(r, func(_ context.Context, d message.Delivery) error {
			if d.ID == 1 {
				r.store.mu.Lock()
				defer r.store.mu.Unlock()
				r.store.deliveries[0].State = message.Closed
			}
			return nil
		})
		r.start()
		r.receive("adt", "A01", "A03")
		r.pass(time.Second)
		emr.got(t, "A01", "A03")
	})
}

// TestChangedConfiguration: a run goes on under the plan that routing made for it. Where its handler has gone it waits, and
// so does its lane; where its handler may name other outbounds now, it may still name those of its plan.
func TestChangedConfiguration(t *testing.T) {
	inTime(t, func(r *rig) {
		emr, archive := r.outbound("emr", nil), r.outbound("archive", nil)
		r.handler("old", failing(errors.New("worker cannot boot")), "emr")
		r.handler("keep", failing(errors.New("worker cannot boot")), "archive")
		r.inbound("adt", nil, "old", "keep")
		r.inbound("lab", nil, "keep")
		r.start()
		r.receive("adt", "A01")
		r.stop()

		r.cfg.Handlers = nil
		r.handler("keep", sendTo("archive"), "emr")
		r.cfg.Inbounds = nil
		r.inbound("adt", nil, "keep")
		r.start()
		r.pass(time.Hour)
		archive.got(t, "A01")
		r.is(1, message.Routed, "")
		r.stop()

		r.handler("old", sendTo("emr"), "emr")
		r.start()
		synctest.Wait()
		emr.got(t, "A01")
		r.is(1, message.Processed, "")
	})
}
