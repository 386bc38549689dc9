package engine

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/confine"
	"coppice.dev/coppice/sandbox"
	"coppice.dev/coppice/tree"
)

// Checked is what a check found of one worker.
type Checked struct {
	What string `json:"what"` // "handler admit", "router of inbound adt"
	// Program is executed for each message: nothing was started, and there is no level.
	Program string        `json:"program,omitempty"`
	Level   tree.Level    `json:"level,omitempty"`
	Rung    string        `json:"rung,omitempty"`
	Took    time.Duration `json:"took_ns"`
	Error   *config.Error `json:"-"` // nil if the worker is ready and offers what the file says
	// Traceback and Output are of a worker that could not boot: where its code raised, and the last lines that it printed.
	Traceback string   `json:"traceback,omitempty"`
	Output    []string `json:"output,omitempty"`
}

// Check proves the wiring of a configuration that has been parsed: it boots each worker in its sandbox, with its limits,
// and tells what came of it, in file order. It opens no connection and touches neither store nor state, so it can run
// beside an engine. The error is of what comes before the first worker: the interpreter, the programs.
//
// warn, if it is not nil, gets what is allowed and hardly meant, before the first worker: a loop that a router might end, an
// outbound that no handler names, files that others may write or read.
func Check(ctx context.Context, cfg *config.Config, tell func(Checked), warn func(*config.Error)) error {
	if err := checkConnections(cfg); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "coppice-check-*")
	if err != nil {
		return err
	}
	defer confine.Clear(tmp)
	r := &rights{cfg: cfg}
	code, err := lookAtSnapshot(cfg, filepath.Join(tmp, "code"), "", r.look)
	if err != nil {
		return err
	}
	var now *Checked
	w, err := newWorkers(ctx, cfg, code, workerOptions{scratch: filepath.Join(tmp, "scratch"), sdk: filepath.Join(tmp, "sdk"),
		observer: sandbox.Observer{Started: func(s sandbox.Started) {
			now.Level, now.Rung = s.Level, s.Facts.Rung
		}}})
	if err != nil {
		return err
	}
	if warn != nil {
		for _, e := range slices.Concat(cfg.Warnings(ownHost), linkedFolders(cfg), r.code(), r.programs(w, code), r.store()) {
			warn(e)
		}
	}
	for _, p := range w.pools {
		began := time.Now()
		now = &Checked{What: p.spec.Name}
		if p.spec.Exec {
			now.Program = p.spec.Command[0]
		}
		err := p.Boot(ctx)
		now.Took = time.Since(began)
		if ctx.Err() == nil && err != nil {
			now.fails(cfg, p, code, err)
		}
		if err := p.Close(context.WithoutCancel(ctx)); err != nil && now.Error == nil {
			now.Error = cfg.Errorf(p.place, "", "%v", err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		tell(*now)
	}
	return nil
}

// fails says why a worker could not boot.
func (c *Checked) fails(cfg *config.Config, p *pool, code Snapshot, err error) {
	c.Error = bootProblem(cfg, p, err)
	if boot, ok := errors.AsType[*sandbox.BootError](err); ok {
		c.Output = boot.Output
	}
	if raised, ok := errors.AsType[*sandbox.HandlerError](err); ok {
		// The code lies where the snapshot is, for as long as the check runs: say it as the reader knows it.
		c.Traceback = strings.ReplaceAll(raised.Fault.Traceback, code.Dir+string(filepath.Separator), "")
	}
}

// checkConnections makes every connection, which takes hold of nothing yet.
func checkConnections(cfg *config.Config) error {
	e := &Engine{log: slog.New(slog.DiscardHandler)}
	var errs config.Errors
	for _, out := range cfg.Outbounds {
		if o, err := e.outbound(out); err != nil {
			errs = append(errs, connectionError(cfg, outboundPlace(out), "", err))
		} else {
			o.Close()
		}
	}
	for _, in := range cfg.Inbounds {
		if _, err := e.inbound(in); err != nil {
			errs = append(errs, connectionError(cfg, inboundPlace(in), "", err))
		}
		if in.File == nil {
			continue
		}
		if info, err := os.Stat(in.File.Dir); err != nil || !info.IsDir() {
			errs = append(errs, cfg.Errorf(inboundPlace(in), listenHint(in), "there is no folder %s", cfg.Written(inboundPlace(in)...)))
		}
	}
	if len(errs) > 0 {
		return errs
	}
	return nil
}

// bootProblem says why a worker could not boot, at the place in the file that asked for it.
func bootProblem(cfg *config.Config, p *pool, err error) *config.Error {
	var raised *sandbox.HandlerError
	var level *tree.LevelError
	var deadline *sandbox.DeadlineError
	var crash *sandbox.CrashError
	var violation *sandbox.ViolationError
	hint := ""
	switch {
	case errors.As(err, &raised) && raised.Fault.Type == "offer":
		text, hint, _ := strings.Cut(raised.Fault.Text, "; ")
		return cfg.Errorf(p.place, hint, "%s: %s", p.spec.Name, text)
	case errors.As(err, &level):
		hint = "this host gives less: lower level in [sandbox], or leave it out"
	case p.spec.File == "" && (errors.As(err, &crash) || errors.As(err, &violation)):
		hint = `does it speak Coppice's protocol? A program that does not needs protocol = "exec"`
	case errors.As(err, &deadline):
		hint = "code that takes longer to load needs a larger start_timeout in [sandbox]"
	}
	return cfg.Errorf(p.place, hint, "%v", err)
}
