package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"coppice.dev/coppice/internal/message"
)

// world acts a scenario out. It outlives the engine: what a receiver has taken, it has.
type world struct {
	*scenario
	store *memory
	began time.Time
	now   atomic.Pointer[Pipeline] // the one that receives; nil between two lives

	mu       sync.Mutex
	life     int
	troubled map[int]bool // lives that ended while the store was in trouble
	busy     map[string]int
	counts   map[string]int // of what happened once, or a few times
	clock    int
	arrivals []arrival
	wrong    []string
}

type arrival struct {
	life int
	out  int
	lane string
	body string
}

func newWorld(s *scenario) *world {
	w := &world{scenario: s, store: &memory{}, began: time.Now(), busy: map[string]int{}, counts: map[string]int{}, troubled: map[int]bool{}}
	w.store.latency = func(string) time.Duration { return w.takes() / 10 }
	w.store.fault = w.fault
	return w
}

// fault is the store's trouble. A sender that cannot know whether it was received would resend, and the scenario with it.
func (w *world) fault(call string) (err error, happens bool) {
	for _, t := range w.troubles {
		if w.isDown([]span{t.span}) {
			return errFull, t.happens && call != "Receive"
		}
	}
	return nil, false
}

// takes is how long the next thing takes.
func (w *world) takes() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clock++
	return w.took[w.clock%len(w.took)]
}

// count returns how often this was counted before.
func (w *world) count(what string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[what]++
	return w.counts[what] - 1
}

func (w *world) isDown(spans []span) bool {
	at := time.Since(w.began)
	return slices.ContainsFunc(spans, func(s span) bool { return s.from <= at && at < s.to })
}

// alone notes that a runner is at work, which it is once at a time.
func (w *world) alone(who string) (leave func()) { return w.among(1, who) }

// among notes that somebody is at work, who is that a few times at a time at most.
func (w *world) among(most int, who string) (leave func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy[who]++
	if w.busy[who] > most {
		w.wrong = append(w.wrong, fmt.Sprintf("%s is at work %d times at a time", who, w.busy[who]))
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.busy[who]--
	}
}

func (w *world) config() Config {
	c := Config{Store: w.store, Grace: 10 * time.Second}
	for i := range w.outbounds {
		c.Outbounds = append(c.Outbounds, Outbound{Name: fmt.Sprint("o", i), Sender: receiver{w, i},
			Retry: Retry{First: 20 * time.Millisecond, Max: time.Second, Rejected: mostRejected}, Parallel: w.parallel[i]})
	}
	for i, h := range w.handlers {
		var to []string
		for _, o := range h.to {
			to = append(to, fmt.Sprint("o", o))
		}
		c.Handlers = append(c.Handlers, Handler{Name: fmt.Sprint("h", i), To: to, Attempts: 2, Runner: w.handler(i)})
	}
	for i, in := range w.inbounds {
		p := Inbound{Name: fmt.Sprint("i", i), Attempts: 2}
		if in.static == nil {
			p.Router = w.router(i)
		}
		for _, h := range in.static {
			p.Handlers = append(p.Handlers, fmt.Sprint("h", h))
		}
		c.Inbounds = append(c.Inbounds, p)
	}
	return c
}

func (w *world) router(i int) function {
	return func(ctx context.Context, m *message.Message, _ int) (a Answer, err error) {
		who := fmt.Sprint("router ", i)
		defer w.alone(who)()
		route := w.messages[m.ID-1].route
		if err := w.attempt(ctx, fmt.Sprint(who, " of ", m.ID), route.act, w.inbounds[i].down); err != nil {
			return Answer{}, err
		}
		for _, h := range route.chosen {
			a.Handlers = append(a.Handlers, fmt.Sprint("h", h))
		}
		if route.act == unknown {
			a.Handlers = append(a.Handlers, "h9")
		}
		return a, nil
	}
}

func (w *world) handler(i int) function {
	return func(ctx context.Context, m *message.Message, _ int) (a Answer, err error) {
		who := fmt.Sprint("handler ", i)
		defer w.alone(who)()
		part := w.messages[m.ID-1].parts[i]
		if err := w.attempt(ctx, fmt.Sprint(who, " of ", m.ID), part.act, w.handlers[i].down); err != nil {
			return Answer{}, err
		}
		if part.act == drops {
			return Answer{Dropped: true, Drop: "not ours"}, nil
		}
		for n, send := range part.sends {
			a.Sends = append(a.Sends, message.Send{To: fmt.Sprint("o", send.to), Body: []byte(body(m.ID, i, n))})
		}
		if part.act == unknown {
			a.Sends = append(a.Sends, message.Send{To: "o9"})
		}
		return a, nil
	}
}

// attempt is one attempt of a function, up to its answer.
func (w *world) attempt(ctx context.Context, what string, a act, down []span) error {
	if w.isDown(down) {
		return errors.New("worker cannot boot")
	}
	if !sleep(ctx, w.takes()) {
		return fails(TheWorker, "crash", "", "cut") // as a worker dies that is cut; nobody may count it
	}
	switch {
	case a == raises:
		return fails(TheMessage, "handler", "ValueError", "bad")
	case a == poisons, a == crashes && w.count(what) == 0:
		return fails(TheWorker, "crash", "", "killed by signal 9")
	}
	return nil
}

// most is how many deliveries an outbound has out at a time at most.
func (w *world) most(out int) int { return max(1, w.parallel[out]) }

// receiver is one outbound with what is behind it.
type receiver struct {
	w   *world
	out int
}

func (r receiver) Send(ctx context.Context, d message.Delivery) (message.Receipt, error) {
	w := r.w
	defer w.among(w.most(r.out), fmt.Sprint("outbound ", r.out))()
	var id message.ID
	var h, n, in int
	if _, err := fmt.Sscanf(string(d.Body)+" "+d.Inbound, "m%d h%d s%d i%d", &id, &h, &n, &in); err != nil {
		return message.Receipt{}, fmt.Errorf("delivery %s has body %q: %w", d.Name(), d.Body, err)
	}
	if !sleep(ctx, w.takes()) {
		return message.Receipt{}, ctx.Err()
	}
	send := w.messages[id-1].parts[h].sends[n]
	switch {
	case send.act == refuses:
		return message.Receipt{}, &message.Rejection{Code: "AR", Final: true}
	case send.act == deadens, send.act == rejects && w.count(string(d.Body)) < send.faults:
		return message.Receipt{}, &message.Rejection{Code: "AE"}
	case send.act == unreached && w.count(string(d.Body)) < send.faults:
		return message.Receipt{}, errors.New("connection reset")
	}
	w.mu.Lock()
	w.arrivals = append(w.arrivals, arrival{life: w.life, out: r.out, lane: lane(in, r.out), body: string(d.Body)})
	w.mu.Unlock()
	if !sleep(ctx, w.takes()) { // it has arrived, and its ACK is lost
		return message.Receipt{}, ctx.Err()
	}
	return message.Receipt{Text: "AA"}, nil
}

// feed sends in what the scenario has, as senders do: again, until it is acknowledged.
func (w *world) feed(ctx context.Context) {
	for i, m := range w.messages {
		time.Sleep(m.wait)
		for ctx.Err() == nil {
			if p := w.now.Load(); p != nil {
				id, err := p.Receive(ctx, message.Incoming{Inbound: fmt.Sprint("i", m.inbound), Body: []byte("x")})
				if err == nil && int(id) != i+1 {
					w.mu.Lock()
					w.wrong = append(w.wrong, fmt.Sprintf("message %d got id %d", i+1, id))
					w.mu.Unlock()
				}
				if err == nil {
					break
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// live runs one engine until its life is over, or until all is done; false if it never is.
func (w *world) live(life scenLife, fed <-chan struct{}) bool {
	c := w.config()
	if life.end == cuts {
		c.Grace = 0
	}
	proc := &process{}
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), processKey{}, proc))
	p, ended := New(c), make(chan struct{})
	go func() {
		defer close(ended)
		p.Run(ctx)
	}()
	w.now.Store(p)
	done := true
	if life.end != "" {
		time.Sleep(life.length)
	} else {
		done = w.finish(fed)
	}
	w.now.Store(nil)
	if life.end == isKilled {
		proc.kill(w.store)
		p.cfg.Grace = 0
	}
	err, _ := w.fault("at the end")
	cancel()
	<-ended
	if again, _ := w.fault("at the end"); err != nil || again != nil {
		w.troubled[w.life] = true
	}
	return done
}

// finish waits until nothing is left to do, for an hour at most.
func (w *world) finish(fed <-chan struct{}) bool {
	for range 3600 {
		select {
		case <-fed:
			if w.store.unfinished() == 0 {
				return true
			}
		default:
		}
		time.Sleep(time.Second)
	}
	return false
}
