package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/control"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

const whatIsHeld = "what: inbound, handler or outbound, and a NAME"

func holdCommand(io stdio) *cobra.Command {
	var dir, lane, reason string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "hold inbound|handler|outbound NAME",
		Short: "Keep an inbound's routing, a handler or an outbound from going on, until it is released",
		Long: `Hold keeps work waiting until coppice release, also through restarts; nothing is lost meanwhile. Of an inbound no message is
routed, though it still receives; a handler gets no message; an outbound sends nothing, or with --lane only what came by one
inbound goes on. What is under way ends first.

An engine that runs is told through its control socket; where none runs, the hold is written into the store.`,
		Args: takes(2, 2, whatIsHeld), ValidArgsFunction: completeTargets(&dir),
	}
	configFlag(cmd, &dir)
	cmd.Flags().StringVar(&lane, "lane", "", "of an outbound: only what came by the inbound `NAME`")
	cmd.Flags().StringVar(&reason, "reason", "by hand", "`TEXT` that lanes and show tell")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	names(cmd, "lane", &dir, message.KindInbound)
	return verb(cmd, func(cmd *cobra.Command, args []string) error {
		t, err := targetOf(args, lane)
		if err != nil {
			return err
		}
		c, _, done, err := reach(cmd.Context(), io, dir)
		if err != nil {
			return err
		}
		defer done()
		if err := c.Hold(cmd.Context(), t, reason); err != nil {
			return undeclared(err)
		}
		h, err := heldNow(cmd.Context(), c, t)
		switch {
		case err != nil:
			return err
		case asJSON:
			return printJSON(io.out, h)
		case h.Reason != reason: // the first reason stays
			fmt.Fprintf(io.out, "%s was held already, since %s, and keeps its reason: %s\n", printable(t.String()), clock(h.Since), printable(h.Reason))
			return nil
		}
		fmt.Fprintf(io.out, "%s is held\n", printable(t.String()))
		return nil
	})
}

// heldNow is the hold of a target, as it stands.
func heldNow(ctx context.Context, c control.Commands, t message.Target) (message.Hold, error) {
	s, err := c.Status(ctx)
	if err != nil {
		return message.Hold{}, err
	}
	for _, h := range s.Holds {
		if h.Target == t {
			return h, nil
		}
	}
	return message.Hold{}, fmt.Errorf("%s is held no more: somebody has released it", t)
}

func releaseCommand(io stdio) *cobra.Command {
	var dir, lane string
	var bury, all, asJSON bool
	cmd := &cobra.Command{
		Use:   "release inbound|handler|outbound NAME",
		Short: "Let go on what was held",
		Long: `Release ends the holds of an inbound, a handler, or an outbound with all of its lanes; --lane names one of these. What was held
for failures in a row counts them from zero again. What an outbound is to try again later it tries now, held or not.

A delivery that was rejected with then = "hold" is sent again. With --dead-letter it becomes a dead letter, and its lane goes on
with the one behind it. So it does with a delivery that is tried again and again, once its lane is held by hand:
coppice hold outbound NAME --lane INBOUND.`,
		Args: takes(0, 2, whatIsHeld), ValidArgsFunction: completeTargets(&dir),
	}
	configFlag(cmd, &dir)
	f := cmd.Flags()
	f.StringVar(&lane, "lane", "", "of an outbound: only the lane of the inbound `NAME`")
	f.BoolVar(&bury, "dead-letter", false, "give up on the delivery that heads a held lane, if it has been tried")
	names(cmd, "lane", &dir, message.KindInbound)
	f.BoolVar(&all, "all", false, "release everything that is held")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return verb(cmd, func(cmd *cobra.Command, args []string) error {
		if all != (len(args) == 0) || len(args) == 1 || all && lane != "" {
			return usage("release needs %s, or --all", whatIsHeld)
		}
		c, _, done, err := reach(cmd.Context(), io, dir)
		if err != nil {
			return err
		}
		defer done()
		released, err := release(cmd.Context(), c, args, lane, bury)
		if err != nil {
			return undeclared(err)
		}
		return tellReleased(io, released, args, lane, bury, asJSON)
	})
}

func tellReleased(io stdio, released []message.Hold, args []string, lane string, bury, asJSON bool) error {
	if asJSON {
		if err := printJSON(io.out, append([]message.Hold{}, released...)); err != nil {
			return err
		}
	}
	buried := false
	for _, h := range released {
		buried = buried || h.Buried != ""
		if asJSON {
			continue
		}
		fmt.Fprintf(io.out, "%s is released; it was held since %s: %s\n", printable(h.Target.String()), clock(h.Since), printable(h.Reason))
		if h.Buried != "" {
			fmt.Fprintf(io.out, "  delivery %s is a dead letter\n", h.Buried)
		}
	}
	retried := len(args) > 0 && args[0] == message.KindOutbound
	switch {
	case bury && !buried && retried:
		return fmt.Errorf("no delivery was given up on: what heads a lane has to be held, and tried\n  hint: coppice hold outbound %s --lane %s, and then this again", args[1], cmp.Or(lane, "INBOUND"))
	case len(released) > 0:
		return nil
	case retried:
		fmt.Fprintln(io.err, "nothing of that was held; what waits for its next try is tried now")
		return nil
	}
	return errors.New("nothing of that was held: `coppice lanes` shows what is")
}

func release(ctx context.Context, c control.Commands, args []string, lane string, bury bool) ([]message.Hold, error) {
	if len(args) > 0 {
		t, err := targetOf(args, lane)
		if err != nil {
			return nil, err
		}
		return c.Release(ctx, t, bury)
	}
	s, err := c.Status(ctx)
	if err != nil {
		return nil, err
	}
	var released []message.Hold
	for _, h := range s.Holds {
		some, err := c.Release(ctx, h.Target, bury)
		if err != nil {
			return released, err
		}
		released = append(released, some...)
	}
	return released, nil
}

// targetOf makes a target of a verb's arguments.
func targetOf(args []string, lane string) (message.Target, error) {
	t := message.Target{Kind: args[0], Name: args[1], Inbound: lane}
	switch t.Kind {
	case message.KindInbound, message.KindHandler, message.KindOutbound:
	default:
		return t, usage("%q is none of inbound, handler, outbound", t.Kind)
	}
	if lane != "" && t.Kind != message.KindOutbound {
		return t, usage("--lane goes with an outbound: only an outbound has lanes")
	}
	return t, nil
}

// undeclared adds a hint to an error about a name.
func undeclared(err error) error {
	if errors.Is(err, store.ErrUndeclared) {
		return fmt.Errorf("%w\n  hint: coppice.toml has the names", err)
	}
	return err
}

// completeTargets lets a shell complete a kind, and then a name of it.
func completeTargets(dir *string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		switch len(args) {
		case 0:
			return []string{message.KindInbound, message.KindHandler, message.KindOutbound}, cobra.ShellCompDirectiveNoFileComp
		case 1:
			return declaredNames(*dir, args[0]), cobra.ShellCompDirectiveNoFileComp
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// names lets a shell complete a flag to the names of a kind, and tells, after the verb, of one that is none of them: nothing was found
// then, or only what is from before a rename.
func names(cmd *cobra.Command, flag string, dir *string, kind string) {
	before := cmd.PostRun
	cmd.PostRun = func(cmd *cobra.Command, args []string) {
		if before != nil {
			before(cmd, args)
		}
		f := cmd.Flags().Lookup(flag)
		if !f.Changed {
			return
		}
		list := declaredNames(*dir, kind)
		if name := f.Value.String(); len(list) > 0 && !slices.Contains(list, name) {
			fmt.Fprintf(cmd.ErrOrStderr(), "hint: coppice.toml declares no %s %q; there are %s\n", kind, name, strings.Join(list, ", "))
		}
	}
	// an error only for a flag that is not there
	_ = cmd.RegisterFlagCompletionFunc(flag, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return declaredNames(*dir, kind), cobra.ShellCompDirectiveNoFileComp
	})
}

// declaredNames lists what a folder's configuration declares of a kind; nothing if it cannot be read.
func declaredNames(dir, kind string) (list []string) {
	cfg, err := config.Load(dir, os.LookupEnv)
	if err != nil {
		return nil
	}
	switch kind {
	case message.KindInbound:
		for _, in := range cfg.Inbounds {
			list = append(list, in.Name)
		}
	case message.KindHandler:
		for _, h := range cfg.Handlers {
			list = append(list, h.Name)
		}
	case message.KindOutbound:
		for _, out := range cfg.Outbounds {
			list = append(list, out.Name)
		}
	}
	return list
}
