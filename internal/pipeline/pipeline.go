// Package pipeline moves messages: received -> routed -> outbound -> done. It declares what it needs of a store, of a
// runner of the user's functions and of a sender, and imports none of the packages that have them: package engine joins
// them, and the tests use fakes and fake time.
//
// Order. Each inbound's messages are routed one at a time, in receive order, in the transaction that receives them where no
// router has to be asked and none waits; routing reserves a place in the lane of every
// outbound that a chosen handler may name. Each handler takes its messages one at a time, in the order in which they were
// planned, and its outcome fills its places or closes them. Each outbound sends the head of a lane, waits for the commit
// of its end, and only then looks for the next. A head that is still reserved makes its lane wait, and no other. An outbound
// that keeps no order sends whatever is ready, several at once.
//
// Nothing here is remembered that the store does not have: a crash at any moment leaves every message where its last
// committed hand-over put it, and Run goes on from there. What is read ahead, or offered by a receiver, is a copy. The
// exception is how long a retry still has to wait, which is measured by the monotonic clock while the pipeline runs.
package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"coppice.dev/coppice/internal/message"
)

// ErrStopped is returned by Receive once the pipeline stops: nothing was committed.
var ErrStopped = errors.New("pipeline is stopping")

// Store is what the pipeline needs of the durable queue; package store documents the methods.
type Store interface {
	ReceiveRouted(ctx context.Context, in message.Incoming, plans []message.Plan) (id message.ID, runs []message.Pending, err error)
	ReceiveAll(ctx context.Context, all []message.Incoming) ([]message.Taken, error)
	NextReceived(ctx context.Context, inbound string) (*message.Message, error)
	Route(ctx context.Context, id message.ID, plans []message.Plan, run message.Outcome) error
	FailRoute(ctx context.Context, id message.ID, run message.Outcome) error
	Extend(ctx context.Context, p message.Plan) error
	NextRuns(ctx context.Context, handler string, most int, bytes int64) ([]message.Pending, error)
	NextSize(ctx context.Context, of message.Target) (int64, error)
	EndRun(ctx context.Context, run int64, out message.Outcome) error
	Heads(ctx context.Context, outbound string, most int) ([]message.Delivery, error)
	KeepOrder(ctx context.Context, outbound string, keep bool) error
	Ready(ctx context.Context, outbound string, limit int) ([]message.Delivery, error)
	StillReady(ctx context.Context, delivery int64) (attempts int, ready bool, err error)
	DeliverySize(ctx context.Context, delivery int64) (int64, error)
	DeliveryBody(ctx context.Context, delivery int64) ([]byte, error)
	Delivered(ctx context.Context, delivery int64, r message.Receipt) error
	Retry(ctx context.Context, delivery int64, reason string, rejected bool, next time.Time) error
	Bury(ctx context.Context, delivery int64, reason string) error
	Park(ctx context.Context, delivery int64, reason string) error
	Holds(ctx context.Context) ([]message.Hold, error)
	Hold(ctx context.Context, h message.Hold) error
	Release(ctx context.Context, t message.Target, bury bool) ([]message.Hold, error)
	Replay(ctx context.Context, id message.ID, names message.Names) (message.Replay, error)
}

// Runner runs one function of the user's: a router or a handler.
type Runner interface {
	// Run makes one attempt on one message and returns the function's answer, or a *Failure. It returns soon after ctx
	// ends. It is called by one goroutine at a time.
	Run(ctx context.Context, m *message.Message, attempt int) (Answer, error)
}

// Answer is what a function answered. A router's has Handlers; a handler's has Sends, or is Dropped for a reason.
type Answer struct {
	Handlers []string
	Sends    []message.Send
	Dropped  bool
	Drop     string
	Tags     map[string]string
	Took     time.Duration
	Code     string // hash of the code that ran
	Printed  []message.Printed
}

// Blame is whose fault a failure is; it decides what becomes of the message.
type Blame int

// The three kinds of blame.
const (
	// Nobody's: no message pays. The work is held, and tried again after a while, for ever.
	Nobody Blame = iota
	// TheMessage's: the handler raised, or returned nonsense. Its part is ERROR at once.
	TheMessage
	// TheWorker's: crash, deadline, violation. A fresh worker gets one more attempt; then the message is poison.
	TheWorker
)

// Failure is a Runner's error.
type Failure struct {
	Blame Blame
	Fault message.Fault
	Code  string
	Took  time.Duration
	// Printed is by the worker that failed.
	Printed []message.Printed
}

func (f *Failure) Error() string {
	switch {
	case f.Fault.Type == "":
		return f.Fault.Text
	case f.Fault.Kind == "violation":
		return "protocol violation " + f.Fault.Type + ": " + f.Fault.Text
	}
	return f.Fault.Type + ": " + f.Fault.Text
}

// Sender delivers to one outbound.
type Sender interface {
	// Send delivers the body and returns what the receiver said of it. A *message.Rejection means that it arrived and was
	// turned down; every other error that it is to be tried again. It returns soon after ctx ends. It is called by
	// Outbound.Parallel goroutines at a time, or by one.
	Send(ctx context.Context, d message.Delivery) (message.Receipt, error)
}

// Inbound is one inbound connection: who routes its messages.
type Inbound struct {
	Name     string
	Router   Runner   // nil: every message goes to Handlers
	Attempts int      // of the router on one message, from 1
	Handlers []string // without a Router
	// HoldAfter is at how many failures of the router in a row the inbound's messages are routed no more until somebody
	// releases it; zero: never.
	HoldAfter int
}

// Handler is one handler.
type Handler struct {
	Name     string
	To       []string // all outbounds that it may name
	Attempts int      // workers that a message may cost before it is poison, from 1
	Runner   Runner
	// HoldAfter is at how many failures in a row the handler runs no more until somebody releases it; zero: never.
	HoldAfter int
}

// Outbound is one outbound connection.
type Outbound struct {
	Name   string
	Sender Sender
	Retry  Retry
	// Parallel is how many deliveries may be out at once, up to 64, in any order. Zero: one of each lane at a time, in order.
	Parallel int
}

// Retry says when a delivery that failed is tried again.
type Retry struct {
	First    time.Duration // after the first failure; it doubles with each one more
	Max      time.Duration // the longest wait
	Rejected int           // how often it may be rejected, from 1, before Hold says what becomes of it
	// Hold keeps what was rejected for good in its lane, and holds that lane until somebody releases it.
	// Otherwise it becomes a dead letter, and the lane goes on.
	Hold bool
}

// Config is what a pipeline is made of. Names are unique within their kind, and everything that is named exists.
type Config struct {
	Store     Store
	Inbounds  []Inbound
	Handlers  []Handler
	Outbounds []Outbound
	// Room is for the bodies in hand; nil: there is no bound.
	Room Room
	// Grace is how long, once Run's context has ended, what is under way may take to end by itself.
	Grace    time.Duration
	Log      *slog.Logger
	Observer Observer
}

// Observer takes what happens. Nil fields are skipped. The functions are called from the pipeline's goroutines and must
// not block.
type Observer struct {
	Received func(id message.ID, inbound string)
	Routed   func(id message.ID, inbound string, handlers []string)
	Ran      func(id message.ID, handler string, out message.Outcome) // handler empty: the router failed
	Sent     func(d message.Delivery, r message.Receipt)
	Retried  func(d message.Delivery, err error, wait time.Duration)
	Buried   func(d message.Delivery, reason string)
	Parked   func(d message.Delivery, reason string)
	// Held: the work of a router, handler or outbound ("inbound adt", "handler admit", "outbound emr", "outbound emr, lane
	// of adt") waits. With a wait it is tried again by itself: it waits through no fault of a message, since its worker
	// cannot start, or the store fails. Without one it waits until somebody releases it.
	Held func(what string, why error, wait time.Duration)
	// Released: it goes on.
	Released func(what string)
}

// Pipeline moves the messages of one store. Make one with New.
type Pipeline struct {
	cfg      Config
	handlers map[string]*Handler
	static   map[string]planned               // of an inbound whose router has not to be asked
	wake     map[message.Target]chan struct{} // there may be work
	holds    holds
	sends    map[string]*sends  // by outbound
	offers   map[string]*offers // by handler

	mu        sync.Mutex
	state     state
	receiving sync.WaitGroup  // while the pipeline moves
	late      context.Context // ends when that is waited for no longer
}

// planned is a choice of handlers, by their plans and by their names. It is not changed.
type planned struct {
	plans []message.Plan
	names []string
}

// state is where a pipeline's life has got to.
type state int

const (
	waits state = iota // for Run
	moves
	stopped
)

// New returns a pipeline that does nothing yet.
func New(cfg Config) *Pipeline {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	p := &Pipeline{cfg: cfg, handlers: map[string]*Handler{}, wake: map[message.Target]chan struct{}{}, static: map[string]planned{},
		sends: map[string]*sends{}, offers: map[string]*offers{}}
	p.holds.changed() // since nothing was read
	for _, in := range cfg.Inbounds {
		p.wake[routing(in.Name)] = make(chan struct{}, 1)
	}
	for i, h := range cfg.Handlers {
		p.handlers[h.Name] = &cfg.Handlers[i]
		p.wake[running(h.Name)] = make(chan struct{}, 1)
		p.offers[h.Name] = &offers{room: cfg.Room, more: true}
	}
	for _, in := range cfg.Inbounds {
		if in.Router == nil && p.unknownHandler(in.Handlers) == "" {
			plans, names := p.plan(in.Handlers)
			p.static[in.Name] = planned{plans, names}
		}
	}
	for _, o := range cfg.Outbounds {
		p.wake[delivering(o.Name)] = make(chan struct{}, 1)
		p.sends[o.Name] = &sends{busy: make(chan struct{}, max(o.Parallel, 1)), turn: make(chan struct{}, 1)}
	}
	return p
}

// routing, running and delivering name the work of an inbound, a handler and an outbound.
func routing(inbound string) message.Target {
	return message.Target{Kind: message.KindInbound, Name: inbound}
}

func running(handler string) message.Target {
	return message.Target{Kind: message.KindHandler, Name: handler}
}

func delivering(outbound string) message.Target {
	return message.Target{Kind: message.KindOutbound, Name: outbound}
}

// Receive commits one message and returns its id, or that of the message which it repeats; acknowledge it only after a nil
// error. It may be called from any goroutine, before and while Run runs; once Run's context has ended it returns ErrStopped.
func (p *Pipeline) Receive(ctx context.Context, in message.Incoming) (message.ID, error) {
	ctx, moving, leave, err := p.enter(ctx)
	if err != nil {
		return 0, err
	}
	defer leave()
	var to planned
	if moving { // before that, another pipeline may have work under other names
		to = p.static[in.Inbound]
	}
	id, runs, err := p.cfg.Store.ReceiveRouted(ctx, in, to.plans)
	routed := len(runs) > 0
	if errors.Is(err, message.ErrDuplicate) {
		p.received(message.Taken{ID: id, Duplicate: true}, in.Inbound)
		return id, nil
	}
	for _, run := range runs {
		if h := run.Run.Handler; p.offers[h].add(run, in.Body) {
			p.nudge(running(h))
		} else {
			p.kick(running(h))
		}
	}
	if err != nil { // the commit may have happened
		for _, name := range to.names {
			p.kick(running(name))
		}
	}
	if !routed {
		p.kick(routing(in.Inbound))
	}
	if err != nil {
		return 0, err
	}
	p.received(message.Taken{ID: id}, in.Inbound)
	if f := p.cfg.Observer.Routed; f != nil && routed {
		f(id, in.Inbound, to.names)
	}
	return id, nil
}

// ReceiveAll is Receive for several messages of one inbound, all or none. They are routed one by one.
func (p *Pipeline) ReceiveAll(ctx context.Context, all []message.Incoming) ([]message.ID, error) {
	ctx, _, leave, err := p.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if len(all) == 0 {
		return nil, nil
	}
	taken, err := p.cfg.Store.ReceiveAll(ctx, all)
	p.kick(routing(all[0].Inbound))
	if err != nil {
		return nil, err
	}
	ids := make([]message.ID, len(taken))
	for i, t := range taken {
		ids[i] = t.ID
		p.received(t, all[i].Inbound)
	}
	return ids, nil
}

// enter begins a receive; ErrStopped if it is too late for one. While the pipeline moves, Run waits for leave, and ends the
// receive's context when it waits no longer.
func (p *Pipeline) enter(ctx context.Context) (_ context.Context, moving bool, leave func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch p.state {
	case stopped:
		return nil, false, nil, ErrStopped
	case waits:
		return ctx, false, func() {}, nil
	}
	p.receiving.Add(1)
	ctx, cancel := context.WithCancel(ctx)
	stay := context.AfterFunc(p.late, cancel)
	return ctx, true, func() {
		stay()
		cancel()
		p.receiving.Done()
	}, nil
}

// received tells of a message that was committed, or came again.
func (p *Pipeline) received(t message.Taken, inbound string) {
	if t.Duplicate {
		p.cfg.Log.Info("duplicate", "inbound", inbound, "message", t.ID)
	} else if f := p.cfg.Observer.Received; f != nil {
		f(t.ID, inbound)
	}
}

// Run moves messages until ctx ends, and goes on with whatever the store has. Once ctx has ended no new work is taken up;
// what is under way has Config.Grace to end by itself, and is then cancelled, which loses nothing. What is known by then of
// a run or a delivery is still recorded, for which the store has commitWithin. Run returns nil when all of it has ended.
// Call it once.
func (p *Pipeline) Run(ctx context.Context) error {
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	if !p.extend(ctx) {
		return nil
	}
	late, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	p.late = late
	p.become(moves)
	var work sync.WaitGroup
	for i := range p.cfg.Inbounds {
		work.Go(func() { p.routeAll(ctx, hard, &p.cfg.Inbounds[i]) })
	}
	for i := range p.cfg.Handlers {
		work.Go(func() { p.handleAll(ctx, hard, &p.cfg.Handlers[i]) })
	}
	for i := range p.cfg.Outbounds {
		out, run := &p.cfg.Outbounds[i], p.sendAll
		if out.Parallel > 0 {
			run = p.flyAll
		}
		work.Go(func() { run(ctx, hard, out) })
	}
	ended := make(chan struct{})
	go func() {
		work.Wait()
		close(ended)
	}()
	<-ctx.Done()
	p.become(stopped)
	defer p.endReceiving(giveUp)
	t := time.NewTimer(p.cfg.Grace)
	defer t.Stop()
	select {
	case <-ended:
	case <-t.C:
		cancel()
		<-ended
	}
	return nil
}

// extend gives runs that wait since before the handlers were what they are now the places that they may need, before anything
// moves; false if ctx ends before the store has taken it.
func (p *Pipeline) extend(ctx context.Context) bool {
	for _, h := range p.cfg.Handlers {
		failing := &setback{p: p, what: running(h.Name).String()}
		for {
			err := p.cfg.Store.Extend(ctx, message.Plan{Handler: h.Name, To: h.To})
			if err == nil {
				break
			}
			if ctx.Err() != nil || !failing.wait(ctx, err) {
				p.become(stopped)
				return false
			}
		}
		failing.over()
	}
	return true
}

func (p *Pipeline) become(s state) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = s
}

// endReceiving waits for what is being received and routed at once: whoever runs the pipeline may, when it has ended, give
// other names to the work that there is.
func (p *Pipeline) endReceiving(giveUp context.CancelFunc) {
	defer time.AfterFunc(commitWithin, giveUp).Stop()
	defer giveUp()
	p.receiving.Wait()
}

// commitWithin is how long the store may take over one commit before it counts as failed. What a handler sends may be much,
// and is stored piece by piece beside what else there is to commit, so it gets more time: commitEach for each MiB.
const (
	commitWithin = 10 * time.Second
	commitEach   = 2 * time.Second
)

// committing returns the context for recording what has happened: it outlives the one in which it happened, because what
// is known is recorded even if the time to stop has come.
func committing(ctx context.Context) (context.Context, context.CancelFunc) {
	return committingMuch(ctx, nil)
}

func committingMuch(ctx context.Context, sends []message.Send) (context.Context, context.CancelFunc) {
	size := 0
	for _, s := range sends {
		size += len(s.Body)
	}
	return context.WithTimeout(context.WithoutCancel(ctx), commitWithin+time.Duration(size>>20)*commitEach)
}

// kick says that the store may have work.
func (p *Pipeline) kick(work message.Target) {
	if o := p.offers[work.Name]; o != nil && work.Kind == message.KindHandler {
		o.look()
	}
	p.nudge(work)
}

// nudge has somebody who waits look for work.
func (p *Pipeline) nudge(work message.Target) {
	select {
	case p.wake[work] <- struct{}{}:
	default: // it will look anyway
	}
}

// loop does what there is for a target until ctx ends. step does one piece of it and says how long it is until there is
// more: 0 at once, negative not until a kick. Its error is nobody's fault, and has the work wait.
func (p *Pipeline) loop(ctx context.Context, of message.Target, step func() (time.Duration, error)) {
	failing := &setback{p: p, what: of.String()}
	for ctx.Err() == nil {
		wait, err := step()
		switch {
		case err != nil:
			if ctx.Err() != nil || !failing.wait(ctx, err) {
				return
			}
		default:
			failing.over()
			if wait != 0 && !p.idle(ctx, of, wait) {
				return
			}
		}
	}
}

// lookAgain is how long a lane waits for a kick at most. Every commit kicks, but one whose outcome the store could not
// tell may show later than its kick.
const lookAgain = 30 * time.Second

// idle waits for a kick, for a time to pass (if it is not negative), or for the end; false at the end.
func (p *Pipeline) idle(ctx context.Context, work message.Target, wait time.Duration) bool {
	if wait < 0 {
		wait = lookAgain
	}
	t := time.NewTimer(min(wait, lookAgain))
	defer t.Stop()
	select {
	case <-p.wake[work]:
		return true
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
