package sqlite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/pipeline"
	"coppice.dev/coppice/internal/store"
)

// ordering is a feed of two inbounds, two handlers and two strict outbounds on a real store, and what its receivers took. Names have
// a number behind them, which a rename changes.
type ordering struct {
	t       *testing.T
	rand    *rand.Rand // of the test's own goroutine
	luck    *lucky     // of handlers and receivers
	path    string
	s       *Store
	p       *pipeline.Pipeline
	stop    context.CancelFunc
	ended   chan struct{}
	names   int // that are in use: the number behind each
	last    message.ID
	mu      sync.Mutex
	arrived []message.Delivery
}

// lucky is dice for many goroutines. Once all is calm it says no to everything.
type lucky struct {
	mu   sync.Mutex
	rand *rand.Rand
	calm atomic.Bool
}

func (l *lucky) oneIn(n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rand.IntN(n) == 0 && !l.calm.Load()
}

func (o *ordering) name(base string) string { return fmt.Sprintf("%s-%d", base, o.names) }

// base is a name without its number.
func base(name string) string {
	b, _, _ := strings.Cut(name, "-")
	return b
}

// orderHandler sends the message to both outbounds, to one, or to none, fails on it, or takes its time.
type orderHandler struct {
	o    *ordering
	base string
}

func (h orderHandler) Run(ctx context.Context, m *message.Message, _ int) (a pipeline.Answer, err error) {
	l := h.o.luck
	if l.oneIn(10) {
		select {
		case <-time.After(3 * time.Millisecond):
		case <-ctx.Done():
			return a, ctx.Err()
		}
	}
	switch {
	case l.oneIn(8):
		return a, &pipeline.Failure{Blame: pipeline.TheMessage, Fault: message.Fault{Kind: "handler", Type: "ValueError"}}
	case l.oneIn(40):
		return a, &pipeline.Failure{Blame: pipeline.TheWorker, Fault: message.Fault{Kind: "crash", Text: "killed"}}
	case l.oneIn(10):
		return pipeline.Answer{Dropped: true, Drop: "not ours"}, nil
	}
	for _, to := range []string{"a", "b"} {
		if !l.oneIn(6) {
			a.Sends = append(a.Sends, message.Send{To: h.o.name(to), Body: fmt.Appendf(nil, "%d %s %s", m.ID, h.base, to)})
		}
	}
	return a, nil
}

// orderReceiver takes what comes, is out of reach, or turns it down.
type orderReceiver struct {
	o    *ordering
	base string
}

func (r orderReceiver) Send(_ context.Context, d message.Delivery) (message.Receipt, error) {
	switch l := r.o.luck; {
	case l.oneIn(8):
		return message.Receipt{}, errors.New("connection reset")
	case l.oneIn(12):
		return message.Receipt{}, &message.Rejection{Code: "AR", Final: true}
	case l.oneIn(12):
		return message.Receipt{}, &message.Rejection{Code: "AE"}
	}
	r.o.mu.Lock()
	defer r.o.mu.Unlock()
	if want := fmt.Sprintf("%d %s %s", d.Message, base(d.Handler), r.base); string(d.Body) != want {
		r.o.t.Errorf("receiver %s got %q of delivery %s, want %q", r.base, d.Body, d.Name(), want)
	}
	r.o.arrived = append(r.o.arrived, d)
	return message.Receipt{Text: "AA"}, nil
}

func (o *ordering) start() {
	c := pipeline.Config{Store: o.s, Grace: 2 * time.Millisecond}
	both := []string{o.name("a"), o.name("b")}
	for _, b := range []string{"g", "h"} {
		c.Handlers = append(c.Handlers, pipeline.Handler{Name: o.name(b), To: both, Attempts: 2, Runner: orderHandler{o, b}, HoldAfter: 3})
	}
	for _, b := range []string{"x", "y"} {
		c.Inbounds = append(c.Inbounds, pipeline.Inbound{Name: o.name(b), Handlers: []string{o.name("g"), o.name("h")}})
	}
	for _, b := range []string{"a", "b"} {
		c.Outbounds = append(c.Outbounds, pipeline.Outbound{Name: o.name(b), Sender: orderReceiver{o, b},
			Retry: pipeline.Retry{First: time.Millisecond, Max: 4 * time.Millisecond, Rejected: 2, Hold: b == "a"}})
	}
	ctx, stop := context.WithCancel(context.Background())
	p, ended := pipeline.New(c), make(chan struct{})
	o.p, o.stop, o.ended = p, stop, ended
	go func() {
		defer close(ended)
		p.Run(ctx)
	}()
}

func (o *ordering) end() {
	o.stop()
	<-o.ended
}

// declared is what is declared, with the names of before the last rename.
func (o *ordering) declared() message.Names {
	n := message.Names{Inbounds: map[string]string{}, Handlers: map[string]message.Plan{}, Outbounds: map[string]string{}}
	for i := range o.names + 1 {
		was := func(b string) string { return fmt.Sprintf("%s-%d", b, i) }
		for _, b := range []string{"x", "y"} {
			n.Inbounds[was(b)] = o.name(b)
		}
		for _, b := range []string{"g", "h"} {
			n.Handlers[was(b)] = message.Plan{Handler: o.name(b), To: []string{o.name("a"), o.name("b")}}
		}
		for _, b := range []string{"a", "b"} {
			n.Outbounds[was(b)] = o.name(b)
		}
	}
	return n
}

func (o *ordering) one(of ...string) string { return of[o.rand.IntN(len(of))] }

// target draws anything that can be held.
func (o *ordering) target() message.Target {
	switch o.rand.IntN(4) {
	case 0:
		return message.Target{Kind: message.KindInbound, Name: o.name(o.one("x", "y"))}
	case 1:
		return message.Target{Kind: message.KindHandler, Name: o.name(o.one("g", "h"))}
	case 2:
		return message.Target{Kind: message.KindOutbound, Name: o.name(o.one("a", "b"))}
	}
	return message.Target{Kind: message.KindOutbound, Name: o.name(o.one("a", "b")), Inbound: o.name(o.one("x", "y"))}
}

// act does one thing at random.
func (o *ordering) act() {
	ctx := context.Background()
	switch n := o.rand.IntN(100); {
	case n < 55:
		in := message.Incoming{Inbound: o.name(o.one("x", "y")), Body: []byte("m")}
		if o.last > 0 && o.rand.IntN(10) == 0 {
			in.Resubmits = 1 + message.ID(o.rand.Int64N(int64(o.last)))
		}
		id, err := o.p.Receive(ctx, in)
		must(o.t, err)
		o.last = id
	case n < 62:
		must(o.t, o.p.Hold(ctx, message.Hold{Target: o.target(), Reason: "by hand"}))
	case n < 77:
		_, err := o.p.Release(ctx, o.target(), o.rand.IntN(2) == 0)
		must(o.t, err)
	case n < 92 && o.last > 0:
		o.replay()
	case n < 96:
		time.Sleep(2 * time.Millisecond) // so that more than one kind of moment is met
	default:
		o.change(o.rand.IntN(2) == 0, o.rand.IntN(2) == 0)
	}
}

// replay replays one of the latest messages of which a part has failed.
func (o *ordering) replay() {
	dead, err := o.s.DeadLetters(context.Background(), store.DeadLetters{Limit: 20})
	must(o.t, err)
	if len(dead) == 0 {
		return
	}
	_, err = o.p.Replay(context.Background(), dead[o.rand.IntN(len(dead))].Message, o.declared())
	must(o.t, err)
}

// change ends the pipeline, perhaps the store too, perhaps renames everything, and starts the next one.
func (o *ordering) change(reopen, rename bool) {
	o.end()
	if reopen {
		must(o.t, o.s.Close())
		o.open()
	}
	if rename {
		o.names++
		_, err := o.s.Rename(context.Background(), o.declared())
		must(o.t, err)
	}
	o.start()
}

func (o *ordering) open() {
	var err error
	o.s, err = Open(context.Background(), o.path, Options{})
	must(o.t, err)
	// Nobody cuts the power here, and a commit that waits for the disk is most of the time.
	_, err = o.s.writer.conn.ExecContext(context.Background(), "PRAGMA synchronous=OFF")
	must(o.t, err)
}

// settle lets everything end, with nothing that fails any more.
func (o *ordering) settle() {
	o.luck.calm.Store(true)
	for limit := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		list, err := o.s.Holds(context.Background())
		must(o.t, err)
		for _, h := range list {
			_, err := o.p.Release(context.Background(), h.Target, false)
			must(o.t, err)
		}
		n, err := o.s.Unfinished(context.Background())
		must(o.t, err)
		if n == 0 {
			return
		}
		if time.Now().After(limit) {
			o.t.Fatalf("%d messages do not end", n)
		}
	}
}

// check compares what the receivers took with the books. In each lane deliveries have left in the order of their places, which their
// ids follow; those that no replay made, the first four of a message, in the order in which the messages were received.
func (o *ordering) check() {
	took := map[int64]bool{}
	before, first := map[string]int64{}, map[string]message.ID{}
	for _, d := range o.arrived {
		lane := base(d.Inbound) + ">" + base(d.Outbound)
		if took[d.ID] {
			o.t.Errorf("delivery %s arrived twice", d.Name())
		}
		if took[d.ID] = true; d.ID < before[lane] {
			o.t.Errorf("lane %s: delivery %s came behind one of a later place", lane, d.Name())
		}
		before[lane] = d.ID
		if d.Number <= 4 {
			if d.Message < first[lane] {
				o.t.Errorf("lane %s: delivery %s came behind message %d", lane, d.Name(), first[lane])
			}
			first[lane] = d.Message
		}
	}
	done := 0
	want := map[message.Disposition]int64{}
	for id := range o.last {
		tl, err := o.s.Outline(context.Background(), id+1)
		must(o.t, err)
		d, n := o.disposition(tl, took)
		if want[d]++; tl.Message.Disposition != d {
			o.t.Errorf("message %d is %s, want %s", id+1, tl.Message.Disposition, d)
		}
		done += n
	}
	if done != len(o.arrived) {
		o.t.Errorf("the books have %d deliveries, the receivers %d", done, len(o.arrived))
	}
	counts, err := o.s.Counts(context.Background())
	must(o.t, err)
	for d, n := range counts {
		if n != want[d] {
			o.t.Errorf("%d messages are counted as %s, want %d", n, d, want[d])
		}
	}
}

// disposition derives what a message has to stand at from its parts, and counts what was delivered of it.
func (o *ordering) disposition(tl store.Timeline, took map[int64]bool) (d message.Disposition, done int) {
	d = message.Filtered
	failed := false
	for _, r := range tl.Runs {
		failed = failed || r.State == message.RunError && r.Replayed.IsZero()
	}
	for _, dl := range tl.Deliveries {
		if (dl.State == message.Delivered) != took[dl.ID] {
			o.t.Errorf("delivery %s is %s, and that it arrived is %t", dl.Name(), dl.State, took[dl.ID])
		}
		if dl.State == message.Delivered {
			d, done = message.Processed, done+1
		}
		failed = failed || dl.State == message.Dead && dl.Replayed.IsZero()
	}
	if failed {
		d = message.Error
	}
	return d, done
}

// TestStrictOrder mixes messages, handlers and receivers that fail, holds, releases, replays, resubmits, what is given up on, reloads,
// renames and restarts at random on a real store: in each lane deliveries leave in order, those that a replay made at the tail; none is
// lost, doubled, or elsewhere; and the books are what the receivers saw. Red with heads that are reserved passed over in sqlHeads,
// with the last of a lane for its head, and with a replay that takes a place at the front.
//
// COPPICE_TEST_ORDER is how many rounds of 300 acts, COPPICE_SEED repeats a run.
func TestStrictOrder(t *testing.T) {
	rounds, _ := strconv.Atoi(cmp.Or(os.Getenv("COPPICE_TEST_ORDER"), orderRounds))
	seed, err := strconv.ParseUint(os.Getenv("COPPICE_SEED"), 10, 64)
	if err != nil {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	total, replayed := 0, 0
	for n := range rounds {
		o := &ordering{t: t, rand: rand.New(rand.NewPCG(seed, uint64(n))), path: newPath(t),
			luck: &lucky{rand: rand.New(rand.NewPCG(seed, uint64(n)+1<<32))}}
		o.open()
		o.start()
		for range 300 {
			o.act()
		}
		o.settle()
		o.end()
		o.check()
		must(t, o.s.Close())
		total += len(o.arrived)
		for _, d := range o.arrived {
			if d.Number > 4 {
				replayed++
			}
		}
		if t.Failed() {
			t.Fatalf("in round %d of seed %d", n, seed)
		}
	}
	t.Logf("%d deliveries, %d of them replayed", total, replayed)
}
