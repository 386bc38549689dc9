package main

import (
	"context"
	"errors"
	"fmt"
	stream "io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"coppice.dev/coppice/internal/control"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

func replayCommand(io stdio) *cobra.Command {
	var dir string
	var choice deadChoice
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "replay [ID...]",
		Short: "Make a new attempt of what failed for good",
		Long: `Replay repeats the failed parts of messages, and no others: a message that its router failed on is routed again, a handler runs
again with the code of now, a rejected delivery is sent again with the bytes that are stored. A new attempt stands at the end of its
lane; replay says how many newer messages of the same inbound have been delivered there already. What was stays in the history.

Name messages by their IDs, or choose them with the filters of coppice deadletters, or take --all; they are replayed in the order
in which they were received. All failed parts of a message are repeated, also those that a filter would leave out.`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	configFlag(cmd, &dir)
	choice.add(cmd, &dir, "replay")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	return verb(cmd, func(cmd *cobra.Command, args []string) error {
		ids, err := choice.ids(cmd.Context(), io, dir, args)
		if len(ids) == 0 || err != nil {
			return err
		}
		c, _, done, err := reach(cmd.Context(), io, dir)
		if err != nil {
			return err
		}
		defer done()
		r := &replaying{io: io, c: c, asJSON: asJSON, each: len(args) > 0, lanes: map[string]int64{}}
		return r.all(cmd.Context(), ids)
	})
}

func count(these ...bool) (n int) {
	for _, is := range these {
		if is {
			n++
		}
	}
	return n
}

func messageIDs(args []string) (ids []message.ID, err error) {
	for _, arg := range args {
		id, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || id < 1 {
			return nil, usage("%q is no message id: `coppice deadletters` lists them", arg)
		}
		ids = append(ids, message.ID(id))
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// deadMessages lists the messages with dead letters that a query selects, oldest first.
func deadMessages(ctx context.Context, io stdio, dir string, q store.DeadLetters) (ids []message.ID, err error) {
	r, _, err := openReader(ctx, io, dir)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	const page = 1000
	q.Limit = page
	for {
		list, err := r.DeadLetters(ctx, q)
		if err != nil {
			return nil, err
		}
		n := len(ids)
		for _, d := range list {
			if len(ids) == 0 || ids[len(ids)-1] != d.Message {
				ids = append(ids, d.Message)
			}
		}
		if len(ids) < n+page {
			slices.Reverse(ids)
			return ids, nil
		}
		q.Before = ids[len(ids)-1]
	}
}

// replaying is one run of the verb.
type replaying struct {
	io     stdio
	c      control.Commands
	asJSON bool
	each   bool // tell of each message
	bar    *progressbar.ProgressBar

	done, gone, failed int
	lanes              map[string]int64 // the most that went ahead, by outbound
}

// all replays the messages, oldest first, and goes on behind one that cannot be.
func (r *replaying) all(ctx context.Context, ids []message.ID) error {
	if !r.each && terminal(r.io.err) && !(r.asJSON && terminal(r.io.out)) {
		r.bar = progressbar.NewOptions(len(ids), progressbar.OptionSetWriter(r.io.err), progressbar.OptionSetDescription("replaying"),
			progressbar.OptionShowCount(), progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(100*time.Millisecond))
		defer r.bar.Finish()
	}
	for i, id := range ids {
		done, err := r.c.Replay(ctx, id)
		if ctx.Err() != nil {
			return fmt.Errorf("%w\n%d of %d messages are replayed; the same command goes on", context.Cause(ctx), i, len(ids))
		}
		if err := r.tell(id, done, err); err != nil {
			return err
		}
		if r.bar != nil {
			r.bar.Add(1)
		}
	}
	if r.bar != nil {
		r.bar.Finish()
	}
	if err := r.sum(ctx); err != nil {
		return err
	}
	if r.failed > 0 {
		return told()
	}
	return nil
}

// replayed is one message for machines.
type replayed struct {
	Message    message.ID       `json:"id"`
	Router     bool             `json:"router,omitempty"`     // it is routed again
	Handlers   []string         `json:"handlers,omitempty"`   // that run again
	Deliveries []string         `json:"deliveries,omitempty"` // the new ones
	Ahead      map[string]int64 `json:"ahead,omitempty"`      // newer messages that each outbound has delivered already
	Error      string           `json:"error,omitempty"`
}

func (r *replaying) tell(id message.ID, done message.Replay, err error) error {
	switch {
	case err == nil:
		r.done++
	case errors.Is(err, store.ErrNothingFailed) && !r.each:
		r.gone++ // somebody was faster
		return nil
	default:
		r.failed++
	}
	why := ""
	if err != nil { // the store's name the message, as the line does
		why = strings.TrimPrefix(err.Error(), fmt.Sprintf("replay message %d: ", id))
	}
	for out, n := range done.Ahead {
		r.lanes[out] = max(r.lanes[out], n)
	}
	if r.asJSON {
		line := replayed{Message: id, Router: done.Router, Handlers: done.Handlers, Ahead: done.Ahead}
		for _, d := range done.Sends {
			line.Deliveries = append(line.Deliveries, d.Name())
		}
		line.Error = why
		return lines(r.io.out).Encode(line)
	}
	if err != nil {
		if errors.Is(err, store.ErrUndeclared) {
			why += "\n  hint: declare it, or say was = [\"...\"] in the one that takes its place"
		}
		fmt.Fprintf(r.io.err, "message %d: %s\n", id, printableError(errors.New(why)))
		return nil
	}
	if !r.each {
		return nil
	}
	var what []string
	if done.Router {
		what = append(what, "is routed again")
	}
	for _, h := range done.Handlers {
		what = append(what, "handler "+h+" runs again")
	}
	for _, d := range done.Sends {
		what = append(what, "is sent to "+d.Outbound+" again as "+d.Name())
	}
	_, err = fmt.Fprintf(r.io.out, "message %d: %s%s\n", id, strings.Join(what, ", "), ahead(done.Ahead))
	return err
}

// ahead says how much went ahead in each lane.
func ahead(lanes map[string]int64) string {
	s := ""
	for _, out := range slices.Sorted(maps.Keys(lanes)) {
		switch n := lanes[out]; {
		case n >= message.MaxAhead:
			s += fmt.Sprintf("; %d or more newer messages went ahead to %s", n, out)
		case n == 1:
			s += "; 1 newer message went ahead to " + out
		case n > 1:
			s += fmt.Sprintf("; %d newer messages went ahead to %s", n, out)
		}
	}
	return s
}

// sum says how it went, and what keeps it from going on.
func (r *replaying) sum(ctx context.Context) error {
	if r.asJSON {
		return nil
	}
	if !r.each {
		fmt.Fprintf(r.io.out, "%d replayed", r.done)
		if r.gone > 0 {
			fmt.Fprintf(r.io.out, ", %d have no failed part any more", r.gone)
		}
		fmt.Fprintf(r.io.out, ", %d not%s\n", r.failed, ahead(r.lanes))
	}
	s, err := r.c.Status(ctx)
	if err != nil {
		return err
	}
	for _, h := range s.Holds {
		fmt.Fprintf(r.io.err, "%s is held: %s\n  hint: coppice release %s %s\n", printable(h.Target.String()), printable(h.Reason), h.Kind, h.Name)
	}
	if !s.Running && r.done > 0 {
		fmt.Fprintln(r.io.err, "no engine runs: they go on when coppice serve starts")
	}
	return nil
}

func resubmitCommand(io stdio) *cobra.Command {
	var dir, body string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "resubmit ID",
		Short: "Receive a message again, edited or as it is, as a new message",
		Long: `Resubmit has a message received again by the inbound that it came by, as a new message that is linked to the old one; coppice show
tells of the link on both sides. It is routed, handled and delivered as any other, also where the old one was delivered already.

To edit it: coppice show --raw ID >message.hl7, change that, coppice resubmit ID --body message.hl7.`,
		Args: takes(1, 1, "one message ID: `coppice messages` lists them"), ValidArgsFunction: cobra.NoFileCompletions,
	}
	configFlag(cmd, &dir)
	cmd.Flags().StringVar(&body, "body", "", "the bytes of `FILE` in place of its own, or - for stdin")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return verb(cmd, func(cmd *cobra.Command, args []string) error {
		ids, err := messageIDs(args)
		if err != nil {
			return err
		}
		var edited []byte
		if body != "" {
			if edited, err = readBody(io, body); err != nil {
				return err
			}
		}
		c, _, done, err := reach(cmd.Context(), io, dir)
		if err != nil {
			return err
		}
		defer done()
		id, err := c.Resubmit(cmd.Context(), ids[0], edited)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return fmt.Errorf("no message %d in this store", ids[0])
		case err != nil:
			return undeclared(err)
		case asJSON:
			return printJSON(io.out, map[string]message.ID{"id": id, "resubmits": ids[0]})
		}
		_, err = fmt.Fprintf(io.out, "message %d is received again as message %d\n", ids[0], id)
		return err
	})
}

// readBody reads the bytes of a message from a file, or from stdin, and never more than a message may have.
func readBody(io stdio, name string) ([]byte, error) {
	var in stream.Reader = io.in
	if name != sendStdin {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	b, err := stream.ReadAll(stream.LimitReader(in, sendMax+1))
	if err == nil && len(b) > sendMax {
		err = fmt.Errorf("%s has more than the %d bytes of the largest message", name, sendMax)
	}
	return b, err
}
