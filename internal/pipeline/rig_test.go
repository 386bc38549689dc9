package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"coppice.dev/coppice/internal/message"
)

// rig is a pipeline on a memory store, between fakes, in fake time.
type rig struct {
	t      *testing.T
	store  *memory
	cfg    Config
	p      *Pipeline
	cancel context.CancelFunc
	ended  chan struct{}

	mu     sync.Mutex
	events []string // what the observer saw
}

// inTime runs a test with a rig in fake time, stops what it started, and fails it for every breach of a contract.
func inTime(t *testing.T, test func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, store: &memory{}}
		r.cfg = Config{Store: r.store, Grace: 5 * time.Second, Observer: r.observer()}
		test(r)
		r.stop()
		for _, b := range r.store.breaches {
			t.Error("breach of the store's contract:", b)
		}
	})
}

func (r *rig) observer() Observer {
	return Observer{
		Held: func(what string, _ error, wait time.Duration) {
			if wait == 0 {
				r.event("held until released %s", what)
			} else {
				r.event("held %s", what)
			}
		},
		Released: func(what string) { r.event("released %s", what) },
		Routed: func(id message.ID, _ string, handlers []string) {
			r.event("routed %d %s", id, strings.Join(handlers, "+"))
		},
		Sent:    func(d message.Delivery, _ message.Receipt) { r.event("sent %s", d.Name()) },
		Parked:  func(d message.Delivery, _ string) { r.event("parked %s", d.Name()) },
		Buried:  func(d message.Delivery, _ string) { r.event("buried %s", d.Name()) },
		Retried: func(d message.Delivery, _ error, _ time.Duration) { r.event("retried %s", d.Name()) },
	}
}

func (r *rig) event(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, fmt.Sprintf(format, args...))
}

func (r *rig) saw(event string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if e == event {
			n++
		}
	}
	return n
}

func (r *rig) inbound(name string, router Runner, handlers ...string) {
	r.cfg.Inbounds = append(r.cfg.Inbounds, Inbound{Name: name, Router: router, Attempts: 2, Handlers: handlers})
}

func (r *rig) handler(name string, run Runner, to ...string) {
	r.cfg.Handlers = append(r.cfg.Handlers, Handler{Name: name, To: to, Attempts: 2, Runner: run})
}

// outbound adds one whose receiver takes everything, unless answer says otherwise.
func (r *rig) outbound(name string, answer func(ctx context.Context, d message.Delivery) error) *peer {
	p := &peer{answer: answer}
	r.cfg.Outbounds = append(r.cfg.Outbounds, Outbound{Name: name, Sender: p,
		Retry: Retry{First: time.Second, Max: 10 * time.Second, Rejected: 3}})
	return p
}

// start starts a new pipeline on the same store, as after a restart, and waits until nothing moves without time passing.
func (r *rig) start() {
	ctx, cancel := context.WithCancel(r.t.Context())
	p, ended := New(r.cfg), make(chan struct{})
	r.p, r.cancel, r.ended = p, cancel, ended
	go func() {
		defer close(ended)
		if err := p.Run(ctx); err != nil {
			r.t.Error("run:", err)
		}
	}()
	synctest.Wait()
}

// stop returns how long the stop took.
func (r *rig) stop() time.Duration {
	if r.cancel == nil {
		return 0
	}
	began := time.Now()
	r.cancel()
	<-r.ended
	return time.Since(began)
}

// receive has one message received whose body is its type, and waits until nothing moves without time passing.
func (r *rig) receive(inbound string, types ...string) {
	r.t.Helper()
	for _, typ := range types {
		if _, err := r.p.Receive(r.t.Context(), message.Incoming{Inbound: inbound, Type: typ, Body: []byte(typ)}); err != nil {
			r.t.Error("receive:", err)
		}
	}
	synctest.Wait()
}

func (r *rig) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// is checks how a message stands.
func (r *rig) is(id message.ID, want message.Disposition, reason string) {
	r.t.Helper()
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	m := r.store.messages[id-1]
	if m.Disposition != want || m.Reason != reason {
		r.t.Errorf("message %d is %s, reason %q; want %s, reason %q", id, m.Disposition, m.Reason, want, reason)
	}
}

func (r *rig) delivery(id int64) message.Delivery {
	r.t.Helper()
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	if id > int64(len(r.store.deliveries)) {
		r.t.Errorf("there is no delivery %d", id)
		return message.Delivery{}
	}
	return r.store.deliveries[id-1].Delivery
}

func (r *rig) outcome(id message.ID, handler string) message.Outcome {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	for _, run := range r.store.messages[id-1].runs {
		if run.Handler == handler {
			return run.Outcome
		}
	}
	r.t.Errorf("message %d has no run of handler %q", id, handler)
	return message.Outcome{}
}

// function is a runner made of a function. It is never run twice at a time.
type function func(ctx context.Context, m *message.Message, attempt int) (Answer, error)

func (f function) Run(ctx context.Context, m *message.Message, attempt int) (Answer, error) {
	return f(ctx, m, attempt)
}

func choose(handlers ...string) function {
	return func(context.Context, *message.Message, int) (Answer, error) { return Answer{Handlers: handlers}, nil }
}

// sendTo answers with the message's own body for each outbound.
func sendTo(outbounds ...string) function {
	return func(_ context.Context, m *message.Message, _ int) (a Answer, _ error) {
		for _, to := range outbounds {
			a.Sends = append(a.Sends, message.Send{To: to, Body: m.Body})
		}
		return a, nil
	}
}

// after takes its time, and then answers.
func (f function) after(d time.Duration) function {
	return func(ctx context.Context, m *message.Message, attempt int) (Answer, error) {
		if !sleep(ctx, d) {
			return Answer{}, ctx.Err()
		}
		return f(ctx, m, attempt)
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

func fails(blame Blame, kind, typ, text string) error {
	return &Failure{Blame: blame, Fault: message.Fault{Kind: kind, Type: typ, Text: text}}
}

func failing(err error) function {
	return func(context.Context, *message.Message, int) (Answer, error) { return Answer{}, err }
}

// peer is an outbound and its receiver.
type peer struct {
	answer func(ctx context.Context, d message.Delivery) error

	mu    sync.Mutex
	busy  bool
	tried []time.Time
	took  []string // bodies
}

func (p *peer) Send(ctx context.Context, d message.Delivery) (message.Receipt, error) {
	p.mu.Lock()
	twice := p.busy
	p.busy = true
	p.tried = append(p.tried, time.Now())
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.busy = false
	}()
	if twice {
		return message.Receipt{}, errors.New("two sends at a time")
	}
	if p.answer != nil {
		if err := p.answer(ctx, d); err != nil {
			return message.Receipt{}, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.took = append(p.took, string(d.Body))
	return message.Receipt{Text: "AA"}, nil
}

// got checks what the receiver took, in order.
func (p *peer) got(t *testing.T, want ...string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Equal(p.took, want) {
		t.Errorf("receiver took %q, want %q", p.took, want)
	}
}

func (p *peer) tries() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.tried)
}

// waits returns how long it was between one try and the next.
func (p *peer) waits() (waits []time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := 1; i < len(p.tried); i++ {
		waits = append(waits, p.tried[i].Sub(p.tried[i-1]))
	}
	return waits
}
