package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

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

// workers are the pools of a configuration, and the functions that run in them.
type workers struct {
	handlers map[string]*runner
	routers  map[string]*runner
	alert    *pool   // the command that takes alerts; nil if there is none
	pools    []*pool // in file order, routers first
}

// pool is one pool with what is told of it.
type pool struct {
	*sandbox.Pool
	spec  sandbox.Spec
	place []string // in the configuration
	// shared is by what a pool is found that more than one handler has; empty for others.
	shared string
}

type workerOptions struct {
	scratch  string
	sdk      string
	log      *slog.Logger
	observer sandbox.Observer
}

// newWorkers makes the pools; it starts no worker. It finds the programs that workers are, and writes the SDK of
// each language that one of them needs.
func newWorkers(ctx context.Context, cfg *config.Config, code Snapshot, o workerOptions) (*workers, error) {
	w := &workers{handlers: map[string]*runner{}, routers: map[string]*runner{}}
	b := &building{cfg: cfg, code: code, o: o, found: map[string][]string{}, w: w}
	for _, in := range cfg.Inbounds {
		if in.Router == nil {
			continue
		}
		r := &runner{phase: wire.PhaseRoute, name: in.Router.Name, deadline: routerDeadline, code: code.Hash, pools: map[string]*pool{}}
		if err := b.add(ctx, "router of inbound "+in.Name, []string{"inbound", in.Name, "router"}, *in.Router, r, nil, ""); err != nil {
			return nil, err
		}
		w.routers[in.Name] = r
	}
	for _, h := range cfg.Handlers {
		ref, key := config.Ref{Command: h.Command, Name: h.Name}, "command"
		if h.Run != nil {
			ref, key = *h.Run, "run"
		}
		r := &runner{phase: wire.PhaseHandle, name: ref.Name, deadline: h.Deadline, code: code.Hash, pools: map[string]*pool{}}
		place := []string{"handler", h.Name, key}
		for _, inbound := range servedBy(cfg, h) {
			if err := b.add(ctx, "handler "+h.Name, place, ref, r, &h, inbound); err != nil {
				return nil, err
			}
		}
		w.handlers[h.Name] = r
	}
	if a := cfg.Alerts; a != nil && len(a.Command) > 0 {
		r := &runner{phase: wire.PhaseHandle, name: alertFunction, pools: map[string]*pool{}}
		ref, exec := config.Ref{Command: a.Command, Name: alertFunction}, &config.Handler{Protocol: "exec"}
		if err := b.add(ctx, "alerts", []string{"alerts", "command"}, ref, r, exec, ""); err != nil {
			return nil, err
		}
		if w.alert = r.pools[""]; w.alert != nil {
			w.alert.spec.Observer = sandbox.Observer{} // what becomes of it is no message's
		}
	}
	if len(b.errs) > 0 {
		return nil, b.errs
	}
	for _, p := range w.pools {
		var err error
		if p.Pool, err = sandbox.New(p.spec); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// servedBy lists the inbounds for which a handler has workers of their own: those that may give it messages, or "" for all.
func servedBy(cfg *config.Config, h config.Handler) []string {
	if h.Per != "inbound" {
		return []string{""}
	}
	var out []string
	for _, in := range cfg.Inbounds {
		if in.Router != nil || slices.Contains(in.Handlers, h.Name) {
			out = append(out, in.Name)
		}
	}
	return out
}

// close ends all pools at the same time.
func (w *workers) close(ctx context.Context) error {
	errs := make([]error, len(w.pools))
	var all sync.WaitGroup
	for i, p := range w.pools {
		all.Go(func() {
			if err := p.Close(ctx); err != nil {
				errs[i] = fmt.Errorf("close worker of %s: %w", p.spec.Name, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// building makes pools' specs, and finds each interpreter once.
type building struct {
	cfg  *config.Config
	code Snapshot
	o    workerOptions
	w    *workers
	errs config.Errors // all that is wrong with the configuration

	found map[string][]string // by language; nil for one whose lack has been reported
}

// add gives a function a pool for an inbound, or for all: a new one, or the one that another handler of the inbound with the
// same code and settings has. h is nil for a router. What is wrong with the configuration goes to errs.
func (b *building) add(ctx context.Context, what string, place []string, ref config.Ref, r *runner, h *config.Handler, inbound string) error {
	spec, err := b.spec(ctx, what, place, ref, r, h)
	var bad *config.Error
	switch {
	case errors.Is(err, errTold):
		return nil
	case errors.As(err, &bad):
		if !slices.ContainsFunc(b.errs, func(e *config.Error) bool { return e.Error() == bad.Error() }) { // one for each inbound otherwise
			b.errs = append(b.errs, bad)
		}
		return nil
	case err != nil:
		return err
	}
	shared := ""
	if inbound != "" {
		shared = fmt.Sprintf("%q %q %q %#v %d %+v", inbound, spec.Command, spec.File, spec.Settings, spec.Standbys, spec.Limits)
		for _, p := range b.w.pools {
			if p.shared == shared {
				p.spec.Name = strings.Replace(p.spec.Name, " for inbound", " and "+h.Name+" for inbound", 1)
				p.spec.Offers = append(p.spec.Offers, spec.Offers...)
				r.pools[inbound] = p
				return nil
			}
		}
		spec.Name += " for inbound " + inbound
	}
	p := &pool{spec: spec, place: place, shared: shared}
	b.w.pools = append(b.w.pools, p)
	r.pools[inbound] = p
	return nil
}

func (b *building) spec(ctx context.Context, what string, place []string, ref config.Ref, r *runner, h *config.Handler) (sandbox.Spec, error) {
	spec := sandbox.Spec{
		Name:    what,
		Offers:  []wire.Offer{{Phase: r.phase, Name: r.name}},
		Scratch: b.o.scratch, StartTimeout: b.cfg.Sandbox.StartTimeout,
		Observer: b.o.observer,
	}
	if h != nil {
		spec.Settings, spec.Standbys, spec.Fresh = h.Settings, h.Standbys, h.Per == "message"
		spec.Limits = sandbox.Limits{CPU: h.Limits.CPU, IdleCPU: h.Limits.IdleCPU, Output: h.Limits.Output, Memory: h.Limits.Memory, Idle: h.Limits.Idle}
		if h.Protocol == "exec" {
			spec.Exec, spec.ExecTo = true, h.To
		}
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
	if err == nil && spec.Exec {
		err = executable(program)
	}
	if err != nil {
		hint := ""
		switch {
		case errors.Is(err, errNoInterpreter):
			hint = "begin it with #!/bin/sh, or with another interpreter"
		case errors.Is(err, fs.ErrPermission):
			hint = "is it executable? chmod +x makes it so"
		}
		return spec, b.cfg.Errorf(append(place, "0"), hint, "no program %q: %v", b.cfg.Written(append(place, "0")...), told(b.cfg, append(place, "0"), err))
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

// executable says why the kernel would refuse to execute a script. What else may be wrong with a program shows when it is
// executed.
func executable(program string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	f, err := os.Open(program)
	if err != nil {
		return nil // it may be executed all the same
	}
	defer f.Close()
	head := make([]byte, 256)
	n, err := io.ReadFull(f, head)
	if err != nil && err != io.ErrUnexpectedEOF && err != io.EOF {
		return nil
	}
	line, _, more := strings.Cut(string(head[:n]), "\n")
	words := strings.Fields(strings.TrimPrefix(line, "#!"))
	switch script := strings.HasPrefix(line, "#!"); {
	case !script && utf8.Valid(head[:n]) && !strings.ContainsRune(line, 0):
		return errNoInterpreter
	case !script || len(words) == 0:
		return nil
	}
	if more && strings.HasSuffix(line, "\r") {
		return errors.New("its lines end in CRLF, which the kernel takes for a part of the interpreter's name: save it with LF")
	}
	if _, err := os.Stat(words[0]); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("its first line names the interpreter %s, which is not there", words[0])
	}
	return nil
}

var errNoInterpreter = errors.New("it is a script without a first line that names its interpreter")

// runner is one function as the pipeline sees it.
type runner struct {
	pools    map[string]*pool // by inbound, or one for all under ""
	phase    wire.Phase
	name     string
	deadline time.Duration
	code     string
}

var _ pipeline.Runner = (*runner)(nil)

// pool is where the messages of an inbound are worked on.
func (r *runner) pool(inbound string) (*pool, error) {
	for _, name := range []string{inbound, ""} {
		if p := r.pools[name]; p != nil {
			return p, nil
		}
	}
	return nil, fmt.Errorf("inbound %s gives no messages to %s", inbound, r.name)
}
