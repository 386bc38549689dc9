package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/engine"
)

func checkCommand(io stdio) *cobra.Command {
	var dir string
	var asJSON, strict bool
	cmd := &cobra.Command{
		Use:   "check [DIR]",
		Short: "Prove the wiring of a folder without running it",
		Long: `Check reads DIR/coppice.toml, where every key and every name must be known, and boots each worker in its sandbox to see that
its code loads and offers what the file asks for. It opens no connection and touches no store, so it may run beside an engine.

Everything that is wrong is printed with file, line, column and a hint; the exit status is then 1. A warning is of what an engine
would run all the same: messages that may go in a loop, an outbound that no handler names, code that every user of the host may
write, a store that every user may read. With --strict the exit status is 1 for those too.`,
		Args: takes(0, 1, "one DIR"), ValidArgsFunction: folders,
	}
	configFlag(cmd, &dir)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line: a worker, or a problem")
	cmd.Flags().BoolVar(&strict, "strict", false, "let a warning fail the check")
	return verb(cmd, func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 {
			if cmd.Flags().Changed("config") {
				return usage("give the folder once: as an argument, or with --config")
			}
			dir = args[0]
		}
		return check(cmd, io, dir, asJSON, strict)
	})
}

// problem is a fault of the configuration, for machines.
type problem struct {
	Problem   string   `json:"problem"`
	What      string   `json:"what,omitempty"` // the worker that it was found in
	File      string   `json:"file,omitempty"`
	Line      int      `json:"line,omitempty"`
	Column    int      `json:"column,omitempty"`
	Hint      string   `json:"hint,omitempty"`
	Traceback string   `json:"traceback,omitempty"` // where the worker's code raised
	Output    []string `json:"output,omitempty"`    // the last lines that the worker printed
	Warning   bool     `json:"warning,omitempty"`   // an engine would run it all the same
}

// problemsJSON prints what is wrong for machines, and returns what is left to say.
func problemsJSON(io stdio, err error) error {
	var many config.Errors
	var one *config.Error
	switch {
	case errors.As(err, &many):
	case errors.As(err, &one):
		many = config.Errors{one}
	case errors.Is(err, context.Canceled), errors.As(err, new(*signalError)):
		return err
	default:
		many = config.Errors{{Msg: oneLine(err)}}
	}
	for _, e := range many {
		if err := lines(io.out).Encode(problemOf(e)); err != nil {
			return err
		}
	}
	return told()
}

func problemOf(e *config.Error) problem {
	return problem{Problem: e.Msg, File: e.File, Line: e.Line, Column: e.Column, Hint: e.Hint}
}

func check(cmd *cobra.Command, io stdio, dir string, asJSON, strict bool) error {
	tell := func(err error) error { return tellConfig(io, err) }
	if asJSON {
		tell = func(err error) error { return problemsJSON(io, err) }
	}
	cfg, err := config.Load(dir, os.LookupEnv)
	if err != nil {
		return tell(err)
	}
	bad, warnings := false, 0
	raised := map[string]bool{} // tracebacks that were printed
	err = engine.Check(cmd.Context(), cfg, func(c engine.Checked) {
		bad = bad || c.Error != nil
		if asJSON {
			checkedJSON(io, c)
		} else {
			checkedText(io, c, raised)
		}
	}, func(w *config.Error) {
		warnings++
		if asJSON {
			p := problemOf(w)
			p.Warning = true
			lines(io.out).Encode(p)
		} else {
			fmt.Fprintln(io.err, "warning:", printableError(w))
		}
	})
	if err != nil {
		return tell(err)
	}
	if bad || strict && warnings > 0 {
		return told()
	}
	if !asJSON {
		fmt.Fprintf(io.out, "ok  %s: %d inbound, %d handler, %d outbound%s\n", cfg.File, len(cfg.Inbounds), len(cfg.Handlers), len(cfg.Outbounds), warned(warnings))
	}
	return nil
}

func warned(n int) string {
	switch n {
	case 0:
		return ""
	case 1:
		return ", 1 warning"
	}
	return fmt.Sprintf(", %d warnings", n)
}

func checkedJSON(io stdio, c engine.Checked) {
	if c.Error == nil {
		lines(io.out).Encode(c)
		return
	}
	p := problemOf(c.Error)
	p.What, p.Output, p.Traceback = c.What, c.Output, c.Traceback
	lines(io.out).Encode(p)
}

// checkedText prints what became of one worker. Those of one file fail alike: their traceback is printed once.
func checkedText(io stdio, c engine.Checked, raised map[string]bool) {
	if c.Error == nil && c.Program != "" {
		fmt.Fprintf(io.out, "ok  %s: %s, executed for each message\n", c.What, printable(c.Program))
		return
	}
	if c.Error == nil {
		fmt.Fprintf(io.out, "ok  %s: ready in %v, level %s (%s)\n", c.What, c.Took.Round(time.Millisecond), c.Level, c.Rung)
		return
	}
	fmt.Fprintln(io.err, printableError(c.Error))
	said := c.Traceback + strings.Join(c.Output, "\n")
	if c.Traceback != "" && raised[said] {
		fmt.Fprintln(io.err, "  | as above")
		return
	}
	raised[said] = true
	for l := range strings.Lines(c.Traceback) {
		fmt.Fprintln(io.err, "  |", printable(strings.TrimRight(l, "\r\n")))
	}
	for _, l := range c.Output {
		fmt.Fprintln(io.err, "  printed:", printable(l))
	}
}
