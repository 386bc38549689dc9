package pipeline

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"coppice.dev/coppice/internal/message"
)

// crowd is an outbound that keeps no order, and its receiver.
type crowd struct {
	answer func(ctx context.Context, d message.Delivery) error

	mu    sync.Mutex
	out   int
	most  int            // that were out at once
	tried map[string]int // by body
	took  []string       // bodies
}

func (c *crowd) Send(ctx context.Context, d message.Delivery) (message.Receipt, error) {
	c.mu.Lock()
	c.out++
	c.most = max(c.most, c.out)
	c.tried[string(d.Body)]++
	c.mu.Unlock()
	var err error
	if c.answer != nil {
		err = c.answer(ctx, d)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out--
	if err == nil {
		c.took = append(c.took, string(d.Body))
	}
	return message.Receipt{}, err
}

// got checks what the receiver took, in any order.
func (c *crowd) got(t *testing.T, want ...string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	took := slices.Sorted(slices.Values(c.took))
	if want := slices.Sorted(slices.Values(want)); !slices.Equal(took, want) {
		t.Errorf("receiver took %q, want %q", took, want)
	}
}

// times is how often a body was tried.
func (c *crowd) times(body string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tried[body]
}

// all is which bodies were tried.
func (c *crowd) all() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.tried))
}

// taken is what the receiver took, in order.
func (c *crowd) taken() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.took)
}

// outNow checks how many are out, and how many were at most.
func (c *crowd) outNow(t *testing.T, now, most int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out != now || c.most != most {
		t.Errorf("%d out, at most %d at once; want %d and %d", c.out, c.most, now, most)
	}
}

// toCrowd adds an inbound, a handler that passes messages on, and an outbound that has this many out at once.
func toCrowd(r *rig, parallel int, answer func(context.Context, message.Delivery) error) *crowd {
	c := &crowd{answer: answer, tried: map[string]int{}}
	r.cfg.Outbounds = append(r.cfg.Outbounds, Outbound{Name: "emr", Sender: c, Parallel: parallel,
		Retry: Retry{First: time.Second, Max: 10 * time.Second, Rejected: 3}})
	r.handler("admit", sendTo("emr"), "emr")
	r.inbound("adt", nil, "admit")
	return c
}

func numbers(n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprint(i))
	}
	return list
}

func slowly(d time.Duration) func(context.Context, message.Delivery) error {
	return func(ctx context.Context, _ message.Delivery) error {
		if !sleep(ctx, d) {
			return ctx.Err()
		}
		return nil
	}
}

// TestParallel: as many deliveries are out at once as may be, not one more, and each that ends makes room for the next at once. Red
// with a larger busy, and without the kick of a flight that lands.
func TestParallel(t *testing.T) {
	inTime(t, func(r *rig) {
		emr := toCrowd(r, 4, slowly(time.Second))
		r.start()
		r.receive("adt", numbers(20)...)
		emr.outNow(t, 4, 4)
		r.pass(4500 * time.Millisecond)
		emr.outNow(t, 4, 4)
		r.pass(500 * time.Millisecond)
		emr.outNow(t, 0, 4)
		emr.got(t, numbers(20)...)
		for id := range message.ID(20) {
			r.is(id+1, message.Processed, "")
		}
	})
}

// TestUnorderedGoesPast: neither a place that waits for its handler, nor a delivery that is tried again and again, nor one that the
// receiver takes its time over holds up the others. Red at a strict outbound.
func TestUnorderedGoesPast(t *testing.T) {
	inTime(t, func(r *rig) {
		emr := toCrowd(r, 3, func(ctx context.Context, d message.Delivery) error {
			switch string(d.Body) {
			case "bad":
				return errors.New("answered 500")
			case "slow":
				return slowly(time.Hour)(ctx, d)
			}
			return nil
		})
		r.handler("later", sendTo("emr").after(time.Hour), "emr")
		r.cfg.Inbounds[0].Router = function(func(_ context.Context, m *message.Message, _ int) (Answer, error) {
			if m.Type == "reserved" {
				return Answer{Handlers: []string{"later"}}, nil
			}
			return Answer{Handlers: []string{"admit"}}, nil
		})
		r.start()
		r.receive("adt", "reserved", "bad", "slow", "1", "2", "3")
		emr.got(t, "1", "2", "3")
		r.pass(59 * time.Minute)
		r.receive("adt", "4")
		emr.got(t, "1", "2", "3", "4")
		if n := emr.times("bad"); n < 59*6 || n > 59*7 {
			t.Errorf("what fails was tried %d times", n)
		}
		r.pass(time.Minute)
		emr.got(t, "1", "2", "3", "4", "slow", "reserved")
	})
}

// TestUnorderedWindow: when the receiver is away, no more than the first few of each lane are tried, however many wait, and no more
// are asked of the store; then all arrive. Red with a larger window.
func TestUnorderedWindow(t *testing.T) {
	inTime(t, func(r *rig) {
		var up atomic.Bool
		emr := toCrowd(r, 8, func(context.Context, message.Delivery) error {
			if !up.Load() {
				return errors.New("connection refused")
			}
			return nil
		})
		r.inbound("lab", nil, "admit")
		r.start()
		all := numbers(300)
		r.receive("adt", all[:150]...)
		r.receive("lab", all[150:]...)
		r.pass(time.Minute)
		if n := len(emr.all()); n != 128 {
			t.Errorf("%d deliveries were tried, want 64 of each lane", n)
		}
		up.Store(true)
		r.pass(10 * time.Second)
		emr.got(t, all...)
	})
}

// TestUnorderedHolds: with Retry.Hold what is rejected for good holds its lane; what is out ends, another inbound's lane goes on.
// Released, it is sent again, or all that was rejected is buried. Red without released in next.
func TestUnorderedHolds(t *testing.T) {
	for _, bury := range []bool{false, true} {
		t.Run(fmt.Sprintf("bury=%t", bury), func(t *testing.T) {
			inTime(t, func(r *rig) {
				var ward atomic.Bool
				emr := toCrowd(r, 3, func(ctx context.Context, d message.Delivery) error {
					if strings.HasPrefix(string(d.Body), "bad") && !ward.Load() {
						return &message.Rejection{Code: "AR", Final: true}
					}
					return slowly(time.Second)(ctx, d)
				})
				r.inbound("lab", nil, "admit")
				r.cfg.Outbounds[0].Retry.Hold = true
				r.store.latency = func(string) time.Duration { return time.Millisecond } // so that both are out before either is parked
				r.start()
				if err := r.p.Hold(r.t.Context(), message.Hold{Target: running("admit"), Reason: "so that all wait"}); err != nil {
					t.Fatal(err)
				}
				r.receive("adt", "1", "bad2", "bad3", "4", "5")
				r.receive("lab", "6", "7")
				if _, err := r.p.Release(r.t.Context(), running("admit"), false); err != nil {
					t.Fatal(err)
				}
				r.pass(time.Hour)
				if n := r.saw("held until released outbound emr, lane of adt"); n != 1 {
					t.Errorf("observer saw %q", r.events)
				}
				took := len(emr.taken())
				if slices.Contains(emr.taken(), "5") || !slices.Contains(emr.taken(), "7") {
					t.Errorf("receiver took %q while a lane was held", emr.taken())
				}
				ward.Store(true)
				if released, err := r.p.Release(r.t.Context(), delivering("emr"), bury); err != nil || len(released) != 1 {
					t.Errorf("released %+v, error %v", released, err)
				}
				r.pass(time.Minute)
				if bury {
					r.is(2, message.Error, "rejected with AR")
				} else {
					emr.got(t, "1", "bad2", "bad3", "4", "5", "6", "7")
				}
				if len(emr.taken()) == took {
					t.Error("nothing went on after the release")
				}
				r.is(5, message.Processed, "")
			})
		})
	}
}

// TestUnorderedHoldByHand: what is held does not go out, what is out ends, and a release has all of it go on at once.
func TestUnorderedHoldByHand(t *testing.T) {
	inTime(t, func(r *rig) {
		emr := toCrowd(r, 2, slowly(time.Second))
		r.start()
		r.receive("adt", "1", "2", "3", "4")
		if err := r.p.Hold(r.t.Context(), message.Hold{Target: delivering("emr"), Reason: "by hand"}); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Hour)
		emr.got(t, "1", "2")
		if _, err := r.p.Release(r.t.Context(), delivering("emr"), false); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		emr.outNow(t, 2, 2)
		r.pass(time.Second)
		emr.got(t, "1", "2", "3", "4")
	})
}

// TestUnorderedGiveUp: nothing is given up on while it is out; two who give up at once do not wait for one another. Red without the
// wait for all of busy in alone, and without turn.
func TestUnorderedGiveUp(t *testing.T) {
	inTime(t, func(r *rig) {
		times := map[string]time.Duration{"bad": time.Minute, "1": 10 * time.Second, "2": 20 * time.Second}
		var badOut atomic.Bool
		emr := toCrowd(r, 3, func(ctx context.Context, d message.Delivery) error {
			bad := string(d.Body) == "bad"
			if bad {
				badOut.Store(true)
			}
			err := slowly(times[string(d.Body)])(ctx, d)
			if bad {
				badOut.Store(false)
				err = errors.New("answered 500")
			}
			return err
		})
		r.start()
		r.receive("adt", "bad")
		r.pass(time.Minute + 2*time.Second)
		r.receive("adt", "1", "2")
		emr.outNow(t, 3, 3)
		lane := delivering("emr")
		lane.Inbound = "adt"
		if err := r.p.Hold(r.t.Context(), message.Hold{Target: lane, Reason: "by hand"}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(r.t.Context(), time.Hour)
		defer cancel()
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				if _, err := r.p.Release(ctx, lane, true); err != nil {
					t.Error(err)
				}
				if badOut.Load() {
					t.Error("it was given up on while it was out")
				}
			})
		}
		both.Wait()
		r.receive("adt", "3")
		r.pass(10 * time.Minute)
		r.is(1, message.Error, "answered 500")
		if emr.times("bad") != 2 {
			t.Errorf("tried %d times", emr.times("bad"))
		}
		emr.got(t, "1", "2", "3")
	})
}

// TestUnorderedBuried: what was given up on does not go out again, though it was read before. Red with ahead kept in next.
func TestUnorderedBuried(t *testing.T) {
	inTime(t, func(r *rig) {
		emr := toCrowd(r, 2, func(context.Context, message.Delivery) error { return errors.New("answered 500") })
		r.start()
		r.receive("adt", "bad")
		lane := delivering("emr")
		lane.Inbound = "adt"
		if err := r.p.Hold(r.t.Context(), message.Hold{Target: lane, Reason: "by hand"}); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Hour) // it is due by now, and known
		if _, err := r.p.Release(r.t.Context(), lane, true); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Hour)
		r.is(1, message.Error, "answered 500")
		if emr.times("bad") != 1 {
			t.Errorf("tried %d times", emr.times("bad"))
		}
	})
}

// TestUnorderedWaitsIgnoreTheWallClock: as TestWaitsIgnoreTheWallClock, of one that failed while others were read and not out yet. Red
// with ahead kept in forget.
func TestUnorderedWaitsIgnoreTheWallClock(t *testing.T) {
	inTime(t, func(r *rig) {
		emr := toCrowd(r, 1, nil)
		emr.answer = func(_ context.Context, d message.Delivery) error {
			if string(d.Body) == "bad" && emr.times("bad") == 1 {
				return errors.New("down")
			}
			if string(d.Body) == "1" {
				r.store.mu.Lock()
				defer r.store.mu.Unlock()
				r.store.deliveries[0].NextTry = time.Now().Add(24 * time.Hour).Round(0)
			}
			return nil
		}
		r.start()
		if err := r.p.Hold(r.t.Context(), message.Hold{Target: delivering("emr"), Reason: "so that all wait"}); err != nil {
			t.Fatal(err)
		}
		r.receive("adt", "bad", "1", "2", "3")
		if _, err := r.p.Release(r.t.Context(), delivering("emr"), false); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Second)
		emr.got(t, "1", "2", "3", "bad")
	})
}

// TestUnorderedTryNow: a release has all that waits for its next try tried at once. Red without now in look.
func TestUnorderedTryNow(t *testing.T) {
	inTime(t, func(r *rig) {
		var up atomic.Bool
		emr := toCrowd(r, 2, func(context.Context, message.Delivery) error {
			if !up.Load() {
				return errors.New("connection refused")
			}
			return nil
		})
		r.cfg.Outbounds[0].Retry = Retry{First: time.Hour, Max: time.Hour, Rejected: 3}
		r.start()
		r.receive("adt", numbers(5)...)
		r.pass(time.Minute)
		up.Store(true)
		if _, err := r.p.Release(r.t.Context(), delivering("emr"), false); err != nil {
			t.Fatal(err)
		}
		r.pass(0)
		emr.got(t, numbers(5)...)
	})
}

// TestTryNowOfAHeldLane: the release of a lane that is held has it tried at once, though somebody looked at it just before. Red with
// now set before the commit in Release.
func TestTryNowOfAHeldLane(t *testing.T) {
	for _, parallel := range []int{0, 2} {
		t.Run(fmt.Sprintf("parallel=%d", parallel), func(t *testing.T) {
			inTime(t, func(r *rig) {
				var up atomic.Bool
				r.store.latency = func(call string) time.Duration {
					if call == "Release" {
						r.p.kick(delivering("emr"))
						return time.Second
					}
					return 0
				}
				emr := toCrowd(r, parallel, func(context.Context, message.Delivery) error {
					if !up.Load() {
						return errors.New("connection refused")
					}
					return nil
				})
				r.cfg.Outbounds[0].Retry = Retry{First: time.Hour, Max: time.Hour, Rejected: 3}
				r.start()
				r.receive("adt", "1")
				if err := r.p.Hold(r.t.Context(), message.Hold{Target: delivering("emr"), Reason: "by hand"}); err != nil {
					t.Fatal(err)
				}
				r.pass(time.Minute)
				up.Store(true)
				if _, err := r.p.Release(r.t.Context(), delivering("emr"), false); err != nil {
					t.Fatal(err)
				}
				r.pass(0)
				emr.got(t, "1")
			})
		})
	}
}

// TestUnorderedStop: what is out at a stop may end within the grace, and nothing begins; what is cut short is charged to nobody and
// repeats: no more than may be out at once. Red with hard for ctx in flyAll.
func TestUnorderedStop(t *testing.T) {
	inTime(t, func(r *rig) {
		stuck := true
		emr := toCrowd(r, 3, func(ctx context.Context, d message.Delivery) error {
			if stuck && string(d.Body) != "0" {
				<-ctx.Done()
				return ctx.Err()
			}
			return slowly(time.Second)(ctx, d)
		})
		r.start()
		r.receive("adt", numbers(9)...)
		if took := r.stop(); took != r.cfg.Grace {
			t.Errorf("the stop took %v, want the grace of %v", took, r.cfg.Grace)
		}
		emr.got(t, "0")
		if len(emr.all()) != 3 {
			t.Errorf("tried before the stop: %v", emr.all())
		}
		for id := range int64(9) {
			if d := r.delivery(id + 1); id > 0 && (d.State != message.Ready || d.Attempts != 0) {
				t.Errorf("the delivery is recorded as %+v", d)
			}
		}
		stuck = false
		r.start()
		r.pass(time.Minute)
		emr.got(t, numbers(9)...)
		repeats := 0
		for _, body := range emr.all() {
			repeats += emr.times(body) - 1
		}
		if repeats != 2 {
			t.Errorf("%d repeats, want the two that were cut short", repeats)
		}
	})
}

// TestUnorderedRestartClampsWaits: as TestRestartClampsWaits, of all at once.
func TestUnorderedRestartClampsWaits(t *testing.T) {
	inTime(t, func(r *rig) {
		var up atomic.Bool
		emr := toCrowd(r, 2, func(context.Context, message.Delivery) error {
			if !up.Load() {
				return errors.New("down")
			}
			return nil
		})
		r.start()
		r.receive("adt", "soon", "far")
		r.stop()
		up.Store(true)
		r.store.deliveries[0].NextTry = time.Now().Add(4 * time.Second).Round(0)
		r.store.deliveries[1].NextTry = time.Now().Add(24 * time.Hour).Round(0)
		r.start()
		r.pass(3 * time.Second)
		emr.got(t)
		r.pass(time.Second)
		emr.got(t, "soon")
		r.pass(6 * time.Second)
		emr.got(t, "soon", "far")
	})
}

// TestUnorderedStoreFails: what the receiver has taken is not sent again because the store does not take note of it for a while. Red
// without open: a landing that is not recorded is forgotten.
func TestUnorderedStoreFails(t *testing.T) {
	for _, happens := range []bool{false, true} {
		t.Run(fmt.Sprintf("happens=%t", happens), func(t *testing.T) {
			inTime(t, func(r *rig) {
				full := time.Now().Add(time.Minute)
				r.store.fault = func(call string) (error, bool) {
					if call == "Delivered" && time.Now().Before(full) {
						return errFull, happens
					}
					return nil, false
				}
				emr := toCrowd(r, 4, nil)
				r.start()
				r.receive("adt", numbers(6)...)
				r.pass(time.Hour)
				emr.got(t, numbers(6)...)
				for id := range message.ID(6) {
					r.is(id+1, message.Processed, "")
				}
				if r.saw("sent 0000000001-1") != 1 {
					t.Errorf("observer saw %q", r.events)
				}
			})
		})
	}
}

// slowReady answers with what was ready a while ago.
type slowReady struct{ *memory }

func (s slowReady) Ready(ctx context.Context, outbound string, limit int) ([]message.Delivery, error) {
	list, err := s.memory.Ready(ctx, outbound, limit)
	sleep(ctx, time.Second)
	return list, err
}

// TestUnorderedLandsDuringALook: a delivery that ends while the store is being read is not taken for one that is ready. Red with a
// flight that removes itself from flying, and without the look at flying in look.
func TestUnorderedLandsDuringALook(t *testing.T) {
	inTime(t, func(r *rig) {
		r.cfg.Store = slowReady{r.store}
		emr := toCrowd(r, 4, slowly(1500*time.Millisecond))
		r.start()
		for _, n := range numbers(8) {
			r.receive("adt", n)
			r.pass(700 * time.Millisecond)
		}
		r.pass(time.Minute)
		emr.got(t, numbers(8)...)
	})
}

// TestOrderChanges: what waits goes out in order, or not, as the configuration of now says, and none of it is lost or sent twice. Red
// without tellOrder in either loop.
func TestOrderChanges(t *testing.T) {
	inTime(t, func(r *rig) {
		var up atomic.Bool
		emr := toCrowd(r, 0, func(ctx context.Context, d message.Delivery) error {
			if !up.Load() {
				return errors.New("down")
			}
			return slowly(time.Second)(ctx, d)
		})
		r.start()
		r.receive("adt", numbers(9)...)
		r.stop()
		up.Store(true)
		r.cfg.Outbounds[0].Parallel = 3
		r.start()
		r.pass(time.Second / 2) // the head waits for its next try
		emr.outNow(t, 3, 3)
		r.stop()
		r.cfg.Outbounds[0].Parallel = 0
		emr.most = 0
		r.start()
		r.pass(time.Minute)
		emr.outNow(t, 0, 1)
		emr.got(t, numbers(9)...)
		if len(emr.taken()) > 3 && !slices.IsSorted(emr.taken()[3:]) {
			t.Errorf("in order again, the receiver took %q", emr.taken())
		}
	})
}
