package pipeline

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"coppice.dev/coppice/internal/message"
)

// TestBadDeploy: a handler that fails on every message is held after so many, and no further message fails; another
// handler goes on. Released with code that works, it takes up the queue, and what failed can be replayed. Guards seen red:
// without HoldAfter in handle all messages fail; without changed after it, one more does.
func TestBadDeploy(t *testing.T) {
	inTime(t, func(r *rig) {
		var mended atomic.Bool
		emr, lab := r.outbound("emr", nil), r.outbound("lab", nil)
		r.handler("admit", function(func(ctx context.Context, m *message.Message, n int) (Answer, error) {
			if !mended.Load() {
				return Answer{}, fails(TheMessage, "handler", "KeyError", "PID")
			}
			return sendTo("emr")(ctx, m, n)
		}), "emr")
		r.handler("copy", sendTo("lab"), "lab")
		r.cfg.Handlers[0].HoldAfter = 3
		r.inbound("adt", nil, "admit", "copy")
		r.start()
		r.receive("adt", "1", "2", "3", "4", "5")
		if n := r.saw("held until released handler admit"); n != 1 {
			t.Errorf("held %d times, want once; observer saw %q", n, r.events)
		}
		r.is(3, message.Error, "KeyError: PID")
		r.is(4, message.Routed, "")
		lab.got(t, "1", "2", "3", "4", "5")

		r.stop()
		r.start() // the hold outlives the engine
		r.pass(time.Hour)
		r.is(4, message.Routed, "")

		mended.Store(true)
		if _, err := r.p.Release(r.t.Context(), running("admit"), false); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Second)
		emr.got(t, "4", "5")
		names := message.Names{Handlers: map[string]message.Plan{"admit": {Handler: "admit", To: []string{"emr"}}}}
		for id := range message.ID(3) {
			if _, err := r.p.Replay(r.t.Context(), id+1, names); err != nil {
				t.Fatal(err)
			}
		}
		r.pass(time.Second)
		emr.got(t, "4", "5", "1", "2", "3")
		lab.got(t, "1", "2", "3", "4", "5")
		for id := range message.ID(5) {
			r.is(id+1, message.Processed, "")
		}
	})
}

// TestBadRouter: a router that fails on every message holds its inbound, and messages are still received. Red without
// HoldAfter in route.
func TestBadRouter(t *testing.T) {
	inTime(t, func(r *rig) {
		var mended atomic.Bool
		emr := r.outbound("emr", nil)
		r.handler("admit", sendTo("emr"), "emr")
		r.inbound("adt", function(func(context.Context, *message.Message, int) (Answer, error) {
			if !mended.Load() {
				return Answer{}, fails(TheMessage, "handler", "KeyError", "MSH")
			}
			return Answer{Handlers: []string{"admit"}}, nil
		}))
		r.cfg.Inbounds[0].HoldAfter = 2
		r.start()
		r.receive("adt", "1", "2", "3")
		r.is(3, message.Received, "")
		mended.Store(true)
		if _, err := r.p.Replay(r.t.Context(), 1, message.Names{}); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Minute)
		r.is(1, message.Received, "") // it is held
		if _, err := r.p.Release(r.t.Context(), routing("adt"), false); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Second)
		emr.got(t, "1", "3")
		r.is(2, message.Error, "KeyError: MSH")
	})
}

// TestRejectedHolds: with Retry.Hold what is rejected for good stays the head of its lane, which waits; the lane of another
// inbound goes on. Released, it is sent again, or buried, and what is behind it follows in order. Guards seen red: without
// released in step the lane is not held and the receiver is asked without end; with the whole outbound looked up in its
// place, the other lane waits too.
func TestRejectedHolds(t *testing.T) {
	for _, bury := range []bool{false, true} {
		t.Run(fmt.Sprintf("bury=%t", bury), func(t *testing.T) {
			inTime(t, func(r *rig) {
				var ward atomic.Bool
				emr := toEMR(r, func(_ context.Context, d message.Delivery) error {
					if string(d.Body) == "bad" && !ward.Load() {
						return &message.Rejection{Code: "AR", Text: "no such ward", Final: true}
					}
					return nil
				})
				r.inbound("lab", nil, "admit")
				r.cfg.Outbounds[0].Retry.Hold = true
				r.start()
				r.receive("adt", "good", "bad", "next")
				r.receive("lab", "other")
				r.pass(24 * time.Hour)
				emr.got(t, "good", "other")
				if n := emr.tries(); n != 3 {
					t.Errorf("%d tries, want 3", n)
				}
				if r.saw("parked 0000000002-1") != 1 || r.saw("held until released outbound emr, lane of adt") != 1 {
					t.Errorf("observer saw %q", r.events)
				}
				ward.Store(true)
				released, err := r.p.Release(r.t.Context(), delivering("emr"), bury)
				if err != nil || len(released) != 1 || released[0].Reason != "delivery 0000000002-1: rejected with AR: no such ward" {
					t.Errorf("released %+v, error %v", released, err)
				}
				r.pass(time.Second)
				if bury {
					emr.got(t, "good", "other", "next")
					r.is(2, message.Error, "rejected with AR: no such ward")
				} else {
					emr.got(t, "good", "other", "bad", "next")
					r.is(2, message.Processed, "")
				}
				if r.saw("released outbound emr, lane of adt") != 1 {
					t.Errorf("observer saw %q", r.events)
				}
			})
		})
	}
}

// TestHoldByHand: what is held does not move, whatever its kind; what is under way ends; a release sets it going at once.
// Red, for each kind, without the look at held in its loop.
func TestHoldByHand(t *testing.T) {
	for _, target := range []message.Target{routing("adt"), running("admit"), delivering("emr")} {
		t.Run(target.String(), func(t *testing.T) {
			inTime(t, func(r *rig) {
				emr := toEMR(r, func(ctx context.Context, _ message.Delivery) error {
					if !sleep(ctx, time.Second) {
						return ctx.Err()
					}
					return nil
				})
				r.start()
				r.receive("adt", "1")
				if err := r.p.Hold(r.t.Context(), message.Hold{Target: target, Reason: "by hand"}); err != nil {
					t.Fatal(err)
				}
				r.receive("adt", "2")
				r.pass(time.Hour)
				emr.got(t, "1")
				began := time.Now()
				if _, err := r.p.Release(r.t.Context(), target, false); err != nil {
					t.Fatal(err)
				}
				r.pass(2 * time.Second)
				emr.got(t, "1", "2")
				if last := emr.tried[len(emr.tried)-1]; last.Sub(began) > time.Second {
					t.Errorf("it went on %v after the release", last.Sub(began))
				}
			})
		})
	}
}

// TestReplayedDelivery: a dead letter is sent again with the bytes that are stored, behind what waits in its lane.
func TestReplayedDelivery(t *testing.T) {
	inTime(t, func(r *rig) {
		var up, ward atomic.Bool
		up.Store(true)
		emr := toEMR(r, func(_ context.Context, d message.Delivery) error {
			switch {
			case !up.Load():
				return fmt.Errorf("connection refused")
			case string(d.Body) == "bad" && !ward.Load():
				return &message.Rejection{Code: "AR", Final: true}
			}
			return nil
		})
		r.start()
		r.receive("adt", "bad", "2")
		r.is(1, message.Error, "rejected with AR")
		up.Store(false)
		r.receive("adt", "3")
		done, err := r.p.Replay(r.t.Context(), 1, message.Names{})
		if err != nil || len(done.Sends) != 1 || done.Sends[0].Name() != "0000000001-2" {
			t.Errorf("replayed %+v, error %v", done, err)
		}
		up.Store(true)
		ward.Store(true)
		r.pass(time.Minute)
		emr.got(t, "2", "3", "bad")
		r.is(1, message.Processed, "")
	})
}

// TestGiveUp: a delivery that is tried again and again is given up on by hand, and never while it is being sent. Red without the
// wait for busy in Release: what the receiver takes then is a dead letter.
func TestGiveUp(t *testing.T) {
	inTime(t, func(r *rig) {
		var sending, taken atomic.Bool
		emr := toEMR(r, func(ctx context.Context, d message.Delivery) error {
			if string(d.Body) != "bad" || taken.Load() {
				return nil
			}
			sending.Store(true)
			sleep(ctx, time.Minute)
			sending.Store(false)
			return fmt.Errorf("answered 500")
		})
		r.start()
		r.receive("adt", "bad", "next")
		r.pass(30 * time.Second)
		lane := delivering("emr")
		lane.Inbound = "adt"
		if released, err := r.p.Release(r.t.Context(), lane, true); err != nil || len(released) != 0 {
			t.Errorf("what was not held: %+v, %v", released, err)
		}
		r.pass(30 * time.Second) // it has been tried, and is tried again
		if err := r.p.Hold(r.t.Context(), message.Hold{Target: lane, Reason: "by hand"}); err != nil {
			t.Fatal(err)
		}
		if !sending.Load() {
			t.Error("it is not being sent")
		}
		if _, err := r.p.Release(r.t.Context(), lane, true); err != nil {
			t.Fatal(err)
		}
		if sending.Load() {
			t.Error("it was given up on while it was being sent")
		}
		r.pass(time.Minute)
		r.is(1, message.Error, "answered 500")
		emr.got(t, "next")
	})
}

// TestTryNow: a release has an outbound try again what waits for its next try, unless it was to give up on something, and nothing
// was held. Red without now in Release, and with it set whatever was released.
func TestTryNow(t *testing.T) {
	inTime(t, func(r *rig) {
		var up atomic.Bool
		emr := toEMR(r, func(context.Context, message.Delivery) error {
			if !up.Load() {
				return fmt.Errorf("connection refused")
			}
			return nil
		})
		r.cfg.Outbounds[0].Retry = Retry{First: time.Hour, Max: time.Hour, Rejected: 3}
		r.start()
		r.receive("adt", "1")
		r.pass(time.Minute)
		up.Store(true)
		if _, err := r.p.Release(r.t.Context(), delivering("emr"), true); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Second)
		emr.got(t)
		if _, err := r.p.Release(r.t.Context(), delivering("emr"), false); err != nil {
			t.Fatal(err)
		}
		r.pass(0)
		emr.got(t, "1")
	})
}
