package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"coppice.dev/coppice/internal/engine"
)

func checkCommand(io stdio) *cobra.Command {
	var dir string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check [DIR]",
		Short: "Prove the wiring of a folder without running it",
		Long: `Check reads DIR/coppice.toml, where every key and every name must be known, and boots each worker in its sandbox to see that
its code loads and offers what the file asks for. It opens no connection and touches no store, so it may run beside an engine.

Everything that is wrong is printed with file, line, column and a hint; the exit status is then 1.`,
		Args: cobra.MaximumNArgs(1),
	}
	configFlag(cmd, &dir)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line: a worker, or a problem")
	return verb(cmd, func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 {
			if cmd.Flags().Changed("config") {
				return usage("give the folder once: as an argument, or with --config")
			}
			dir = args[0]
		}
		return check(cmd, io, dir, asJSON)
	})
}

// problem is a fault of the configuration, for machines.
type problem struct {
	Problem string `json:"problem"`
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Hint    string `json:"hint,omitempty"`
}

func check(cmd *cobra.Command, io stdio, dir string, asJSON bool) error {
	tell := func(err error) error { return tellConfig(io, err) }
	if asJSON {
		tell = func(err error) error { return problemsJSON(io, err) }
	}
	cfg, err := readConfig(dir)
	if err != nil {
		return tell(err)
	}
	bad := false
	err = engine.Check(cmd.Context(), cfg, func(c engine.Checked) {
		bad = bad || c.Error != nil
		switch {
		case asJSON && c.Error != nil:
			problemsJSON(io, c.Error)
		case asJSON:
			lines(io.out).Encode(c)
		case c.Error != nil:
			fmt.Fprintln(io.err, c.Error)
			for _, l := range c.Output {
				fmt.Fprintln(io.err, "  printed:", l)
			}
		default:
			fmt.Fprintf(io.out, "ok  %s: ready in %v, level %s (%s)\n", c.What, c.Took.Round(time.Millisecond), c.Level, c.Rung)
		}
	})
	if err != nil {
		return tell(err)
	}
	if bad {
		return told()
	}
	if !asJSON {
		fmt.Fprintf(io.out, "ok  %s: %d inbound, %d handler, %d outbound\n", cfg.File, len(cfg.Inbounds), len(cfg.Handlers), len(cfg.Outbounds))
	}
	return nil
}
