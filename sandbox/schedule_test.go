package sandbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"coppice.dev/coppice/tree"
	"coppice.dev/coppice/wire"
)

// TestSchedules runs random schedules of dispatch, cancel, crash, late answer, forged frame and close over pools in fake time.
// However they fall: no answer reaches another dispatch, every dispatch returns by its deadline, a message is blamed for what
// its worker did with it and for nothing else, no worker is begun before the one before is gone, and nothing is left.
//
// COPPICE_TEST_SCHEDULES is how many, COPPICE_TEST_SEED the seed of one that failed.
//
// Red without Request.Check in exchange.dispatch (an answer reaches another dispatch), without the wait in seat.proved (a worker
// is begun too early), and without the stop at the end of ctx in session.bounded (it never ends).
func TestSchedules(t *testing.T) {
	count, seed := schedules, rand.Uint64()
	if s := os.Getenv("COPPICE_TEST_SCHEDULES"); s != "" {
		count, _ = strconv.Atoi(s)
	}
	if s := os.Getenv("COPPICE_TEST_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
		count = 1
	}
	outcomes := map[string]int{}
	for i := range uint64(count) {
		synctest.Test(t, func(t *testing.T) {
			w := &schedule{t: t, seed: seed + i, outcomes: outcomes}
			w.run()
		})
		if t.Failed() {
			t.Fatalf("COPPICE_TEST_SEED=%d", seed+i)
		}
	}
	t.Logf("seed %d, %d schedules: %v", seed, count, outcomes)
	for _, want := range []string{"result", "handler", "deadline", "crash", "violation", "boot", "closed", "cancelled", "poison"} {
		if count >= 3000 && outcomes[want] == 0 {
			t.Errorf("no schedule came to %q: the test does not test that", want)
		}
	}
}

// schedule is one of them.
type schedule struct {
	t    *testing.T
	seed uint64
	pool *Pool

	mu       sync.Mutex
	children int
	alive    int
	old      []wire.Binding // what workers were asked for, to forge answers with
	outcomes map[string]int
	programs sync.WaitGroup
}

var errCancelled = errors.New("cancelled by the test")

func (w *schedule) rand(about ...int64) *rand.Rand {
	s := w.seed
	for _, n := range about {
		s = s*1_000_003 + uint64(n)
	}
	return rand.New(rand.NewPCG(s, 1))
}

func (w *schedule) run() {
	r := w.rand()
	spec := Spec{Name: "fake", Command: []string{"/fake"}, Workers: 1 + r.IntN(3), Standbys: r.IntN(3), Attempts: 1 + r.IntN(2),
		Fresh: r.IntN(4) == 0, StartTimeout: 300 * time.Millisecond, KillTimeout: time.Minute}
	if r.IntN(3) == 0 {
		spec.Limits.Idle = time.Duration(1+r.IntN(200)) * time.Millisecond
	}
	w.pool = newPool(spec.filled(), w.start)
	var all sync.WaitGroup
	for caller := range int64(1 + r.IntN(4)) {
		all.Go(func() {
			r := w.rand(-1, caller)
			for n := range int64(1 + r.IntN(6)) {
				w.dispatch(r, 1+caller*100+n)
				time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond)
			}
		})
	}
	if r.IntN(4) == 0 {
		time.Sleep(time.Duration(r.IntN(1000)) * time.Millisecond)
	} else {
		all.Wait()
	}
	if err := w.pool.Close(context.Background()); err != nil {
		w.t.Errorf("close: %v", err)
	}
	all.Wait()
	w.programs.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.alive != 0 {
		w.t.Errorf("%d workers left after Close", w.alive)
	}
}

// start is the pool's starter. It counts who lives.
func (w *schedule) start(ctx context.Context, spec *Spec, _ func(*LimitError)) (child, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.children++
	if w.alive++; w.alive > spec.Workers+spec.Standbys {
		w.t.Errorf("%d workers at once, %d and %d may be", w.alive, spec.Workers, spec.Standbys)
	}
	r := w.rand(-2, int64(w.children))
	f := newFake(time.Duration(r.IntN(40)) * time.Millisecond)
	f.gone = func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.alive--
	}
	w.programs.Go(func() { w.worker(r, f) })
	return f, nil
}

func (w *schedule) dispatch(r *rand.Rand, message int64) {
	timeout := time.Duration(1+r.IntN(400)) * time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if r.IntN(8) == 0 {
		var cause context.CancelCauseFunc
		ctx, cause = context.WithCancelCause(ctx)
		t := time.AfterFunc(time.Duration(r.IntN(300))*time.Millisecond, func() { cause(errCancelled) })
		defer t.Stop()
	}
	began := time.Now()
	result, err := w.pool.Dispatch(ctx, Request{Phase: wire.PhaseHandle, Name: "f", Message: message, Body: fmt.Append(nil, message)})
	if took := time.Since(began); took > timeout {
		w.t.Errorf("message %d: took %v, the deadline was %v", message, took, timeout)
	}
	outcome := outcomeOf(err)
	switch {
	case outcome == "":
		w.t.Errorf("message %d: %T %v", message, err, err)
	case outcome == "result" && string(result.Sends[0].Body) != fmt.Sprint(message):
		w.t.Errorf("message %d got the answer to %s", message, result.Sends[0].Body)
	case outcome == "handler" && !strings.HasSuffix(err.Error(), fmt.Sprintf(": no %d", message)):
		w.t.Errorf("message %d got the fault of another: %v", message, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.outcomes[outcome]++
}

// outcomeOf names an error that a dispatch may have; empty is one that it may not.
func outcomeOf(err error) string {
	var boot *BootError
	var poison *PoisonError
	var left *LeftoverError
	var handler *HandlerError
	var late *DeadlineError
	var crash *CrashError
	var violation *ViolationError
	switch {
	case err == nil:
		return "result"
	case errors.As(err, &boot):
		return "boot"
	case errors.As(err, &poison):
		return "poison"
	case errors.As(err, &left):
		return "leftover"
	case errors.As(err, &handler):
		return "handler"
	case errors.As(err, &late):
		return "deadline"
	case errors.As(err, &crash):
		return "crash"
	case errors.As(err, &violation):
		return "violation"
	case errors.Is(err, ErrClosed):
		return "closed"
	case errors.Is(err, errCancelled):
		return "cancelled"
	case errors.Is(err, context.DeadlineExceeded):
		return "no worker was free"
	}
	return ""
}

// worker is the program of a child.
func (w *schedule) worker(r *rand.Rand, f *fake) {
	boot := f.hear()
	if boot == nil {
		f.exit(tree.Status{})
		return
	}
	pause(r, f, 20)
	ready := &wire.Ready{SDK: "fake", Offers: []wire.Offer{}}
	switch r.IntN(20) {
	case 0:
		f.say(&wire.BootFail{Fault: wire.Fault{Type: "SyntaxError"}})
		f.exit(tree.Status{Code: 1})
		return
	case 1:
		f.exit(tree.Status{Code: 7})
		return
	case 2: // boots for ever
		<-f.exited
		return
	case 3:
		f.say(ready, w.forged(r, wire.Binding{}))
	default:
		f.say(ready)
	}
	for {
		m, ok := f.hear().(*wire.Request)
		if !ok {
			f.exit(tree.Status{})
			return
		}
		if !w.answer(w.rand(m.Message, int64(m.Attempt)), f, m) {
			return
		}
	}
}

// answer does with one request what chance says; false if the worker does nothing after it.
func (w *schedule) answer(r *rand.Rand, f *fake, m *wire.Request) bool {
	w.mu.Lock()
	w.old = append(w.old, m.Binding)
	w.mu.Unlock()
	right := &wire.Result{Binding: m.Binding, Sends: []wire.Send{{To: "out", Body: m.Body}}}
	pause(r, f, 50)
	switch r.IntN(24) {
	case 0: // an answer that is late for most deadlines, and comes while the worker is being killed
		pause(r, f, 1000)
		f.say(right)
	case 1:
		f.exit(tree.Status{Code: 3})
		return false
	case 2:
		f.say(right)
		f.exit(tree.Status{})
		return false
	case 3: // half an answer, and never the rest
		b := encode(right)
		f.up.write(b[:r.IntN(len(b))])
		<-f.exited
		return false
	case 4: // byte by byte
		for _, b := range encode(right) {
			f.up.write([]byte{b})
			pause(r, f, 3)
		}
	case 5:
		f.say(w.forged(r, m.Binding))
	case 6:
		f.say(right, w.forged(r, m.Binding))
	case 7: // the answer to the next request is staged while the worker rests
		f.say(right)
		pause(r, f, 60)
		f.say(w.forged(r, m.Binding))
	case 8:
		f.say(right, right)
	case 9:
		f.up.write([]byte("Traceback (most recent call last)"))
	case 10: // closes its end and lives on
		f.up.update(func() { f.up.eof = true })
		<-f.exited
		return false
	case 11: // never answers
		<-f.exited
		return false
	case 12: // leaves later, between dispatches
		f.say(right)
		pause(r, f, 100)
		f.exit(tree.Status{})
		return false
	case 13:
		f.say(&wire.Fail{Binding: m.Binding, Fault: wire.Fault{Type: "ValueError", Text: "no " + string(m.Body)}})
	case 14: // a child that was forked answers while the worker is gone already
		f.exitOnce.Do(func() { f.status = tree.Status{Known: true}; close(f.exited) })
		f.say(right)
		f.Cut("exit")
		return false
	default:
		f.say(right)
	}
	return true
}

// forged is an answer to a request of before, or of another worker; not to the worker's own, which is an answer like any.
func (w *schedule) forged(r *rand.Rand, own wire.Binding) wire.Message {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := wire.Binding{ID: strings.Repeat("7", 32), Phase: wire.PhaseHandle, Name: "f"}
	if len(w.old) > 0 && r.IntN(4) > 0 {
		if old := w.old[r.IntN(len(w.old))]; old != own {
			b = old
		}
	}
	return &wire.Result{Binding: b, Sends: []wire.Send{{To: "out", Body: []byte("forged")}}}
}

// pause is what a child does for a while, unless it is killed.
func pause(r *rand.Rand, f *fake, most int) {
	select {
	case <-time.After(time.Duration(r.IntN(most)) * time.Millisecond):
	case <-f.empty:
	}
}
