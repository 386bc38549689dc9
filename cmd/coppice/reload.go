package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"coppice.dev/coppice/internal/control"
	"coppice.dev/coppice/internal/engine"
)

func reloadCommand(io stdio) *cobra.Command {
	var dir string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Have the running engine go on with the configuration and the code of now",
		Long: `Reload has an engine that runs read coppice.toml and the code of its folder again. It is all or nothing: the file is read as
coppice check reads it, every worker of the new code is started, and if anything is wrong the engine goes on as it was.

What is under way ends under the old code, for which it has three seconds, or is done again under the new one; the queue goes on
under the new one. Connections that did not change stay open. One that did, on the same address, is closed for a moment.
${NAME} stands for what the engine's environment held when it started. store.path cannot be changed by a reload.

Names are identity: a reload that drops a name for which work waits is refused, unless the one that takes its place says
was = ["old name"].`,
		Args: takes(0, 0, ""), ValidArgsFunction: cobra.NoFileCompletions,
	}
	configFlag(cmd, &dir)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return verb(cmd, func(cmd *cobra.Command, _ []string) error {
		c, _, done, err := reach(cmd.Context(), io, dir)
		if err != nil {
			return err
		}
		defer done()
		r, err := c.Reload(cmd.Context())
		if r.Changed == nil {
			r.Changed = []string{}
		}
		switch {
		case errors.Is(err, engine.ErrNotRunning):
			return err
		case err != nil:
			return fmt.Errorf("not reloaded; the engine goes on as it was\n%w", err)
		case asJSON:
			return printJSON(io.out, r)
		}
		for _, change := range r.Changed {
			fmt.Fprintln(io.out, printable(change))
		}
		if len(r.Changed) == 0 {
			fmt.Fprintln(io.out, "nothing changed")
		}
		if r.Renamed > 0 {
			fmt.Fprintf(io.out, "%d waiting parts of messages have a new name\n", r.Renamed)
		}
		fmt.Fprintln(io.out, "reloaded: the code is", printable(r.Code))
		return tellStillHeld(cmd.Context(), io, c)
	})
}

// tellStillHeld says what a reload does not set going again: whoever has mended a handler expects it to run.
func tellStillHeld(ctx context.Context, io stdio, c control.Commands) error {
	s, err := c.Status(ctx)
	if err != nil {
		return err
	}
	for _, h := range s.Holds {
		waiting := int64(0)
		for _, l := range s.Lanes {
			if l.Kind == h.Kind && l.Name == h.Name && (h.Inbound == "" || h.Inbound == l.Inbound) {
				waiting += l.Waiting
			}
		}
		fmt.Fprintf(io.out, "%s is still held, and %d wait: coppice release %s\n", printable(h.Target.String()), waiting, printable(releaseOf(h.Target)))
	}
	return nil
}
