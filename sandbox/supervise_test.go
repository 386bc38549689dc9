package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"coppice.dev/coppice/tree"
	"coppice.dev/coppice/wire"
)

// farm is a pool of fakes in fake time. Each answers as its place in the order of starts says.
type farm struct {
	*Pool
	t      *testing.T
	starts atomic.Int64
	healed atomic.Int64

	mu   sync.Mutex
	cuts []Cut
	held []Held

	programs sync.WaitGroup
}

// inFakeTime runs a test on a farm. program is what the nth child does, from 1; it has exited when program returns.
func inFakeTime(t *testing.T, spec Spec, program func(n int64, f *fake), test func(*farm)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &farm{t: t}
		spec.Name = "fake"
		spec.Observer = Observer{
			Cut:    func(c Cut) { b.mu.Lock(); defer b.mu.Unlock(); b.cuts = append(b.cuts, c) },
			Held:   func(h Held) { b.mu.Lock(); defer b.mu.Unlock(); b.held = append(b.held, h) },
			Healed: func(string) { b.healed.Add(1) },
		}
		b.Pool = newPool(spec.filled(), func(_ context.Context, _ *Spec, over func(*LimitError)) (child, error) {
			f := newFake(time.Millisecond)
			f.over = over
			n := b.starts.Add(1)
			b.programs.Go(func() {
				program(n, f)
				f.exit(tree.Status{})
			})
			return f, nil
		})
		defer func() {
			if err := b.Close(context.Background()); err != nil {
				t.Errorf("close: %v", err)
			}
			b.programs.Wait()
		}()
		test(b)
	})
}

// told are the cuts until now, holds the times that the breaker has held.
func (b *farm) told() []Cut {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.cuts)
}

func (b *farm) holds() []Held {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.held)
}

// boots answers the boot message.
func (f *fake) boots() { f.hear(); f.say(&wire.Ready{Offers: []wire.Offer{}}) }

// serves answers requests rightly, each after f did what it does.
func (f *fake) serves(do func(*wire.Request)) {
	for {
		m, ok := f.hear().(*wire.Request)
		if !ok {
			return
		}
		do(m)
		f.say(&wire.Result{Binding: m.Binding, Sends: []wire.Send{{To: "out", Body: fmt.Append(nil, m.Attempt)}}})
	}
}

func honest(_ int64, f *fake) { f.boots(); f.serves(func(*wire.Request) {}) }

func (b *farm) dispatch(message int64) (Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return b.Dispatch(ctx, Request{Phase: wire.PhaseHandle, Name: "f", Message: message})
}

func (b *farm) fine(message int64) {
	b.t.Helper()
	if _, err := b.dispatch(message); err != nil {
		b.t.Fatalf("message %d: %T %v", message, err, err)
	}
}

func (b *farm) started(want int64) {
	b.t.Helper()
	if n := b.starts.Load(); n != want {
		b.t.Errorf("%d workers have been started, not %d", n, want)
	}
}

// TestBreaker: after a start that failed nothing is started for a while, which doubles; dispatches fail at once meanwhile, and
// the first start that goes well heals. Red without breaker.open in Pool.grow (each dispatch starts a worker).
func TestBreaker(t *testing.T) {
	inFakeTime(t, Spec{}, func(n int64, f *fake) {
		if n < 4 {
			f.hear()
			return
		}
		honest(n, f)
	}, func(b *farm) {
		for fails := 1; fails < 4; fails++ {
			for range 3 {
				_, err := b.dispatch(1)
				var boot *BootError
				if !errors.As(err, &boot) || Blame(err) != Nobody {
					t.Fatalf("%T %v", err, err)
				}
			}
			b.started(int64(fails))
			last := b.holds()[len(b.holds())-1]
			wait := time.Until(last.Until)
			if most := firstBackoff << (fails - 1); last.Fails != fails || wait > most || wait < most*8/10 {
				t.Errorf("%d fails, %v to wait after %d", last.Fails, wait, fails)
			}
			time.Sleep(wait)
		}
		b.fine(1)
		if len(b.holds()) != 3 || b.healed.Load() != 1 {
			t.Errorf("held %d times, healed %d", len(b.holds()), b.healed.Load())
		}
	})
}

// TestProbe: a pool with standbys probes by itself until its workers boot again. Red without standbys.wake in standbys.one.
func TestProbe(t *testing.T) {
	inFakeTime(t, Spec{Standbys: 1}, func(n int64, f *fake) {
		if n > 1 && n < 6 {
			f.hear()
			return
		}
		honest(n, f)
	}, func(b *farm) {
		b.fine(1)
		time.Sleep(time.Minute)
		b.started(6)
		if b.healed.Load() != 1 {
			t.Errorf("healed %d times", b.healed.Load())
		}
	})
}

// TestAttempts: a message costs as many workers as it may, its attempts are numbered, and only then it is poison. The wait for
// the worker before is there each time. Red with the loop of Dispatch left out.
func TestAttempts(t *testing.T) {
	crash := func(after int64) func(int64, *fake) {
		return func(n int64, f *fake) {
			f.boots()
			if n <= after {
				f.hear()
				return
			}
			f.serves(func(*wire.Request) {})
		}
	}
	inFakeTime(t, Spec{Attempts: 3}, crash(2), func(b *farm) {
		if r, err := b.dispatch(1); err != nil || string(r.Sends[0].Body) != "3" {
			t.Errorf("%v, %v", r, err)
		}
		b.started(3)
	})
	inFakeTime(t, Spec{Attempts: 3}, crash(9), func(b *farm) {
		_, err := b.dispatch(1)
		var poison *PoisonError
		var crash *CrashError
		if !errors.As(err, &poison) || poison.Attempts != 3 || !errors.As(err, &crash) || Blame(err) != Worker {
			t.Errorf("%T %v", err, err)
		}
		b.started(3)
	})
}

// TestTimeout: each attempt has its own time. Red without session.timed.
func TestTimeout(t *testing.T) {
	inFakeTime(t, Spec{Attempts: 2, Timeout: time.Second}, func(n int64, f *fake) {
		f.boots()
		f.serves(func(*wire.Request) {
			if n == 1 {
				<-f.empty
			}
		})
	}, func(b *farm) {
		began := time.Now()
		b.fine(1)
		if took := time.Since(began); took < time.Second || took > 1100*time.Millisecond {
			t.Errorf("took %v", took)
		}
	})
}

// TestFresh: no worker serves two dispatches, and with a standby nobody waits for a start. Red without the retirement in
// seat.rests.
func TestFresh(t *testing.T) {
	inFakeTime(t, Spec{Fresh: true, Standbys: 1}, func(n int64, f *fake) {
		time.Sleep(50 * time.Millisecond)
		honest(n, f)
	}, func(b *farm) {
		for message := int64(1); message <= 4; message++ {
			began := time.Now()
			b.fine(message)
			if took := time.Since(began); message > 1 && took > 2*time.Millisecond {
				t.Errorf("message %d: took %v", message, took)
			}
			time.Sleep(time.Second)
			b.started(message + 1)
			if len(b.told()) != int(message) || b.told()[message-1].Why != nil || b.told()[message-1].Report.Cause != "spent" {
				t.Fatalf("told of %+v", b.told())
			}
		}
	})
}

// TestStandby: the message after a cut meets a worker that is ready. Red without standbys.get in seat.next.
func TestStandby(t *testing.T) {
	inFakeTime(t, Spec{Standbys: 1}, func(n int64, f *fake) {
		time.Sleep(50 * time.Millisecond)
		f.boots()
		f.serves(func(m *wire.Request) {
			if m.Message == 2 {
				f.exit(tree.Status{Code: 1})
				<-f.empty
			}
		})
	}, func(b *farm) {
		b.fine(1)
		time.Sleep(time.Second)
		if _, err := b.dispatch(2); Blame(err) != Worker {
			t.Fatal(err)
		}
		began := time.Now()
		b.fine(3)
		if took := time.Since(began); took > 2*time.Millisecond { // the proof of the fake's end takes one
			t.Errorf("took %v", took)
		}
	})
}

// TestStandbyRefilled: the next standby is not started beside a message that is over soon, but right behind it; and before
// the end of a long one. Red with fill in the place of refill's timer, without the fill in Pool.give, without the timer.
func TestStandbyRefilled(t *testing.T) {
	var began, over atomic.Int64 // how many had been started when a message came, and when it was answered
	var starts func() int64
	inFakeTime(t, Spec{Fresh: true, Standbys: 1}, func(n int64, f *fake) {
		f.boots()
		f.serves(func(m *wire.Request) {
			began.Store(starts())
			if m.Message == 3 {
				time.Sleep(100 * time.Millisecond)
			} else {
				time.Sleep(time.Millisecond)
			}
			over.Store(starts())
		})
	}, func(b *farm) {
		starts = b.starts.Load
		b.fine(1)
		time.Sleep(300 * time.Millisecond) // less than until standbys are looked at, which starts what is missing
		b.started(2)
		b.fine(2)
		synctest.Wait()
		b.started(3)
		if began.Load() != 2 || over.Load() != 2 {
			t.Errorf("%d and %d workers had been started at the begin and the end of a short message, want 2", began.Load(), over.Load())
		}
		time.Sleep(300 * time.Millisecond)
		b.fine(3)
		if began.Load() != 3 || over.Load() != 4 {
			t.Errorf("%d and %d workers had been started at the begin and the end of a long message, want 3 and 4", began.Load(), over.Load())
		}
	})
}

// TestCloseBehindRefill: the refill that is due while Close waits changes nothing of what Close waits for. Red with the prune before
// the look at closed in standbys.fill: Close returned while the slow one was alive.
func TestCloseBehindRefill(t *testing.T) {
	var mu sync.Mutex
	var all []*fake
	inFakeTime(t, Spec{Fresh: true, Standbys: 4}, func(n int64, f *fake) {
		mu.Lock()
		all = append(all, f)
		mu.Unlock()
		switch n { // the order in which Close finds them is 6, 3, 4, 5
		case 3, 5:
			f.dying = 3 * refill
		case 4:
			f.dying = time.Second
		}
		time.Sleep(time.Duration(n) * refill) // so that they are ready one after the other
		honest(n, f)
	}, func(b *farm) {
		b.fine(1)
		time.Sleep(500 * time.Millisecond)
		b.fine(2)
		if err := b.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for i, f := range all {
			select {
			case <-f.empty:
			default:
				t.Errorf("%d of %d is alive behind Close", i, len(all))
			}
		}
	})
}

// TestSlowLooks: standbys that are being looked at count, however long that takes and whatever becomes ready meanwhile. Red with
// looking set in the place of added to in standbys.tend.
func TestSlowLooks(t *testing.T) {
	inFakeTime(t, Spec{Standbys: 2}, func(n int64, f *fake) {
		f.uses(func() tree.Usage { time.Sleep(5 * time.Second); return tree.Usage{} })
		if n == 3 {
			time.Sleep(1500 * time.Millisecond)
		}
		honest(n, f)
	}, func(b *farm) {
		b.fine(1)
		time.Sleep(time.Minute)
		b.started(3)
	})
}

// TestIdleRetired: a worker that waits for too long is asked to end, and the next dispatch has another. Red without seat.wake
// in seat.rests.
func TestIdleRetired(t *testing.T) {
	inFakeTime(t, Spec{Limits: Limits{Idle: time.Minute}}, honest, func(b *farm) {
		b.fine(1)
		time.Sleep(50 * time.Second)
		b.fine(2)
		time.Sleep(50 * time.Second)
		b.started(1)
		time.Sleep(20 * time.Second)
		if len(b.told()) != 1 || b.told()[0].Why != nil || b.told()[0].Report.Cause != "exit" && b.told()[0].Report.Cause != "idle" || len(b.living()) != 0 {
			t.Fatalf("told of %+v", b.told())
		}
		b.fine(3)
		b.started(2)
	})
}

// spinning makes a fake use a core from now on.
func (f *fake) spinning(memory int64) {
	began := time.Now()
	f.uses(func() tree.Usage { return tree.Usage{User: time.Since(began), Memory: memory} })
}

// limited fails the test unless the last cut was for a limit, and of so many messages.
func (b *farm) limited(limit string, message int64) {
	b.t.Helper()
	if len(b.told()) == 0 {
		b.t.Fatal("nothing was cut")
	}
	c := b.told()[len(b.told())-1]
	var e *LimitError
	if !errors.As(c.Why, &e) || e.Limit != limit || c.Message != message {
		b.t.Errorf("cut for %v, with message %d", c.Why, c.Message)
	}
}

// TestIdleCPU: a worker that spins between dispatches is retired once its budget is used up, and one that uses a little is not.
// No message pays. Red without rest.look in seat.tend.
func TestIdleCPU(t *testing.T) {
	inFakeTime(t, Spec{Limits: Limits{IdleCPU: 2 * time.Second}}, func(n int64, f *fake) {
		f.spinning(0)
		honest(n, f)
	}, func(b *farm) {
		b.fine(1)
		time.Sleep(10 * time.Second)
		b.limited(LimitIdleCPU, 0)
		b.fine(2)
		b.started(2)
	})
	inFakeTime(t, Spec{Limits: Limits{IdleCPU: 2 * time.Second}}, func(n int64, f *fake) {
		began := time.Now()
		f.uses(func() tree.Usage { return tree.Usage{System: time.Since(began) / 25} })
		honest(n, f)
	}, func(b *farm) {
		b.fine(1)
		time.Sleep(24 * time.Hour)
		b.fine(2)
		b.started(1)
	})
}

// TestIdleCPUBetween: what is used in short gaps counts as well, and what dispatches use does not. Red without the look in
// session.dispatch (the first), and without rest.begins (the second).
func TestIdleCPUBetween(t *testing.T) {
	for _, inGap := range []bool{true, false} {
		var used atomic.Int64
		inFakeTime(t, Spec{Limits: Limits{IdleCPU: time.Second}}, func(n int64, f *fake) {
			f.uses(func() tree.Usage { return tree.Usage{User: time.Duration(used.Load())} })
			f.boots()
			f.serves(func(*wire.Request) {
				time.Sleep(500 * time.Millisecond)
				if !inGap {
					used.Add(int64(500 * time.Millisecond))
				}
			})
		}, func(b *farm) {
			for message := int64(1); message <= 40; message++ {
				b.fine(message)
				time.Sleep(500 * time.Millisecond)
				if inGap {
					used.Add(int64(500 * time.Millisecond))
				}
			}
			if !inGap {
				b.started(1)
				return
			}
			if b.starts.Load() < 2 {
				t.Error("a worker that spins between dispatches goes on")
			}
			b.limited(LimitIdleCPU, 0)
		})
	}
}

// TestStandbySpins: a standby is held to the same. Red without the look in standbys.tend.
func TestStandbySpins(t *testing.T) {
	inFakeTime(t, Spec{Standbys: 1, Limits: Limits{IdleCPU: 2 * time.Second}}, func(n int64, f *fake) {
		if n == 2 {
			f.spinning(0)
		}
		honest(n, f)
	}, func(b *farm) {
		b.fine(1)
		time.Sleep(20 * time.Second)
		b.limited(LimitIdleCPU, 0)
		b.started(3)
	})
}

// TestCPU: a dispatch that uses more CPU than it may is cut long before its deadline, and one that only waits is not; what
// dispatches before have used does not count. Red without watchCPU, and with the first look counted in cpuWatch.look.
func TestCPU(t *testing.T) {
	inFakeTime(t, Spec{Limits: Limits{CPU: time.Second, IdleCPU: -1}}, func(n int64, f *fake) {
		f.boots()
		f.serves(func(m *wire.Request) {
			if m.Message == 3 {
				f.spinning(0)
				<-f.empty
			}
			f.uses(func() tree.Usage { return tree.Usage{User: time.Duration(m.Message) * 10 * time.Second} })
			time.Sleep(10 * time.Second)
		})
	}, func(b *farm) {
		b.fine(1)
		b.fine(2)
		began := time.Now()
		_, err := b.dispatch(3)
		var e *LimitError
		if !errors.As(err, &e) || e.Limit != LimitCPU || Blame(err) != Worker {
			t.Fatalf("%T %v", err, err)
		}
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("took %v", took)
		}
		b.fine(4)
		b.limited(LimitCPU, 3)
	})
}

// TestMemory: a worker that keeps too much is replaced after its answer. Red without Limits.keeps in rest.begins.
func TestMemory(t *testing.T) {
	inFakeTime(t, Spec{Limits: Limits{Memory: 1 << 20, IdleCPU: -1}}, func(n int64, f *fake) {
		f.uses(func() tree.Usage { return tree.Usage{Memory: 1<<20 + 2 - n} })
		f.boots()
		f.serves(func(*wire.Request) { time.Sleep(2 * time.Second) })
	}, func(b *farm) {
		b.fine(1)
		time.Sleep(10 * time.Millisecond)
		b.limited(LimitMemory, 0)
		b.fine(2)
		b.fine(3)
		b.started(2)
	})
}

// TestRecord: what happened is told with a cut, the begin of it and the end of it. Red with lastSteps doubled in record.steps.
func TestRecord(t *testing.T) {
	inFakeTime(t, Spec{}, func(n int64, f *fake) {
		f.boots()
		f.serves(func(m *wire.Request) {
			if m.Message == 100 {
				f.exit(tree.Status{Code: 3})
				<-f.empty
			}
		})
	}, func(b *farm) {
		for message := int64(1); message < 100; message++ {
			b.fine(message)
		}
		if _, err := b.dispatch(100); Blame(err) != Worker {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		steps := b.told()[0].Steps
		if len(steps) != 2+lastSteps || steps[0].What != StepStart || steps[1].What != StepReady {
			t.Fatalf("%+v", steps)
		}
		last, before := steps[len(steps)-1], steps[len(steps)-2]
		if last.What != StepRequest || last.Message != 100 || before.What != StepAnswer || before.Answer != "result" {
			t.Errorf("%+v, %+v", before, last)
		}
	})
}

// TestFlapping: workers that boot and die before their first request are held off longer each time, too. Red with healed called
// in Pool.grow.
func TestFlapping(t *testing.T) {
	inFakeTime(t, Spec{}, func(n int64, f *fake) {
		if n > 3*replacements {
			honest(n, f)
			return
		}
		f.hear()
		ready := encode(&wire.Ready{Offers: []wire.Offer{}})
		f.up.write(append(ready, ready...)) // nobody asked for the second, which is there before a request can be
		<-f.empty
	}, func(b *farm) {
		for fails := 1; fails <= 3; fails++ {
			if _, err := b.dispatch(1); !as(func(*BootError) bool { return true })(err) {
				t.Fatalf("%T %v", err, err)
			}
			held := b.holds()
			if last := held[len(held)-1]; len(held) != fails || last.Fails != fails {
				t.Fatalf("held %d times, %d fails in a row", len(held), last.Fails)
			} else {
				time.Sleep(time.Until(last.Until))
			}
		}
		if b.healed.Load() != 0 {
			t.Error("healed before one lasted")
		}
		b.fine(1)
		if b.healed.Load() != 1 {
			t.Errorf("healed %d times", b.healed.Load())
		}
	})
}

// TestOverBefore: what a worker printed before a request is not charged to its message. Red without the look at exceeded in
// session.dispatch.
func TestOverBefore(t *testing.T) {
	inFakeTime(t, Spec{}, func(n int64, f *fake) {
		if n == 1 {
			f.onBegin = func(message int64) { // what lay in the pipe is read now
				if message == 2 {
					f.over(&LimitError{Limit: LimitOutput})
				}
			}
		}
		honest(n, f)
	}, func(b *farm) {
		b.fine(1)
		b.fine(2)
		time.Sleep(time.Second)
		b.limited(LimitOutput, 0)
	})
}

// TestExecCutOff: what a limit has cut off is no answer, though the program ends well. Red without the look at exceeded in
// session.drained.
func TestExecCutOff(t *testing.T) {
	inFakeTime(t, Spec{Exec: true, ExecTo: []string{"out"}}, func(_ int64, f *fake) {
		f.up.write([]byte("half"))
		time.Sleep(time.Millisecond) // it is read
		f.over(&LimitError{Limit: LimitOutput})
	}, func(b *farm) {
		r, err := b.dispatch(1)
		var limit *LimitError
		if !errors.As(err, &limit) || Blame(err) != Worker {
			t.Errorf("%v, %T %v", r, err, err)
		}
	})
}

// TestSlowEngine: what a worker has written before its end is read to its end, however long the engine takes. Red without the
// look at Pending in session.drain, for a worker and for a program.
func TestSlowEngine(t *testing.T) {
	answer := bytes.Repeat([]byte("0123456789"), 4000)
	slow := func(f *fake) { f.slow.Store(int64(lastWord)) }
	inFakeTime(t, Spec{Exec: true, ExecTo: []string{"out"}}, func(_ int64, f *fake) {
		slow(f)
		f.up.write(answer)
	}, func(b *farm) {
		if r, err := b.dispatch(1); err != nil || !bytes.Equal(r.Sends[0].Body, answer) {
			t.Errorf("of a program: %d sends, %T %v", len(r.Sends), err, err)
		}
	})
	inFakeTime(t, Spec{}, func(_ int64, f *fake) {
		f.boots()
		m := f.hear().(*wire.Request)
		slow(f)
		f.say(&wire.Result{Binding: m.Binding, Sends: []wire.Send{{To: "out", Body: answer}}})
	}, func(b *farm) {
		if r, err := b.dispatch(1); err != nil || !bytes.Equal(r.Sends[0].Body, answer) {
			t.Errorf("of a worker: %d sends, %T %v", len(r.Sends), err, err)
		}
	})
}
