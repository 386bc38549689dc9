package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"coppice.dev/coppice/internal/control"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

func dismissCommand(io stdio) *cobra.Command {
	var dir string
	var choice deadChoice
	d := &dismissing{io: io}
	cmd := &cobra.Command{
		Use:   "dismiss [ID...] --reason TEXT",
		Short: "Take what failed for good from the dead letters, without a new attempt",
		Long: `Dismiss says of dead letters that somebody has seen to them: coppice deadletters does not list them any more, and coppice replay --all
and its filters leave them alone. Nothing else changes: the messages stay ERROR, with all that was said of them, and coppice show tells
when they were dismissed and why. Who names one to coppice replay has it replayed all the same.

Name messages by their IDs, or choose them with the filters of coppice deadletters, or take --all. All failed parts of a message are
dismissed, also those that a filter would leave out; what fails of it later is a dead letter again.`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	configFlag(cmd, &dir)
	choice.add(cmd, &dir, "dismiss")
	cmd.Flags().StringVar(&d.reason, "reason", "", "why, as `TEXT` for the history")
	cmd.Flags().BoolVar(&d.asJSON, "json", false, "print one JSON object a line")
	return verb(cmd, func(cmd *cobra.Command, args []string) error {
		if strings.TrimSpace(d.reason) == "" && !choice.dryRun {
			return usage("dismiss needs a --reason, which the history keeps")
		}
		ids, err := choice.ids(cmd.Context(), io, dir, args)
		if len(ids) == 0 || err != nil {
			return err
		}
		c, _, done, err := reach(cmd.Context(), io, dir)
		if err != nil {
			return err
		}
		defer done()
		d.c, d.each = c, len(args) > 0
		return d.all(cmd.Context(), ids)
	})
}

// deadChoice is which messages with dead letters a verb is about: by their ids, by filters, or all. replay and dismiss share it.
type deadChoice struct {
	deadFlags
	every, dryRun bool
	verb          string
}

func (c *deadChoice) add(cmd *cobra.Command, dir *string, verb string) {
	c.verb = verb
	c.deadFlags.add(cmd, dir)
	cmd.Flags().BoolVar(&c.every, "all", false, verb+" all dead letters")
	cmd.Flags().BoolVar(&c.dryRun, "dry-run", false, "only list the messages that the verb would take")
}

// ids are the messages to go on with, oldest first; none if that is all: it has been told why.
func (c *deadChoice) ids(ctx context.Context, io stdio, dir string, args []string) ([]message.ID, error) {
	if ways := count(len(args) > 0, c.given(), c.every); ways != 1 {
		return nil, usage("%s needs message IDs, or filters, or --all: `coppice deadletters` lists what there is", c.verb)
	}
	ids, err := messageIDs(args)
	if err != nil {
		return nil, err
	}
	q, err := c.query(time.Now())
	if err != nil {
		return nil, err
	}
	if len(args) == 0 {
		if ids, err = deadMessages(ctx, io, dir, q); err != nil {
			return nil, err
		}
	}
	switch {
	case c.dryRun:
		for _, id := range ids {
			fmt.Fprintln(io.out, id)
		}
		return nil, nil
	case len(ids) == 0:
		fmt.Fprintln(io.err, "no dead letters")
	}
	return ids, nil
}

// dismissing is one run of the verb.
type dismissing struct {
	io     stdio
	c      control.Commands
	reason string
	asJSON bool
	each   bool // tell of each message

	done, failed int
}

// all dismisses the messages and goes on behind one that cannot be.
func (d *dismissing) all(ctx context.Context, ids []message.ID) error {
	var bar *progressbar.ProgressBar
	if !d.each && terminal(d.io.err) && !(d.asJSON && terminal(d.io.out)) {
		bar = progressbar.NewOptions(len(ids), progressbar.OptionSetWriter(d.io.err), progressbar.OptionSetDescription("dismissing"),
			progressbar.OptionShowCount(), progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(100*time.Millisecond))
		defer bar.Finish()
	}
	for i, id := range ids {
		parts, err := d.c.Dismiss(ctx, id, d.reason)
		if ctx.Err() != nil {
			return fmt.Errorf("%w\n%d of %d messages are dismissed; the same command goes on", context.Cause(ctx), i, len(ids))
		}
		if err := d.tell(id, parts, err); err != nil {
			return err
		}
		if bar != nil {
			bar.Add(1)
		}
	}
	if bar != nil {
		bar.Finish()
	}
	if !d.asJSON && !d.each {
		fmt.Fprintf(d.io.out, "%d dismissed, %d not\n", d.done, d.failed)
	}
	if d.failed > 0 {
		return told()
	}
	return nil
}

func (d *dismissing) tell(id message.ID, parts int64, err error) error {
	switch {
	case err == nil:
		d.done++
	case errors.Is(err, store.ErrNothingFailed) && !d.each:
		return nil // somebody was faster
	default:
		d.failed++
	}
	why := ""
	if err != nil { // the store's name the message, as the line does
		why = strings.TrimPrefix(err.Error(), fmt.Sprintf("dismiss message %d: ", id))
	}
	switch {
	case d.asJSON:
		return lines(d.io.out).Encode(struct {
			Message message.ID `json:"id"`
			Parts   int64      `json:"parts"`
			Error   string     `json:"error,omitempty"`
		}{id, parts, why})
	case err != nil:
		fmt.Fprintf(d.io.err, "message %d: %s\n", id, printableError(errors.New(why)))
	case d.each && parts == 1:
		_, err = fmt.Fprintf(d.io.out, "message %d: 1 dead letter is dismissed\n", id)
		return err
	case d.each:
		_, err = fmt.Fprintf(d.io.out, "message %d: %d dead letters are dismissed\n", id, parts)
		return err
	}
	return nil
}
