// Package engine composes a running system from a configuration: store, pipeline, connections and the pools of
// workers. It is what `coppice serve` runs.
package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/confine"
	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/flight"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/pipeline"
	"coppice.dev/coppice/internal/room"
	"coppice.dev/coppice/internal/store"
	"coppice.dev/coppice/internal/store/sqlite"
	"coppice.dev/coppice/sandbox"
)

// Times of a stop. Inbounds stop within connect.StopWithin; then the pipeline ends what it is at; then the workers go.
const (
	drainGrace = 3 * time.Second
	closeGrace = 10 * time.Second
)

// Options are what the one who runs an engine adds to its configuration.
type Options struct {
	Log      *slog.Logger
	Pipeline pipeline.Observer
	Sandbox  sandbox.Observer
	// HandlerOutput lets what handlers print into the log. It may hold what messages hold.
	HandlerOutput bool
	// Disk hears of each time that the room on the store's disk gets less than min_free, and that there is enough again. It
	// must not block.
	Disk func(low bool, free int64)

	free func(path string) (int64, error) // sqlite.FreeSpace; a test may know of a disk that is fuller
}

// Engine is a store with one configuration at work on it at a time. Make it with Open, run it once with Run, and Close it.
// The commands that it satisfies control.Commands with are safe for concurrent use.
type Engine struct {
	options Options
	log     *slog.Logger
	store   store.Store
	flight  *flight.Recorder
	disk    *disk
	room    *room.Room // for bodies; nil in a dry run and a check
	alerts  *alerts
	rates   rates
	now     atomic.Pointer[generation]
	since   atomic.Pointer[time.Time] // when Run began; nil before and after
	ran     atomic.Bool               // Run has begun: its end lets go of what inbounds hold

	mu      sync.Mutex // held by whoever changes now: Run at its ends, and a reload
	running *running   // nil before Run, and from its end on
	over    bool       // Run is at its end

	orders orders

	close    sync.Once
	closeErr error
}

// generation is one configuration at work.
type generation struct {
	number    int // from 1
	cfg       *config.Config
	code      Snapshot
	sdk       string // folder of the Python SDK
	workers   *workers
	inbounds  map[string]connect.Inbound
	outbounds map[string]connect.Outbound
	pipeline  *pipeline.Pipeline
}

// Open takes hold of everything that the configuration names: the store (and no second engine may), a snapshot of the
// code, the interpreter, the addresses. No worker is started and no message moves before Run. Errors about the
// configuration are *config.Error, with a place in the file; those of the store are package sqlite's.
func Open(ctx context.Context, cfg *config.Config, o Options) (_ *Engine, err error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.free == nil {
		o.free = sqlite.FreeSpace
	}
	e := &Engine{options: o, log: o.Log}
	e.room = e.roomFor(cfg)
	defer func() {
		if err != nil {
			e.Close()
		}
	}()
	db, err := sqlite.Open(ctx, cfg.Store.Path, sqlite.Options{})
	if err != nil {
		return nil, err
	}
	e.store = db
	if err := orphans(ctx, cfg, db); err != nil {
		return nil, err
	}
	if _, err := db.Rename(ctx, namesOf(cfg)); err != nil {
		return nil, err
	}
	if err := tellFound(ctx, db, o.Log); err != nil {
		return nil, err
	}
	// The store's lock is held: whatever an engine before left in the state folder is nobody's. A worker may have left there
	// what cannot be removed; that must not keep the next engine from starting.
	state := stateFolder(cfg)
	if err := confine.FolderAt(state); err != nil {
		return nil, fmt.Errorf("make state folder: %w", err)
	}
	for _, name := range []string{"scratch", "sdk", "control"} {
		if err := confine.Clear(filepath.Join(state, name)); err != nil {
			o.Log.Warn("what an engine before has left is not cleared", "name", name, "err", err)
		}
	}
	e.flight, err = flight.Open(FlightFolder(cfg), func(err error) { o.Log.Warn("a cut is not recorded", "err", err) })
	if err != nil {
		return nil, err
	}
	g := &generation{number: 1, cfg: cfg, inbounds: map[string]connect.Inbound{}, outbounds: map[string]connect.Outbound{}}
	e.now.Store(g)
	e.alerts = newAlerts(e.now.Load, o.Log)
	e.disk = e.watchDisk()
	if err := e.load(ctx, g, ""); err != nil {
		return nil, err
	}
	if err := dropSnapshots(g.code); err != nil {
		o.Log.Warn("old snapshots of the code are not cleared", "err", err)
	}
	if err := e.connect(ctx, g); err != nil {
		return nil, err
	}
	g.pipeline = pipeline.New(e.pipelineConfig(g))
	return e, nil
}

// load takes a snapshot of a generation's code and makes its pools. inUse is the folder of a snapshot that workers have.
func (e *Engine) load(ctx context.Context, g *generation, inUse string) (err error) {
	state := stateFolder(g.cfg)
	if g.code, err = takeSnapshot(g.cfg, filepath.Join(state, "code"), inUse); err != nil {
		return err
	}
	g.sdk = filepath.Join(state, "sdk", strconv.Itoa(g.number)) // its own, since workers of the one before may be loading theirs
	if err := confine.FolderAt(filepath.Dir(g.sdk)); err != nil {
		return err
	}
	g.workers, err = newWorkers(ctx, g.cfg, g.code, workerOptions{scratch: filepath.Join(state, "scratch"),
		sdk: g.sdk, log: e.log, observer: observe(e.options, e.flight)})
	return err
}

// orphans refuses a configuration that lacks a name for which work is waiting: that work would wait for ever, unseen.
func orphans(ctx context.Context, cfg *config.Config, s store.Store) error {
	waiting, err := s.Waiting(ctx)
	if err != nil {
		return fmt.Errorf("store %s: %w", cfg.Store.Path, err)
	}
	var errs config.Errors
	for _, w := range waiting {
		if _, err := (desk{cfg: cfg}).named(message.Target{Kind: w.Kind, Name: w.Name}); err == nil {
			continue
		}
		errs = append(errs, cfg.Errorf([]string{w.Kind},
			fmt.Sprintf("names are identity: put [%s.%s] back until its work is done, or say was = [%q] in the one that takes its place",
				w.Kind, w.Name, w.Name),
			"the store holds unfinished work (%d) for %s %q, which is not declared", w.Count, w.Kind, w.Name))
	}
	if len(errs) > 0 {
		return errs
	}
	return nil
}

// tellFound says what there is to go on with: people want to know that of an engine that was killed.
func tellFound(ctx context.Context, s *sqlite.Store, log *slog.Logger) error {
	n, err := s.Unfinished(ctx)
	switch {
	case err != nil:
		return err
	case s.Unclean():
		log.Warn("the engine before did not stop in order; its store is sound, and what was under way goes on, in which deliveries that were out are repeated",
			"unfinished", n)
	case n > 0:
		log.Info("goes on with what the engine before had not finished", "unfinished", n)
	}
	return nil
}

// stateFolder holds what an engine makes for itself beside the store: code, SDK and scratch folders. It has a name of its own,
// so that nothing of the user's is in the way of it, and nothing of the user's is cleared with it.
func stateFolder(cfg *config.Config) string { return cfg.Store.Path + ".work" }

// ControlSocket is where an engine takes orders: see package control.
func ControlSocket(cfg *config.Config) string { return filepath.Join(stateFolder(cfg), "control") }

// FlightFolder is where the records of a configuration's cut workers are: see package flight.
func FlightFolder(cfg *config.Config) string { return filepath.Join(stateFolder(cfg), "cuts") }

// Addr is where an inbound listens: an address with its real port, or a folder. Empty for a name that is not there.
func (e *Engine) Addr(inbound string) string {
	if in := e.now.Load().inbounds[inbound]; in != nil {
		return in.Addr()
	}
	return ""
}

// Store is the engine's store, for looking. It is the engine's to close.
func (e *Engine) Store() store.Reader { return e.store }

// Run receives and moves messages until ctx ends, and then stops in order: inbounds first, then what is under way, then
// the workers. It returns nil after a stop that went well, and the error of a connection that ended for good; both leave
// everything that was received in the store. Call it once.
func (e *Engine) Run(ctx context.Context) error {
	inCtx, stopInbounds := context.WithCancelCause(ctx)
	defer stopInbounds(nil)
	r := &running{ctx: inCtx, fail: stopInbounds, receiving: map[string]*task{}}
	began := time.Now()
	e.ran.Store(true)
	e.since.Store(&began)
	defer e.since.Store(nil)
	e.mu.Lock()
	g := e.now.Load()
	r.move(ctx, g.pipeline)
	keeping := start(inCtx, e.keep)
	alerting := start(inCtx, func(ctx context.Context) { e.alerts.run(ctx, e.store) })
	for name, in := range g.inbounds {
		r.receive(name, in)
	}
	e.running = r
	e.mu.Unlock()
	<-inCtx.Done()
	e.mu.Lock() // after a reload, which inCtx cuts short
	e.running, e.over = nil, true
	for name := range r.receiving {
		r.receiving[name].stop()
	}
	for name := range r.receiving {
		r.end(name)
	}
	keeping.end()
	alerting.end()
	r.moving.end() // the pipeline outlives the inbounds: what they are committing gets its answer
	e.mu.Unlock()
	err := e.Close()
	if ctx.Err() == nil {
		return errors.Join(context.Cause(inCtx), err)
	}
	return err
}

// running is what runs in a Run.
type running struct {
	ctx       context.Context // of the inbounds: it ends when the engine is to stop
	fail      context.CancelCauseFunc
	moving    *task
	receiving map[string]*task // by inbound
}

// task is a goroutine with its end.
type task struct {
	stop  context.CancelFunc
	ended chan struct{}
}

func start(ctx context.Context, do func(context.Context)) *task {
	ctx, cancel := context.WithCancel(ctx)
	t := &task{stop: cancel, ended: make(chan struct{})}
	go func() {
		defer close(t.ended)
		do(ctx)
	}()
	return t
}

func (t *task) end() {
	t.stop()
	<-t.ended
}

func (r *running) move(ctx context.Context, p *pipeline.Pipeline) {
	r.moving = start(context.WithoutCancel(ctx), func(ctx context.Context) { p.Run(ctx) })
}

func (r *running) receive(name string, in connect.Inbound) {
	r.receiving[name] = start(r.ctx, func(ctx context.Context) {
		if err := in.Serve(ctx); err != nil && ctx.Err() == nil {
			r.fail(fmt.Errorf("inbound %s: %w", name, err))
		}
	})
}

// end ends an inbound, which lets go of its address.
func (r *running) end(name string) {
	r.receiving[name].end()
	delete(r.receiving, name)
}

// Close lets go of everything. It is for an engine that is not run, or after Run, which has done it; it may be called again.
func (e *Engine) Close() error {
	e.close.Do(func() {
		var errs []error
		if g := e.now.Load(); g != nil {
			errs = append(errs, g.release(!e.ran.Load(), nil))
		}
		if e.flight != nil {
			e.flight.Close()
		}
		if e.store != nil {
			errs = append(errs, e.store.Close())
		}
		e.closeErr = errors.Join(errs...)
	})
	return e.closeErr
}

// release lets go of what a generation has and the one that follows, if there is one, does not. listening says that its
// inbounds were not run: they let go of their addresses in Serve.
func (g *generation) release(listening bool, next *generation) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
	defer cancel()
	var errs []error
	if g.workers != nil {
		errs = append(errs, g.workers.close(ctx))
	}
	for name, out := range g.outbounds {
		if next != nil && next.outbounds[name] == out {
			continue
		}
		if err := out.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close outbound %s: %w", name, err))
		}
	}
	if listening {
		for name, in := range g.inbounds {
			if next == nil || next.inbounds[name] != in {
				letGo(in)
			}
		}
	}
	return errors.Join(errs...)
}

// letGo has an inbound that was not run let go of its address, which it does in Serve.
func letGo(in connect.Inbound) {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	in.Serve(over)
}

func (e *Engine) pipelineConfig(g *generation) pipeline.Config {
	c := pipeline.Config{Store: e.store, Grace: drainGrace, Log: e.log, Observer: e.alerts.observe(e.rates.observe(e.options.Pipeline))}
	if e.room != nil {
		c.Room = e.room
	}
	for _, in := range g.cfg.Inbounds {
		p := pipeline.Inbound{Name: in.Name, Handlers: in.Handlers, Attempts: defaultAttempts, HoldAfter: in.HoldAfter}
		if r := g.workers.routers[in.Name]; r != nil {
			p.Router = r
		}
		c.Inbounds = append(c.Inbounds, p)
	}
	for _, h := range g.cfg.Handlers {
		c.Handlers = append(c.Handlers, pipeline.Handler{Name: h.Name, To: h.To, Attempts: h.Attempts, Runner: g.workers.handlers[h.Name],
			HoldAfter: h.HoldAfter})
	}
	for _, out := range g.cfg.Outbounds {
		o := pipeline.Outbound{Name: out.Name, Sender: g.outbounds[out.Name],
			Retry: pipeline.Retry{First: out.Retry.First, Max: out.Retry.Max, Rejected: out.Retry.Rejected,
				Hold: out.Retry.Then == "hold"}}
		if out.Order == "none" {
			o.Parallel = out.Parallel
		}
		c.Outbounds = append(c.Outbounds, o)
	}
	return c
}

// observe adds the log, and the records of cuts, to what the caller wants to see of the workers.
func observe(o Options, records *flight.Recorder) sandbox.Observer {
	return sandbox.Observer{
		Started: func(s sandbox.Started) {
			o.Log.Info("worker ready", "worker", s.Session, "level", s.Level, "rung", s.Facts.Rung, "took", s.Took.Round(time.Millisecond))
			if o.Sandbox.Started != nil {
				o.Sandbox.Started(s)
			}
		},
		Cut: func(c sandbox.Cut) {
			attrs := []any{"worker", c.Session, "cause", c.Report.Cause, "processes", c.Report.Seen, "level", c.Report.Level,
				"took", c.Report.Took.Round(10 * time.Microsecond)}
			if c.Message != 0 {
				attrs = append(attrs, "message", c.Message)
			}
			if id := records.Note(c); id != 0 {
				attrs = append(attrs, "cut", id) // coppice explain tells its story
			}
			switch {
			case c.Err != nil:
				o.Log.Error("worker cut, and not proved gone", append(attrs, "err", c.Err)...)
			case c.Why != nil:
				o.Log.Warn("worker cut", append(attrs, "status", c.Status)...)
			default:
				o.Log.Debug("worker ended", append(attrs, "status", c.Status)...)
			}
			if o.Sandbox.Cut != nil {
				o.Sandbox.Cut(c)
			}
		},
		Unstarted: func(u sandbox.Unstarted) {
			o.Log.Warn("worker not started", "worker", u.Session, "err", u.Err, "cut", records.NoteUnstarted(u))
			if o.Sandbox.Unstarted != nil {
				o.Sandbox.Unstarted(u)
			}
		},
		Litter: func(session, folder string, err error) {
			o.Log.Warn("scratch folder is not cleared", "worker", session, "folder", folder, "err", err)
			if o.Sandbox.Litter != nil {
				o.Sandbox.Litter(session, folder, err)
			}
		},
		Output: func(l sandbox.Line) {
			if o.HandlerOutput {
				o.Log.Info("handler output", "worker", l.Session, "message", l.Message, "stream", l.Stream, "text", l.Text, "dropped", l.Dropped)
			}
			if o.Sandbox.Output != nil {
				o.Sandbox.Output(l)
			}
		},
	}
}
