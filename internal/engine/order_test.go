package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/pipeline"
	"coppice.dev/coppice/internal/store"
)

// slowStore has the next commit of an order wait until it is let go.
type slowStore struct {
	store.Store
	mu   sync.Mutex
	next *slowCommit
}

type slowCommit struct{ began, goes chan struct{} }

// slow makes the next commit wait.
func (s *slowStore) slow() *slowCommit {
	c := &slowCommit{make(chan struct{}), make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = c
	return c
}

func (s *slowStore) wait() {
	s.mu.Lock()
	c := s.next
	s.next = nil
	s.mu.Unlock()
	if c != nil {
		close(c.began)
		<-c.goes
	}
}

func (s *slowStore) Hold(ctx context.Context, h message.Hold) error {
	s.wait()
	return s.Store.Hold(ctx, h)
}

func (s *slowStore) Release(ctx context.Context, t message.Target, bury bool) ([]message.Hold, error) {
	s.wait()
	return s.Store.Release(ctx, t, bury)
}

func (s *slowStore) Replay(ctx context.Context, id message.ID, names message.Names) (message.Replay, error) {
	s.wait()
	return s.Store.Replay(ctx, id, names)
}

func (s *slowStore) ReceiveRouted(ctx context.Context, in message.Incoming, plans []message.Plan) (message.ID, []message.Pending, error) {
	s.wait()
	return s.Store.ReceiveRouted(ctx, in, plans)
}

// ordersTOML has an inbound that a reload renames, as it does the handler, and one that stays as it is.
const ordersTOML = stampTOML + `
[inbound.other]
mllp = { listen = "127.0.0.1:0" }
handlers = ["stamp"]
`

var renamesAll = strings.NewReplacer("[inbound.feed]", "[inbound.admissions]\nwas = [\"feed\"]",
	"[handler.stamp]", "[handler.marks]\nwas = [\"stamp\"]", `["stamp"]`, `["marks"]`)

// TestOrdersDuringReload: an order that is being committed when a reload changes the pipelines is carried out as if it had come
// before or after. Red without the lock in reload: a hold or a release is not heard of by the pipeline that goes on, and what is
// replayed or resubmitted waits for a name that is gone. Red without the pipeline's endReceiving: what is received waits for one.
func TestOrdersDuringReload(t *testing.T) {
	needPython(t)
	emr := message.Target{Kind: message.KindOutbound, Name: "emr"}
	handler := func(name string) message.Target { return message.Target{Kind: message.KindHandler, Name: name} }
	release := func(e *served) error { _, err := e.Release(t.Context(), emr, false); return err }
	hold := func(e *served) error { return e.Hold(t.Context(), emr, "by hand") }
	for name, c := range map[string]struct {
		code          string // of the handler before the reload; empty: good
		before, order func(e *served) error
		failed        func(e *served) error
		after         func(e *served) error
		sent          int // messages that are delivered in the end, with one that comes after all
	}{
		"release": {before: hold, order: release, sent: 2},
		"replay": {
			code:  "from coppice_worker import handler\n@handler\ndef stamp(msg, ctx):\n    raise ValueError\n",
			order: func(e *served) error { _, err := e.Replay(t.Context(), 1); return err },
			// Held after it has failed, lest the old code fails on it once more before the reload.
			failed: func(e *served) error { return e.Hold(t.Context(), handler("stamp"), "by hand") },
			after:  func(e *served) error { _, err := e.Release(t.Context(), handler("marks"), false); return err },
			sent:   2,
		},
		"resubmit": {order: func(e *served) error { _, err := e.Resubmit(t.Context(), 1, nil); return err }, sent: 3},
		"receive": {sent: 3, order: func(e *served) error {
			_, err := sink{e.Engine}.Receive(t.Context(), message.Incoming{Inbound: "other", Body: numbered(1)})
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			receiver := newEMR(t, nil)
			o := &orderWorld{receiver: receiver, toml: fmt.Sprintf(ordersTOML, "127.0.0.1:0", receiver.Addr())}
			o.open(t, cmp.Or(c.code, stamp("0")), Options{})
			o.do(t, c.before)
			exchange(t, dial(t, o.Addr("feed")), numbered(0))
			if c.before == nil {
				o.quiet(t, 1)
			}
			o.do(t, c.failed)
			o.reloadDuring(t, c.order)
			o.do(t, c.after)
			want := c.sent - 1
			within(t, lookedAgain, func() bool { return len(receiver.got()) == want })
			exchange(t, dial(t, o.Addr("other")), numbered(2))
			within(t, lookedAgain, func() bool { return len(receiver.got()) == c.sent })
		})
	}
	// A reload that is refused late has had messages come through a pipeline that never runs. Red without Look in sink.Receive:
	// such a one waits for the next.
	t.Run("receive through a pipeline that is given up", func(t *testing.T) {
		receiver := newEMR(t, nil)
		o := &orderWorld{receiver: receiver, toml: fmt.Sprintf(ordersTOML, "127.0.0.1:0", receiver.Addr())}
		o.open(t, stamp("0"), Options{})
		runs := o.now.Load()
		givenUp := *runs
		givenUp.pipeline = pipeline.New(o.pipelineConfig(&givenUp))
		o.now.Store(&givenUp)
		slow, received := o.store.slow(), make(chan error, 1)
		go func() {
			_, err := sink{o.Engine}.Receive(t.Context(), message.Incoming{Inbound: "other", Body: numbered(1)})
			received <- err
		}()
		<-slow.began
		o.now.Store(runs)
		close(slow.goes)
		if err := <-received; err != nil {
			t.Fatal(err)
		}
		within(t, lookedAgain, func() bool { return len(receiver.got()) == 1 })
	})
	// A reload does not wait for an order that waits for a send. Red without lose in orders.reload: the reload, and all that comes
	// behind it, waits for the receiver's answer.
	t.Run("burial", func(t *testing.T) {
		answers, asked := make(chan struct{}), make(chan struct{}, 10)
		receiver := newEMR(t, func() bool {
			asked <- struct{}{}
			<-answers
			return false
		})
		defer close(answers)
		o := &orderWorld{receiver: receiver, toml: fmt.Sprintf(ordersTOML, "127.0.0.1:0", receiver.Addr())}
		o.open(t, stamp("0"), Options{})
		exchange(t, dial(t, o.Addr("feed")), numbered(0))
		<-asked
		lane := emr
		lane.Inbound = "feed"
		if err := o.Hold(t.Context(), lane, "by hand"); err != nil {
			t.Fatal(err)
		}
		buried := make(chan error, 1)
		go func() {
			_, err := o.Release(t.Context(), lane, true)
			buried <- err
		}()
		eventually(t, func() bool { // it is under way
			if o.orders.names.TryLock() {
				o.orders.names.Unlock()
				return false
			}
			return true
		})
		write(t, filepath.Join(o.dir, "stamp.py"), stamp("1"))
		if _, err := o.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-buried; !errors.Is(err, errReloading) {
			t.Errorf("the burial: %v", err)
		}
		if err := o.Hold(t.Context(), lane, "after it"); err != nil {
			t.Error(err)
		}
	})
	t.Run("hold", func(t *testing.T) {
		receiver := newEMR(t, nil)
		held := make(chan string, 10)
		o := &orderWorld{receiver: receiver, toml: fmt.Sprintf(ordersTOML, "127.0.0.1:0", receiver.Addr())}
		o.open(t, stamp("0"), Options{Pipeline: pipeline.Observer{Held: func(what string, _ error, _ time.Duration) { held <- what }}})
		o.reloadDuring(t, hold)
		exchange(t, dial(t, o.Addr("other")), numbered(0))
		within(t, lookedAgain, func() bool { return len(held) > 0 || len(receiver.got()) > 0 })
		if len(receiver.got()) > 0 {
			t.Error("what was held is sent")
		}
	})
}

// lookedAgain is less than the time after which a pipeline looks for work that nobody told it of.
const lookedAgain = 20 * time.Second

// orderWorld is an engine on a slow store.
type orderWorld struct {
	*served
	receiver *emr
	toml     string
	dir      string
	store    *slowStore
}

func (o *orderWorld) open(t *testing.T, code string, options Options) {
	t.Helper()
	o.dir = folder(t, o.toml)
	write(t, filepath.Join(o.dir, "stamp.py"), code)
	o.served = serveOn(t, o.dir, options, func(e *Engine) {
		o.store = &slowStore{Store: e.store}
		e.store = o.store
		g := e.now.Load()
		g.pipeline = pipeline.New(e.pipelineConfig(g))
	})
}

// do does what a case has to do, if anything.
func (o *orderWorld) do(t *testing.T, what func(*served) error) {
	t.Helper()
	if what != nil {
		if err := what(o.served); err != nil {
			t.Fatal(err)
		}
	}
}

// reloadDuring gives an order, and reloads with other names while its commit is under way.
func (o *orderWorld) reloadDuring(t *testing.T, order func(*served) error) {
	t.Helper()
	slow := o.store.slow()
	ordered, reloaded := make(chan error, 1), make(chan error, 1)
	go func() { ordered <- order(o.served) }()
	<-slow.began
	write(t, filepath.Join(o.dir, "coppice.toml"), renamesAll.Replace(o.toml))
	write(t, filepath.Join(o.dir, "stamp.py"), stamp("1"))
	go func() {
		_, err := o.Reload(t.Context())
		reloaded <- err
	}()
	eventually(t, func() bool { // either it waits for the order, or it has ended
		if !o.orders.names.TryRLock() {
			return true
		}
		o.orders.names.RUnlock()
		return len(reloaded) > 0
	})
	close(slow.goes)
	if err := <-ordered; err != nil {
		t.Fatal("the order:", err)
	}
	if err := <-reloaded; err != nil {
		t.Fatal("the reload:", err)
	}
}
