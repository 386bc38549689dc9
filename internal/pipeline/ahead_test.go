package pipeline

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/room"
	"pgregory.net/rapid"
)

// inflow is a drawn world of one handler: what it gets by inbounds that know where to send and by one that asks its router, when
// each receiver comes to know of its commit, and which of the handler's outcomes the store fails to take, or to tell of.
type inflow struct {
	waits, lates []time.Duration
	routed       []bool
	took         []time.Duration
	faults       map[int]bool // by EndRun's number; true: it happens all the same
}

func drawInflow(t *rapid.T) (f inflow) {
	millis := func(most int, what string) time.Duration {
		return time.Duration(rapid.IntRange(0, most).Draw(t, what)) * time.Millisecond
	}
	for range rapid.IntRange(1, 100).Draw(t, "messages") {
		wait := rapid.SampledFrom([]time.Duration{0, 0, 0, 0, 0, 0, 0, 0, 0, time.Millisecond, 4 * time.Millisecond, time.Second}).Draw(t, "wait")
		f.waits, f.lates = append(f.waits, wait), append(f.lates, millis(20, "late"))
		f.routed = append(f.routed, rapid.IntRange(0, 9).Draw(t, "routed") == 0)
	}
	for range 5 {
		f.took = append(f.took, millis(8, "took"))
	}
	f.faults = rapid.MapOfN(rapid.IntRange(0, 60), rapid.Bool(), 0, 3).Draw(t, "faults")
	return f
}

// actOut returns what went wrong.
func (f inflow) actOut() (wrong []string) {
	var mu sync.Mutex
	var handled []message.ID
	received, ended, again := 0, 0, 0
	store := &memory{latency: func(call string) time.Duration {
		mu.Lock()
		defer mu.Unlock()
		if call != "Received" {
			return 0
		}
		received++
		return f.lates[received%len(f.lates)]
	}}
	store.fault = func(call string) (error, bool) {
		if call != "EndRun" {
			return nil, false
		}
		mu.Lock()
		defer mu.Unlock()
		happens, fails := f.faults[ended]
		ended++
		if fails && !happens {
			again++
		}
		if fails {
			return errFull, happens
		}
		return nil, false
	}
	handle := function(func(ctx context.Context, m *message.Message, _ int) (Answer, error) {
		mu.Lock()
		handled = append(handled, m.ID)
		took := f.took[len(handled)%len(f.took)]
		mu.Unlock()
		if want := fmt.Sprint("body of ", m.Type); string(m.Body) != want {
			wrong = append(wrong, fmt.Sprintf("message %d has body %q, want %q", m.ID, m.Body, want))
		}
		time.Sleep(took)
		return Answer{Dropped: true}, nil
	})
	p := New(Config{Store: store, Handlers: []Handler{{Name: "h", Attempts: 1, Runner: handle}}, Inbounds: []Inbound{
		{Name: "static", Handlers: []string{"h"}, Attempts: 1}, {Name: "routed", Router: choose("h"), Attempts: 1}}})
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { _ = p.Run(ctx) })
	synctest.Wait()
	for i, wait := range f.waits {
		time.Sleep(wait)
		all.Go(func() {
			in := message.Incoming{Inbound: "static", Type: fmt.Sprint(i), Body: fmt.Append(nil, "body of ", i)}
			if f.routed[i] {
				in.Inbound = "routed"
			}
			if _, err := p.Receive(ctx, in); err != nil {
				wrong = append(wrong, err.Error())
			}
		})
	}
	time.Sleep(lookAgain * 2 / 3) // so that nothing is found by looking again
	cancel()
	all.Wait()
	var want []message.ID
	for _, r := range store.runs {
		if r.Handler == "h" {
			want = append(want, r.Message)
		}
		if r.State == message.RunPending {
			wrong = append(wrong, fmt.Sprintf("run %d is pending in the end", r.ID))
		}
	}
	if len(handled) != len(want)+again {
		wrong = append(wrong, fmt.Sprintf("%d runs, of which the store failed to take %d, were made %d times", len(want), again, len(handled)))
	}
	if got := slices.Compact(slices.Clone(handled)); !slices.Equal(got, want) {
		wrong = append(wrong, fmt.Sprintf("handled %v, planned %v", got, want))
	}
	return append(wrong, store.breaches...)
}

// TestOffersKeepTheOrder: whenever those who received come to know of it, a handler gets its messages in the order in which they
// were planned, each at once, and again only where the store failed to take the outcome.
//
// Guards seen red: behind without the look at Before; kick without look, or none for
// what is behind what was read (pending in the end); last that is kept after an error; behind that leaves what it has not matched.
func TestOffersKeepTheOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := drawInflow(rt)
		var wrong []string
		synctest.Test(t, func(*testing.T) { wrong = f.actOut() })
		if len(wrong) > 0 {
			rt.Fatalf("%q", wrong)
		}
	})
}

// A run of which nobody knows what was made before it is not taken for the next one, also where nobody knows what has ended.
// Red with Before of 0 taken for a match.
func TestUnknownIsNoMatch(t *testing.T) {
	o := &offers{}
	o.add(message.Pending{Run: message.Run{ID: 5}}, []byte("x"))
	if next, ask := o.behind(0); len(next) != 0 || !ask {
		t.Errorf("%d are next, ask %v", len(next), ask)
	}
}

// asked counts the calls of the store.
func asked(r *rig) map[string]int {
	calls := map[string]int{}
	r.store.fault = func(call string) (error, bool) {
		calls[call]++
		return nil, false
	}
	return calls
}

// What flows is not read again: a run is handed over by its receiver. What waits is read a few at a time. Red without offers, and
// with mostAhead of 1.
func TestReadsFew(t *testing.T) {
	inTime(t, func(r *rig) {
		memory := room.New(1<<30, 1<<20, nil)
		r.cfg.Room = memory
		emr := r.outbound("emr", nil)
		r.handler("admit", sendTo("emr").after(time.Millisecond), "emr")
		r.inbound("adt", nil, "admit")
		calls := asked(r)
		r.start()
		var want []string
		receive := func(types ...string) {
			r.receive("adt", types...)
			want = append(want, types...)
		}
		for i := range 2 {
			receive(fmt.Sprint("first ", i))
			r.pass(time.Second)
		}
		clear(calls)
		for i := range 20 {
			receive(fmt.Sprint("flows ", i))
			r.pass(time.Second)
		}
		if n := calls["NextRuns"]; n != 0 {
			t.Errorf("the store was asked %d times for what flows", n)
		}
		var many []string
		for i := range 48 {
			many = append(many, fmt.Sprint("waits ", i))
		}
		clear(calls)
		receive(many...)
		r.pass(time.Minute)
		if n := calls["NextRuns"]; n == 0 || n > 6 {
			t.Errorf("the store was asked %d times for %d that wait", n, len(many))
		}
		clear(calls)
		must := func(err error) {
			if err != nil {
				t.Error(err)
			}
		}
		must(r.p.Hold(r.t.Context(), message.Hold{Target: delivering("emr")}))
		receive(many...)
		r.pass(time.Minute)
		clear(calls)
		_, err := r.p.Release(r.t.Context(), delivering("emr"), false)
		must(err)
		r.pass(time.Minute)
		if n := calls["Heads"]; n == 0 || n > 6 {
			t.Errorf("the store was asked %d times for %d that are ready", n, len(many))
		}
		emr.got(t, want...)
		receive(many...)
		if u := memory.Used(); u.Work == 0 {
			t.Error("nothing is taken for what is offered")
		}
		r.stop()
		if u := memory.Used(); u != (room.Used{}) {
			t.Errorf("%+v is taken in the end", u)
		}
	})
}

// More than may be offered is read from the store, once what was offered has been handled, and so is a run that nobody told of. Red
// with add that says true when it is full, and without the look at when the store was asked.
func TestNotOffered(t *testing.T) {
	inTime(t, func(r *rig) {
		emr := r.outbound("emr", nil)
		r.handler("admit", sendTo("emr").after(100*time.Millisecond), "emr")
		r.inbound("adt", nil, "admit")
		r.start()
		var want []string
		for i := range 42 {
			want = append(want, fmt.Sprint(i))
		}
		r.receive("adt", want[0])
		r.pass(time.Second)
		r.receive("adt", want[1])
		r.pass(time.Second)
		r.receive("adt", want[2:]...)
		r.pass(10 * time.Second)
		emr.got(t, want...)
		if _, _, err := r.store.ReceiveRouted(r.t.Context(), message.Incoming{Inbound: "adt", Body: []byte("untold")},
			[]message.Plan{{Handler: "admit", To: []string{"emr"}}}); err != nil {
			t.Fatal(err)
		}
		r.pass(lookAgain + time.Second)
		emr.got(t, append(want, "untold")...)
	})
}

// A hold stops what was read ahead as well, at a handler and in a lane, and nothing of it overtakes. Red when held, or released, is
// asked only of what is read from the store.
func TestHoldStopsWhatWasReadAhead(t *testing.T) {
	for _, held := range []message.Target{running("admit"), delivering("emr"), {Kind: message.KindOutbound, Name: "emr", Inbound: "adt"}} {
		t.Run(held.String(), func(t *testing.T) {
			inTime(t, func(r *rig) {
				emr := r.outbound("emr", func(ctx context.Context, _ message.Delivery) error {
					if !sleep(ctx, time.Second) {
						return ctx.Err()
					}
					return nil
				})
				r.handler("admit", sendTo("emr"), "emr")
				if held.Kind == message.KindHandler {
					r.cfg.Handlers[0].Runner = sendTo("emr").after(time.Second)
				}
				r.inbound("adt", nil, "admit")
				r.start()
				var want []string
				for i := range 10 {
					want = append(want, fmt.Sprint(i))
				}
				r.receive("adt", want...)
				r.pass(3500 * time.Millisecond)
				if err := r.p.Hold(r.t.Context(), message.Hold{Target: held}); err != nil {
					t.Fatal(err)
				}
				r.pass(time.Hour)
				emr.got(t, want[:4]...)
				if _, err := r.p.Release(r.t.Context(), held, false); err != nil {
					t.Fatal(err)
				}
				r.pass(time.Hour)
				emr.got(t, want...)
			})
		})
	}
}

// A handler that is held, or whose worker cannot start, has nothing of the room, for as long as that takes, and gets all of it in order
// afterwards. Red without refuse in step, without it after an error, with add that does not look at shut, and
// with behind that leaves it.
func TestWhoWaitsKeepsNoOffers(t *testing.T) {
	for _, why := range []string{"held", "cannot start"} {
		t.Run(why, func(t *testing.T) {
			inTime(t, func(r *rig) {
				memory := room.New(1<<30, 1<<20, nil)
				r.cfg.Room = memory
				emr := r.outbound("emr", nil)
				var down atomic.Bool
				r.handler("admit", function(func(ctx context.Context, m *message.Message, n int) (Answer, error) {
					if down.Load() {
						return Answer{}, fails(Nobody, "boot", "", "cannot start")
					}
					return sendTo("emr")(ctx, m, n)
				}), "emr")
				r.inbound("adt", nil, "admit")
				r.start()
				want := []string{"0", "1", "2", "3", "4", "5"}
				r.receive("adt", want[:2]...)
				r.pass(time.Second)
				target := running("admit")
				if why != "held" {
					down.Store(true)
				} else if err := r.p.Hold(r.t.Context(), message.Hold{Target: target}); err != nil {
					t.Fatal(err)
				}
				for _, typ := range want[2:] {
					r.receive("adt", typ)
					r.pass(time.Second)
					if u := memory.Used(); u != (room.Used{}) {
						t.Errorf("%+v is taken", u)
					}
				}
				if why != "held" {
					down.Store(false)
				} else if _, err := r.p.Release(r.t.Context(), target, false); err != nil {
					t.Fatal(err)
				}
				r.pass(2 * time.Minute)
				r.receive("adt", "6") // the store is asked once more
				r.pass(time.Second)
				calls := asked(r)
				r.receive("adt", "7")
				r.pass(time.Second)
				emr.got(t, append(want, "6", "7")...)
				if calls["NextRuns"] != 0 {
					t.Error("what flows again is not offered")
				}
			})
		})
	}
}

// While a head waits, which may be for days, a delivery costs no more than one of each lane. Red without the look at blocked.
func TestBlockedHeadIsCheap(t *testing.T) {
	inTime(t, func(r *rig) {
		emr := r.outbound("emr", nil)
		r.handler("slow", sendTo("emr").after(time.Hour), "emr")
		r.handler("fast", sendTo("emr"), "emr")
		r.inbound("lab", nil, "slow")
		r.inbound("adt", nil, "fast")
		r.start()
		r.receive("lab", "old")
		var want []string
		for i := range 100 {
			want = append(want, fmt.Sprint(i))
		}
		r.receive("adt", want...)
		r.pass(time.Minute)
		emr.got(t, want...)
		if n := r.store.heads; n > 2*2*100 {
			t.Errorf("%d heads were read for 100 deliveries", n)
		}
	})
}

// Offers are not in the way of what is worked on, however many handlers are busy and have theirs. Red when take takes what room
// there is.
func TestOffersLeaveRoom(t *testing.T) {
	inTime(t, func(r *rig) {
		const size, busy, body = 1 << 20, 12, 60 << 10 // the busy are on 720 KiB of the 2 MiB, and are offered as much
		r.cfg.Room = room.New(4*size, size, nil)
		r.outbound("emr", nil)
		r.handler("admit", sendTo("emr"), "emr")
		r.inbound("adt", nil, "admit")
		var names []string
		for i := range busy {
			names = append(names, fmt.Sprint("busy", i))
			r.handler(names[i], sendTo("emr").after(time.Hour), "emr")
		}
		r.inbound("lab", nil, names...)
		r.start()
		r.receive("lab", strings.Repeat("x", body), strings.Repeat("z", body))
		large := strings.Repeat("y", size)
		r.receive("adt", large)
		r.pass(time.Minute)
		r.store.mu.Lock()
		defer r.store.mu.Unlock()
		if run := r.store.messages[2].runs[0]; run.State != message.RunSent {
			t.Errorf("the run for which there is room is %s", run.State)
		}
	})
}

// A lane that was blocked when others were read ahead has its turn as soon as it is free. Red when
// heads takes what it has though not all of it is ready, and with those of other lanes kept when one has come to its end.
func TestReadAheadLeavesNoLaneBehind(t *testing.T) {
	inTime(t, func(r *rig) {
		emr := r.outbound("emr", func(ctx context.Context, d message.Delivery) error {
			if !sleep(ctx, time.Second) {
				return ctx.Err()
			}
			return nil
		})
		r.handler("slow", sendTo("emr").after(2500*time.Millisecond), "emr")
		r.handler("fast", sendTo("emr"), "emr")
		r.inbound("lab", nil, "slow")
		r.inbound("adt", nil, "fast")
		r.start()
		r.receive("lab", "old")
		r.receive("adt", "0", "1", "2", "3", "4", "5")
		r.pass(time.Minute)
		want := []string{"0", "1", "2", "old", "3", "4", "5"}
		emr.got(t, want...)

		// More than is read ahead of each: in turn to the end.
		r.cfg.Inbounds[0].Handlers = []string{"fast"}
		r.stop()
		r.start()
		for i := range mostAhead + 5 {
			a, b, c := fmt.Sprint("a", i), fmt.Sprint("b", i), fmt.Sprint("c", i)
			r.receive("lab", a)
			r.receive("adt", b, c)
			want = append(want, a, b, c)
		}
		r.pass(2 * time.Minute)
		emr.got(t, want...)
	})
}

// A release has tried at once what waits at that time, and nothing that fails later. Red when heads does not look at now.
func TestReleaseIsForWhatWaits(t *testing.T) {
	inTime(t, func(r *rig) {
		emr := toEMR(r, func(ctx context.Context, d message.Delivery) error {
			sleep(ctx, 100*time.Millisecond)
			if string(d.Body) == "late" {
				return errFull
			}
			return nil
		})
		r.start()
		r.receive("adt", "0", "1", "2", "late")
		if _, err := r.p.Release(r.t.Context(), delivering("emr"), false); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Second)
		emr.got(t, "0", "1", "2")
		if n := emr.tries(); n != 4 {
			t.Errorf("%d tries in the first second, want 4", n)
		}
	})
}

// What is buried in one lane while another one sends what was read ahead is not sent again, and what is behind it goes on in order, each
// once. Without the looks at now and buried in heads this hangs.
func TestBuriedWhileReadAhead(t *testing.T) {
	inTime(t, func(r *rig) {
		emr := toEMR(r, func(ctx context.Context, d message.Delivery) error {
			sleep(ctx, time.Second)
			if string(d.Body) == "bad" {
				return &message.Rejection{Code: "AR", Final: true}
			}
			return nil
		})
		r.inbound("lab", nil, "admit")
		r.cfg.Outbounds[0].Retry.Hold = true
		r.start()
		r.receive("adt", "bad", "next", "last")
		r.receive("lab", "0", "1", "2", "3", "4", "5", "6", "7")
		r.pass(3500 * time.Millisecond)
		if _, err := r.p.Release(r.t.Context(), delivering("emr"), true); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Minute)
		emr.got(t, "0", "1", "2", "next", "last", "3", "4", "5", "6", "7")
		r.is(1, message.Error, "rejected with AR")
		if emr.tries() != 11 {
			t.Errorf("%d tries, want 11", emr.tries())
		}
	})
}
