package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/control"
	"coppice.dev/coppice/internal/engine"
)

func serveCommand(io stdio) *cobra.Command {
	var dir, format, level string
	var output bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the pipeline of a folder until it is told to stop",
		Long: `Serve runs the pipeline that DIR/coppice.toml describes, until Ctrl-C or TERM. It then stops in order: connections first,
then what is under way, then the workers. Whatever was received is in the store and goes on at the next start. A shell without job
control starts what stands before an & with Ctrl-C's signal ignored: TERM stops it there.

When it starts it copies the code, which is all of the folder, so keep data out of it: an edit takes effect at the next start,
or with coppice reload.
A worker's working folder is a scratch folder; a handler finds the files beside it with os.path.dirname(__file__).

Its log goes to stderr and carries ids, names and counts, never what a message holds. What handlers print is captured:
coppice show has the last of it, and the log with --log-handler-output only.`,
		Args: takes(0, 0, ""), ValidArgsFunction: cobra.NoFileCompletions,
	}
	configFlag(cmd, &dir)
	cmd.Flags().StringVar(&format, "log-format", "text", "`FORMAT`: text or json")
	cmd.Flags().StringVar(&level, "log-level", "info", "the least `LEVEL`: debug, info, warn or error")
	cmd.Flags().BoolVar(&output, "log-handler-output", false, "log what handlers print, which may hold what messages hold")
	words(cmd, "log-format", "text", "json")
	words(cmd, "log-level", "debug", "info", "warn", "error")
	return verb(cmd, func(cmd *cobra.Command, _ []string) error {
		log, err := newLog(io.err, format, level)
		if err != nil {
			return err
		}
		cfg, err := loadConfig(io, dir)
		if err != nil {
			return err
		}
		return serve(cmd.Context(), io, cfg, engine.Options{Log: log, HandlerOutput: output})
	})
}

// configFlag is --config, which names the folder of every verb that needs one.
func configFlag(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVarP(dir, "config", "c", ".", "the folder `DIR` with coppice.toml, or such a file")
	_ = cmd.MarkFlagDirname("config") // an error only for a flag that is not there
}

func newLog(w io.Writer, format, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, usage("--log-level %q is none of debug, info, warn, error", level)
	}
	o := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return nil, usage("--log-format %q is none of text, json", format)
}

// serve runs an engine until ctx ends, which is how it is meant to end.
func serve(ctx context.Context, io stdio, cfg *config.Config, o engine.Options) error {
	outliveReaders()
	e, err := engine.Open(ctx, cfg, o)
	if err != nil && ctx.Err() != nil {
		o.Log.Info("stopped before it served", "why", context.Cause(ctx), "err", err)
		return nil
	}
	if err != nil {
		return tellOpen(io, err)
	}
	for _, in := range cfg.Inbounds {
		o.Log.Info("listening", "inbound", in.Name, "at", e.Addr(in.Name))
	}
	if os.Geteuid() == 0 {
		o.Log.Info("running as root: workers run as root too, without its capabilities")
	}
	defer takeOrders(ctx, e, cfg, o.Log)()
	o.Log.Info("serving", "config", cfg.File, "inbounds", len(cfg.Inbounds), "handlers", len(cfg.Handlers), "outbounds", len(cfg.Outbounds))
	defer context.AfterFunc(ctx, func() { o.Log.Info("stopping", "why", context.Cause(ctx)) })()
	if err := e.Run(ctx); err != nil {
		return &statusError{code: exitProblem, err: err} // also if a signal began the stop
	}
	o.Log.Info("stopped")
	return nil
}

// takeOrders lets other verbs reach the engine. One that cannot be reached works all the same. The function that it returns
// ends that.
func takeOrders(ctx context.Context, e *engine.Engine, cfg *config.Config, log *slog.Logger) (stop func()) {
	l, err := control.Listen(engine.ControlSocket(cfg))
	if err != nil {
		log.Warn("the control socket cannot be opened: lanes, hold, release, replay, resubmit and reload need the engine stopped", "err", err)
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := control.Serve(ctx, l, e, log); err != nil {
			log.Warn("the control socket is closed", "err", err)
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// tellOpen prints why an engine could not be opened, with a hint where there is one.
func tellOpen(io stdio, err error) error {
	return tellConfig(io, tellStore(err))
}

// oneLine joins what an error says on several lines.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
