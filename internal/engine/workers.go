package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/pipeline"
	"coppice.dev/coppice/sandbox"
	"coppice.dev/coppice/tree"
	"coppice.dev/coppice/wire"
)

// Routers have no keys for these yet.
const (
	defaultAttempts = 2
	routerDeadline  = 5 * time.Second
)

// workers are the sessions of a configuration: one for each handler and one for each router.
type workers struct {
	handlers map[string]*runner
	routers  map[string]*runner
	order    []*runner // in file order, routers first
}

type workerOptions struct {
	scratch  string
	sdk      string
	log      *slog.Logger
	observer sandbox.Observer
}

// newWorkers makes the sessions; it starts no worker. It finds the programs that workers are, and writes the SDK of
// each language that one of them needs.
func newWorkers(ctx context.Context, cfg *config.Config, code Snapshot, o workerOptions) (*workers, error) {
	w := &workers{handlers: map[string]*runner{}, routers: map[string]*runner{}}
	b := &building{cfg: cfg, code: code, o: o, found: map[string][]string{}}
	var errs config.Errors
	add := func(to map[string]*runner, key string, place []string, ref config.Ref, r *runner, settings map[string]any) error {
		spec, err := b.spec(ctx, place, ref, r, settings)
		var bad *config.Error
		if errors.Is(err, errTold) {
			return nil
		}
		if errors.As(err, &bad) {
			errs = append(errs, bad)
			return nil
		}
		if err == nil {
			r.session, err = sandbox.New(spec)
		}
		if err != nil {
			return err
		}
		r.place = place
		to[key] = r
		w.order = append(w.order, r)
		return nil
	}
	for _, in := range cfg.Inbounds {
		if in.Router == nil {
			continue
		}
		r := &runner{what: "router of inbound " + in.Name, phase: wire.PhaseRoute, name: in.Router.Name, deadline: routerDeadline, code: code.Hash}
		if err := add(w.routers, in.Name, []string{"inbound", in.Name, "router"}, *in.Router, r, nil); err != nil {
			return nil, err
		}
	}
	for _, h := range cfg.Handlers {
		ref, key := config.Ref{Command: h.Command, Name: h.Name}, "command"
		if h.Run != nil {
			ref, key = *h.Run, "run"
		}
		r := &runner{what: "handler " + h.Name, phase: wire.PhaseHandle, name: ref.Name, deadline: h.Deadline, code: code.Hash}
		if err := add(w.handlers, h.Name, []string{"handler", h.Name, key}, ref, r, h.Settings); err != nil {
			return nil, err
		}
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return w, nil
}

// close ends all sessions at the same time.
func (w *workers) close(ctx context.Context) error {
	errs := make([]error, len(w.order))
	var all sync.WaitGroup
	for i, r := range w.order {
		all.Go(func() {
			if err := r.session.Close(ctx); err != nil {
				errs[i] = fmt.Errorf("close worker of %s: %w", r.what, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// building makes sessions' specs, and finds each interpreter once.
type building struct {
	cfg  *config.Config
	code Snapshot
	o    workerOptions

	found map[string][]string // by language; nil for one whose lack has been reported
}

func (b *building) spec(ctx context.Context, place []string, ref config.Ref, r *runner, settings map[string]any) (sandbox.Spec, error) {
	spec := sandbox.Spec{
		Name:     r.what,
		Offers:   []wire.Offer{{Phase: r.phase, Name: r.name}},
		Settings: settings,
		Scratch:  b.o.scratch, StartTimeout: b.cfg.Sandbox.StartTimeout,
		Observer: b.o.observer,
	}
	if level := b.cfg.Sandbox.Level; level != "" {
		var err error
		if spec.Level, err = tree.ParseLevel(level); err != nil {
			return spec, b.cfg.Errorf([]string{"sandbox", "level"}, "", "%v", err)
		}
	}
	if ref.File != "" {
		command, err := b.interpreter(ctx, languageOf(ref.File))
		if err != nil {
			return spec, err
		}
		spec.Command = command
		spec.File = filepath.Join(b.code.Dir, filepath.FromSlash(ref.File))
		return spec, nil
	}
	program, err := b.program(ref.Command[0])
	if err != nil {
		return spec, b.cfg.Errorf(append(place, "0"), "", "no program %q: %v", b.cfg.Written(append(place, "0")...), told(b.cfg, append(place, "0"), err))
	}
	spec.Command = append([]string{program}, ref.Command[1:]...)
	return spec, nil
}

// told is an error about the value at a place of the configuration as it may be shown: whole, or, where the value holds
// something from the environment, only what is at the bottom of it.
func told(cfg *config.Config, place []string, err error) error {
	if !cfg.Secret(place...) {
		return err
	}
	var lookup *net.DNSError
	if errors.As(err, &lookup) {
		return errors.New(lookup.Err)
	}
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}

// program finds a worker's program. One inside the configuration's folder is taken from the snapshot.
func (b *building) program(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		var short *exec.Error
		if errors.As(err, &short) {
			err = short.Err
		}
		return "", err
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", err
	}
	if rel, err := filepath.Rel(b.cfg.Dir, path); err == nil && filepath.IsLocal(rel) {
		return filepath.Join(b.code.Dir, rel), nil
	}
	return path, nil
}

// runner is one function as the pipeline sees it.
type runner struct {
	what     string
	place    []string // in the configuration
	session  *sandbox.Pool
	phase    wire.Phase
	name     string
	deadline time.Duration
	code     string
}

var _ pipeline.Runner = (*runner)(nil)
