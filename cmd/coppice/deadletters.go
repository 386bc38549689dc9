package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// deadFlags are the filters of dead letters, which deadletters and replay share.
type deadFlags struct {
	inbound, router, handler, outbound string
	since                              string
	before                             int64
}

func (f *deadFlags) add(cmd *cobra.Command, dir *string) {
	flags := cmd.Flags()
	flags.StringVar(&f.inbound, "inbound", "", "only of messages that came by the inbound `NAME`")
	flags.StringVar(&f.router, "router", "", "only what the router of the inbound `NAME` failed on")
	flags.StringVar(&f.handler, "handler", "", "only what the handler `NAME` failed on")
	flags.StringVar(&f.outbound, "outbound", "", "only what the outbound `NAME` rejected")
	flags.StringVar(&f.since, "since", "", "only messages received since `TIME`: "+timeForms)
	flags.Int64Var(&f.before, "before", 0, "only of messages below this `ID`, for the next page")
	names(cmd, "inbound", dir, message.KindInbound)
	names(cmd, "router", dir, message.KindInbound)
	names(cmd, "handler", dir, message.KindHandler)
	names(cmd, "outbound", dir, message.KindOutbound)
}

// given says whether any filter was.
func (f *deadFlags) given() bool { return *f != deadFlags{} }

func (f *deadFlags) query(now time.Time) (store.DeadLetters, error) {
	q := store.DeadLetters{Inbound: f.inbound, Before: message.ID(f.before)}
	for _, by := range [][2]string{{message.KindInbound, f.router}, {message.KindHandler, f.handler}, {message.KindOutbound, f.outbound}} {
		if by[1] == "" {
			continue
		}
		if q.Kind != "" {
			return q, usage("--router, --handler and --outbound exclude one another")
		}
		q.Kind, q.Name = by[0], by[1]
	}
	if f.before < 0 {
		return q, usage("--before is a message id")
	}
	var err error
	q.Since, err = parseTime("since", f.since, now)
	return q, err
}

func deadLettersCommand(io stdio) *cobra.Command {
	var dir string
	var limit int
	var filter deadFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "deadletters",
		Short: "List what failed for good and was not replayed, newest message first",
		Long: `Deadletters lists each part of a message that failed for good: a router or a handler that failed on it, or a delivery that
its receiver rejected. It is kept with the reason, until the store's retention ends it; it is listed until coppice replay makes a new
attempt of it, its message is resubmitted, or coppice dismiss says that somebody has seen to it.
coppice show ID tells all of one message. It reads beside a running engine, or from the file of a stopped one.`,
		Args: takes(0, 0, ""), ValidArgsFunction: cobra.NoFileCompletions,
	}
	configFlag(cmd, &dir)
	filter.add(cmd, &dir)
	cmd.Flags().IntVarP(&limit, "limit", "n", 50, "of at most `N` messages")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	return verb(cmd, func(cmd *cobra.Command, _ []string) error {
		q, err := filter.query(time.Now())
		if err != nil {
			return err
		}
		if q.Limit = limit; limit < 1 {
			return usage("--limit is at least 1")
		}
		r, _, err := openReader(cmd.Context(), io, dir)
		if err != nil {
			return err
		}
		defer r.Close()
		return printDeadLetters(cmd.Context(), io, r, q, asJSON)
	})
}

// deadLetter is a dead letter for machines.
type deadLetter struct {
	Message   message.ID `json:"id"`
	Inbound   string     `json:"inbound"`
	Type      string     `json:"type"`
	ControlID string     `json:"control_id"`
	Kind      string     `json:"kind"` // "router", "handler" or "outbound"
	Name      string     `json:"name"`
	Delivery  string     `json:"delivery,omitempty"`
	Reason    string     `json:"reason"`
	Ended     time.Time  `json:"ended"`
}

func printDeadLetters(ctx context.Context, io stdio, r store.Reader, q store.DeadLetters, asJSON bool) error {
	list, err := r.DeadLetters(ctx, q)
	if err != nil {
		return err
	}
	if len(list) == 0 && !asJSON {
		fmt.Fprintln(io.err, "no dead letters")
		return nil
	}
	e := lines(io.out)
	rows := [][]string{{"ID", "ENDED", "INBOUND", "TYPE", "CONTROL ID", "FAILED", "REASON"}}
	for _, d := range list {
		kind := d.Kind
		if kind == message.KindInbound {
			kind = "router"
		}
		if asJSON {
			if err := e.Encode(deadLetter{d.Message, d.Inbound, d.Type, d.Control, kind, d.Name, d.Delivery, d.Reason, d.Ended}); err != nil {
				return err
			}
			continue
		}
		failed := kind + " " + d.Name
		rows = append(rows, []string{strconv.FormatInt(int64(d.Message), 10), clock(d.Ended), d.Inbound, clip(d.Type, 20), clip(d.Control, 24),
			failed, clip(d.Reason, 160)})
	}
	if asJSON {
		return nil
	}
	return table(io.out, rows)
}
