package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"coppice.dev/coppice/internal/message"
)

// toEMR adds an inbound, a handler that passes messages on, and an outbound with this answer.
func toEMR(r *rig, answer func(context.Context, message.Delivery) error) *peer {
	emr := r.outbound("emr", answer)
	r.handler("admit", sendTo("emr"), "emr")
	r.inbound("adt", nil, "admit")
	return emr
}

// TestRetry: an outage is waited out, with delays that double up to the cap, and nothing overtakes. Guards seen red: with
// s.due not set in again, the tries do not wait and fake time stands still; with the number of failures left
// out of delay, they do not double.
func TestRetry(t *testing.T) {
	inTime(t, func(r *rig) {
		up := time.Now().Add(time.Minute)
		emr := toEMR(r, func(context.Context, message.Delivery) error {
			if time.Now().Before(up) {
				return errors.New("connection refused")
			}
			return nil
		})
		r.start()
		r.receive("adt", "A01", "A03")
		r.pass(50 * time.Second)
		if d := r.delivery(1); d.Reason != "connection refused" || d.Rejected != 0 || d.State != message.Ready {
			t.Errorf("the delivery is recorded as %+v", d)
		}
		r.pass(30 * time.Second)
		emr.got(t, "A01", "A03")
		waits := emr.waits()
		for i, longest := range []time.Duration{1, 2, 4, 8, 10, 10} {
			longest *= time.Second
			if waits[i] > longest || waits[i] < longest*9/10 {
				t.Errorf("wait %d is %v, want %v or up to a tenth less", i, waits[i], longest)
			}
		}
		if n := emr.tries(); n < 11 || n > 12 || r.saw("retried 0000000001-1") != n-2 || r.saw("sent 0000000001-1") != 1 {
			t.Errorf("%d tries; observer saw %q", n, r.events)
		}
	})
}

// TestWeekend: a partner that is away from Friday evening to Monday morning gets everything, in order, and nothing has become a
// dead letter; nor was it asked more often than once in the longest wait. Red with a number of tries after which ended buries.
func TestWeekend(t *testing.T) {
	inTime(t, func(r *rig) {
		back := time.Now().Add(62 * time.Hour)
		emr := toEMR(r, func(context.Context, message.Delivery) error {
			if time.Now().Before(back) {
				return errors.New("connection refused")
			}
			return nil
		})
		r.cfg.Outbounds[0].Retry.Max = 5 * time.Minute
		r.start()
		var want []string
		for n := range 124 {
			typ := fmt.Sprint(n)
			want = append(want, typ)
			r.receive("adt", typ)
			r.pass(30 * time.Minute)
		}
		r.pass(10 * time.Minute)
		emr.got(t, want...)
		if n := emr.tries(); n > 124+62*60/4 {
			t.Errorf("%d tries in 62 hours", n)
		}
		for id := range message.ID(124) {
			r.is(id+1, message.Processed, "")
		}
	})
}

// TestRejected: what is turned down is a dead letter after Retry.Rejected tries, or at once if it is final; the lane goes
// on. Guards seen red: with > for >= in ended there is a fourth try; without rejection.Final, AR is tried three times; with
// rejected always true for Retry, a timeout counts as a rejection.
func TestRejected(t *testing.T) {
	ae := &message.Rejection{Code: "AE", Text: "no such bed"}
	timeout := errors.New("no ACK in 30s")
	for _, c := range []struct {
		name   string
		errs   []error // of the tries; then it is taken
		reason string
		tries  int
	}{
		{"AE twice", []error{ae, ae}, "", 3},
		{"AE three times", []error{ae, ae, ae, ae}, "rejected with AE: no such bed", 3},
		{"AE among timeouts", []error{ae, timeout, timeout, ae, timeout}, "", 6},
		{"wrapped", []error{fmt.Errorf("send: %w", ae), ae, ae}, "rejected with AE: no such bed", 3},
		{"AR", []error{&message.Rejection{Code: "AR", Final: true}}, "rejected with AR", 1},
		{"AR after a timeout", []error{timeout, &message.Rejection{Code: "AR", Text: "x", Final: true}}, "rejected with AR: x", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			inTime(t, func(r *rig) {
				tries := 0
				emr := toEMR(r, func(_ context.Context, d message.Delivery) error {
					if d.Type == "" && string(d.Body) == "bad" {
						if tries++; tries <= len(c.errs) {
							return c.errs[tries-1]
						}
					}
					return nil
				})
				r.start()
				r.receive("adt", "bad", "A03")
				r.pass(time.Minute)
				if tries != c.tries {
					t.Errorf("%d tries, want %d", tries, c.tries)
				}
				r.is(2, message.Processed, "")
				if c.reason == "" {
					r.is(1, message.Processed, "")
					emr.got(t, "bad", "A03")
					return
				}
				r.is(1, message.Error, c.reason)
				emr.got(t, "A03")
				if r.saw("buried 0000000001-1") != 1 {
					t.Errorf("observer saw %q", r.events)
				}
			})
		})
	}
}

// TestRestartClampsWaits: after a restart the wait is what the store has, by the wall clock, but never longer than the cap.
// Guards seen red: without min in pick the jumped clock costs a day; without NextTry the restart tries at once.
func TestRestartClampsWaits(t *testing.T) {
	for _, c := range []struct {
		name    string
		nextTry time.Duration // from the restart on, by the wall clock
		wait    time.Duration
	}{
		{"overdue", -time.Hour, 0},
		{"due soon", 4 * time.Second, 4 * time.Second},
		{"the clock was set back", 24 * time.Hour, 10 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			inTime(t, func(r *rig) {
				var up atomic.Bool
				emr := toEMR(r, func(context.Context, message.Delivery) error {
					if !up.Load() {
						return errors.New("down")
					}
					return nil
				})
				r.start()
				r.receive("adt", "A01")
				r.stop()
				up.Store(true)
				began := time.Now()
				r.store.deliveries[0].NextTry = began.Add(c.nextTry).Round(0)
				r.start()
				r.pass(time.Minute)
				emr.got(t, "A01")
				if emr.tries() != 2 || emr.tried[1].Sub(began) != c.wait {
					t.Errorf("tried at %v, started at %v, want a wait of %v", emr.tried, began, c.wait)
				}
			})
		})
	}
}

// TestWaitsIgnoreTheWallClock: while running, a wait is measured by the monotonic clock, whatever the store says. Guard
// seen red: with NextTry taken before due in pick, the retry waits for a day.
func TestWaitsIgnoreTheWallClock(t *testing.T) {
	inTime(t, func(r *rig) {
		var up atomic.Bool
		emr := toEMR(r, func(context.Context, message.Delivery) error {
			if !up.Load() {
				return errors.New("down")
			}
			return nil
		})
		r.start()
		r.receive("adt", "A01")
		up.Store(true)
		r.store.mu.Lock()
		r.store.deliveries[0].NextTry = time.Now().Add(24 * time.Hour).Round(0)
		r.store.mu.Unlock()
		r.pass(time.Second)
		emr.got(t, "A01")
	})
}

// TestBodiesOfWhatIsSent: a body is read when it is sent, and not each time that somebody looks at the heads. Seen red with the
// bodies of all heads read in step.
func TestBodiesOfWhatIsSent(t *testing.T) {
	inTime(t, func(r *rig) {
		read := 0
		r.store.fault = func(call string) (error, bool) {
			if call == "DeliveryBody" {
				read++
			}
			return nil, false
		}
		emr := toEMR(r, func(_ context.Context, d message.Delivery) error {
			if d.Inbound == "adt" {
				return errors.New("down")
			}
			return nil
		})
		r.inbound("lab", nil, r.cfg.Handlers[0].Name)
		r.start()
		r.receive("adt", "A01")
		r.receive("lab", "R01", "R02", "R03")
		r.pass(time.Minute)
		r.store.mu.Lock()
		defer r.store.mu.Unlock()
		if read != emr.tries() {
			t.Errorf("%d bodies were read for %d tries", read, emr.tries())
		}
	})
}

// TestReceiveErrors: an error of the store's is told once, in its words. Red with a "receive: " of the pipeline's own.
func TestReceiveErrors(t *testing.T) {
	inTime(t, func(r *rig) {
		r.store.fault = func(string) (error, bool) { return errFull, false }
		r.inbound("adt", nil)
		r.start()
		if _, err := r.p.Receive(r.t.Context(), message.Incoming{Inbound: "adt"}); err == nil || err.Error() != errFull.Error() {
			t.Errorf("got error %v", err)
		}
	})
}

// TestReservedHeadsDoNotSpin: heads that are reserved, or not due, make the outbound wait for a kick and not ask again and
// again. Seen red with an idle that waits for a millisecond where it is to wait for a kick.
func TestReservedHeadsDoNotSpin(t *testing.T) {
	inTime(t, func(r *rig) {
		asked := 0
		r.store.fault = func(call string) (error, bool) {
			if call == "Heads" {
				asked++
			}
			return nil, false
		}
		r.outbound("emr", nil)
		r.handler("slow", sendTo("emr").after(time.Hour), "emr")
		r.inbound("adt", nil, "slow")
		r.start()
		r.receive("adt", "A01")
		r.pass(lookAgain * 10)
		r.store.mu.Lock()
		defer r.store.mu.Unlock()
		if asked > 12 {
			t.Errorf("asked for heads %d times in %v", asked, lookAgain*10)
		}
	})
}
