// Package engine composes a running system from a configuration: store, pipeline, connections and the pools of
// workers. It is what `coppice serve` runs.
package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/confine"
	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/flight"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/pipeline"
	"coppice.dev/coppice/internal/store"
	"coppice.dev/coppice/internal/store/sqlite"
	"coppice.dev/coppice/sandbox"
)

// Times of a stop. Inbounds stop within connect.StopWithin; then the pipeline ends what it is at; then the workers go.
const (
	drainGrace = 5 * time.Second
	closeGrace = 10 * time.Second
)

// Options are what the one who runs an engine adds to its configuration.
type Options struct {
	Log      *slog.Logger
	Pipeline pipeline.Observer
	Sandbox  sandbox.Observer
	// HandlerOutput lets what handlers print into the log. It may hold what messages hold.
	HandlerOutput bool
}

// Engine is one configuration at work. Make it with Open, run it once with Run, and Close it.
type Engine struct {
	cfg       *config.Config
	log       *slog.Logger
	store     store.Store
	pipeline  *pipeline.Pipeline
	inbounds  map[string]connect.Inbound
	outbounds map[string]connect.Outbound
	workers   *workers
	flight    *flight.Recorder
	close     sync.Once
	closeErr  error
}

// Open takes hold of everything that the configuration names: the store (and no second engine may), a snapshot of the
// code, the interpreter, the addresses. No worker is started and no message moves before Run. Errors about the
// configuration are *config.Error, with a place in the file; those of the store are package sqlite's.
func Open(ctx context.Context, cfg *config.Config, o Options) (_ *Engine, err error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	e := &Engine{cfg: cfg, log: o.Log, inbounds: map[string]connect.Inbound{}, outbounds: map[string]connect.Outbound{}}
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
	if err := e.orphans(ctx); err != nil {
		return nil, err
	}
	// The store's lock is held: whatever an engine before left in the state folder is nobody's. A worker may have left there
	// what cannot be removed; that must not keep the next engine from starting.
	state := stateFolder(cfg)
	scratch := filepath.Join(state, "scratch")
	if err := confine.FolderAt(state); err != nil {
		return nil, fmt.Errorf("make state folder: %w", err)
	}
	if err := confine.Clear(scratch); err != nil {
		o.Log.Warn("scratch folder of the engine before is not cleared", "err", err)
	}
	code, err := takeSnapshot(cfg, filepath.Join(state, "code"))
	if err != nil {
		return nil, err
	}
	if err := dropSnapshots(code); err != nil {
		o.Log.Warn("old snapshots of the code are not cleared", "err", err)
	}
	e.flight, err = flight.Open(FlightFolder(cfg), func(err error) { o.Log.Warn("a cut is not recorded", "err", err) })
	if err != nil {
		return nil, err
	}
	e.workers, err = newWorkers(ctx, cfg, code, workerOptions{
		scratch: scratch, sdk: filepath.Join(state, "sdk"), log: o.Log, observer: observe(o, e.flight)})
	if err != nil {
		return nil, err
	}
	if err := e.connect(ctx); err != nil {
		return nil, err
	}
	e.pipeline = pipeline.New(e.pipelineConfig(o))
	return e, nil
}

// orphans refuses a configuration that lacks a name for which work is waiting: that work would wait for ever, unseen.
func (e *Engine) orphans(ctx context.Context) error {
	waiting, err := e.store.Waiting(ctx)
	if err != nil {
		return fmt.Errorf("store %s: %w", e.cfg.Store.Path, err)
	}
	known := map[store.Waiting]bool{}
	for _, in := range e.cfg.Inbounds {
		known[store.Waiting{Kind: message.KindInbound, Name: in.Name}] = true
	}
	for _, h := range e.cfg.Handlers {
		known[store.Waiting{Kind: message.KindHandler, Name: h.Name}] = true
	}
	for _, out := range e.cfg.Outbounds {
		known[store.Waiting{Kind: message.KindOutbound, Name: out.Name}] = true
	}
	var errs config.Errors
	for _, w := range waiting {
		if !known[store.Waiting{Kind: w.Kind, Name: w.Name}] {
			errs = append(errs, e.cfg.Errorf([]string{w.Kind}, fmt.Sprintf("names are identity: put [%s.%s] back until its work is done", w.Kind, w.Name),
				"the store holds unfinished work (%d) for %s %q, which is not declared", w.Count, w.Kind, w.Name))
		}
	}
	if len(errs) > 0 {
		return errs
	}
	return nil
}

// stateFolder holds what an engine makes for itself beside the store: code, SDK and scratch folders. It has a name of its own,
// so that nothing of the user's is in the way of it, and nothing of the user's is cleared with it.
func stateFolder(cfg *config.Config) string { return cfg.Store.Path + ".work" }

// FlightFolder is where the records of a configuration's cut workers are: see package flight.
func FlightFolder(cfg *config.Config) string { return filepath.Join(stateFolder(cfg), "cuts") }

// Addr is where an inbound listens: an address with its real port, or a folder. Empty for a name that is not there.
func (e *Engine) Addr(inbound string) string {
	if in := e.inbounds[inbound]; in != nil {
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
	// The pipeline outlives the inbounds: what they are committing gets its answer.
	moveCtx, stopMoving := context.WithCancel(context.WithoutCancel(ctx))
	defer stopMoving()
	var moving, receiving sync.WaitGroup
	moving.Go(func() { e.pipeline.Run(moveCtx) })
	for name, in := range e.inbounds {
		receiving.Go(func() {
			if err := in.Serve(inCtx); err != nil && inCtx.Err() == nil {
				stopInbounds(fmt.Errorf("inbound %s: %w", name, err))
			}
		})
	}
	<-inCtx.Done()
	receiving.Wait()
	stopMoving()
	moving.Wait()
	err := e.Close()
	if ctx.Err() == nil {
		return errors.Join(context.Cause(inCtx), err)
	}
	return err
}

// Close lets go of everything. It is for an engine that is not run, or after Run, which has done it; it may be called again.
func (e *Engine) Close() error {
	e.close.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
		defer cancel()
		var errs []error
		if e.workers != nil {
			errs = append(errs, e.workers.close(ctx))
		}
		if e.flight != nil {
			e.flight.Close()
		}
		for name, out := range e.outbounds {
			if err := out.Close(); err != nil {
				errs = append(errs, fmt.Errorf("close outbound %s: %w", name, err))
			}
		}
		if e.pipeline == nil { // not run: an inbound lets go of its address in Serve
			over, cancel := context.WithCancel(context.Background())
			cancel()
			for _, in := range e.inbounds {
				in.Serve(over)
			}
		}
		if e.store != nil {
			errs = append(errs, e.store.Close())
		}
		e.closeErr = errors.Join(errs...)
	})
	return e.closeErr
}

func (e *Engine) pipelineConfig(o Options) pipeline.Config {
	c := pipeline.Config{Store: e.store, Grace: drainGrace, Log: e.log, Observer: o.Pipeline}
	for _, in := range e.cfg.Inbounds {
		p := pipeline.Inbound{Name: in.Name, Handlers: in.Handlers, Attempts: defaultAttempts, HoldAfter: in.HoldAfter}
		if r := e.workers.routers[in.Name]; r != nil {
			p.Router = r
		}
		c.Inbounds = append(c.Inbounds, p)
	}
	for _, h := range e.cfg.Handlers {
		c.Handlers = append(c.Handlers, pipeline.Handler{Name: h.Name, To: h.To, Attempts: h.Attempts, Runner: e.workers.handlers[h.Name],
			HoldAfter: h.HoldAfter})
	}
	for _, out := range e.cfg.Outbounds {
		c.Outbounds = append(c.Outbounds, pipeline.Outbound{Name: out.Name, Sender: e.outbounds[out.Name],
			Retry: pipeline.Retry{First: out.Retry.First, Max: out.Retry.Max, Rejected: out.Retry.Rejected,
				Hold: out.Retry.Then == "hold"}})
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
