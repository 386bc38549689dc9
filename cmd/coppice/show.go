package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

func showCommand(io stdio) *cobra.Command {
	var dir string
	var asJSON, raw, diff bool
	var delivery int
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show one message: what came, what each handler did, what was delivered",
		Long: `Show prints everything that the store knows of one message, and how each body that was sent differs from what came: HL7 segment by
segment with the fields that changed, text line by line, all else byte by byte; --diff=false leaves that out. With --raw it writes the message's bytes to stdout exactly as
they were received, and with --raw --delivery N those of its Nth delivery as they were sent. Of a message that was resubmitted it shows as well what was edited.

A run of the router or a handler is PENDING until it has ended as SENT, FILTERED or ERROR. A delivery is RESERVED, a place
kept for a handler that has not ended; then READY to be sent; in the end DONE, or DEAD if it was rejected for good. Places
that were closed unused are not shown. Of what a router or a handler printed, stdout and stderr, the last 4 KiB each are shown.

HELD says what a message that has not ended waits for, and until when, if the store knows; cut, which workers were cut while they had
it, and under which number coppice explain tells of it.`,
		Args: takes(1, 1, "one message ID: `coppice messages` lists them"), ValidArgsFunction: cobra.NoFileCompletions,
	}
	configFlag(cmd, &dir)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON; bodies are base64")
	cmd.Flags().BoolVar(&diff, "diff", true, "show how what was sent differs from what came")
	cmd.Flags().BoolVar(&raw, "raw", false, "write the bytes, and nothing else")
	cmd.Flags().IntVar(&delivery, "delivery", 0, "with --raw: the bytes of delivery `N`")
	return verb(cmd, func(cmd *cobra.Command, args []string) error {
		id, err := strconv.ParseInt(args[0], 10, 64)
		if err != nil || id < 1 {
			return usage("%q is no message id: `coppice messages` lists them", args[0])
		}
		switch asked := cmd.Flags().Changed("delivery"); {
		case asked && !raw:
			return usage("--delivery goes with --raw")
		case asked && delivery < 1:
			return usage("--delivery counts from 1")
		case raw && asJSON:
			return usage("--raw and --json exclude one another")
		}
		r, cfg, err := openReader(cmd.Context(), io, dir)
		if err != nil {
			return err
		}
		defer r.Close()
		t, err := r.Timeline(cmd.Context(), message.ID(id))
		switch {
		case errors.Is(err, store.ErrNotFound):
			return fmt.Errorf("no message %d in this store", id)
		case err != nil:
			return err
		case raw:
			return showRaw(io, t, delivery)
		}
		h, err := readHolds(cmd.Context(), cfg, r)
		if err != nil {
			return err
		}
		was, err := unedited(cmd.Context(), r, t, diff)
		switch {
		case err != nil:
			return err
		case asJSON:
			return printJSON(io.out, timelineJSON(t, h, diff, was))
		}
		return showText(io, t, h, diff, was)
	})
}

// unedited is the body that a message sends again, edited; nil if it is none, if that one is purged, or if nobody wants the difference.
func unedited(ctx context.Context, r store.Reader, t store.Timeline, diff bool) ([]byte, error) {
	if t.Message.Resubmits == 0 || !diff {
		return nil, nil
	}
	old, err := r.Timeline(ctx, t.Message.Resubmits)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	return old.Message.Body, err
}

func showRaw(io stdio, t store.Timeline, number int) error {
	if number == 0 {
		_, err := io.out.Write(t.Message.Body)
		return err
	}
	for _, d := range t.Deliveries {
		if d.Number != number {
			continue
		}
		if d.State == message.Reserved || d.State == message.Closed {
			return fmt.Errorf("delivery %d of message %d has no body: it is %s", number, t.Message.ID, d.State)
		}
		_, err := io.out.Write(d.Body)
		return err
	}
	return fmt.Errorf("message %d has no delivery %d", t.Message.ID, number)
}

// sent are the deliveries that were not closed unused.
func sent(t store.Timeline) []message.Delivery {
	return slices.DeleteFunc(slices.Clone(t.Deliveries), func(d message.Delivery) bool { return d.State == message.Closed })
}

func showText(io stdio, t store.Timeline, h holds, diff bool, was []byte) error {
	m := t.Message
	p := func(format string, args ...any) { fmt.Fprintf(io.out, format+"\n", args...) }
	standing := string(m.Disposition)
	if seen := seenTo(t); seen != "" {
		standing += ", " + seen
	}
	p("message %d  %s", m.ID, standing)
	if m.Reason != "" {
		p("  why       %s", printable(m.Reason))
	}
	p("  received  %s by %s from %s", clock(m.Received), m.Inbound, printable(m.Peer))
	if !m.Ended.IsZero() {
		p("  ended     %s, after %v", clock(m.Ended), m.Ended.Sub(m.Received).Round(time.Millisecond))
	}
	for _, held := range h.of(t) {
		p("  HELD      %s", printable(held.String()))
	}
	for _, c := range h.cutsOf(m.ID) {
		p("  cut       %s: %s (coppice explain %d)", printable(c.Worker), printable(short(c)), c.ID)
	}
	if m.Resubmits != 0 {
		p("  resubmits message %d", m.Resubmits)
		if was != nil {
			fmt.Fprint(io.out, edited(was, m.Body, inColor(io.out, "auto")))
		}
	}
	if m.Duplicates > 0 {
		p("  repeated  %d times, and not processed again", m.Duplicates)
	}
	for _, id := range t.Resubmits {
		p("  resubmitted as message %d", id)
	}
	p("  type      %s  control id %s", orNone(m.Type), orNone(m.ControlID))
	p("  body      %d bytes, sha256 %s", m.Size, m.SHA256)
	for _, name := range slices.Sorted(maps.Keys(t.Tags)) {
		p("  tag       %s = %s", printable(name), printable(t.Tags[name]))
	}
	for _, r := range t.Runs {
		showRun(p, r)
	}
	c := &comparing{came: m.Body, diff: diff, color: inColor(io.out, "auto")}
	for _, d := range sent(t) {
		showDelivery(p, d)
		if d.Body != nil {
			fmt.Fprint(io.out, c.text(d))
		}
	}
	p("")
	return showBody(io, m.Body)
}

func orNone(s string) string {
	if s == "" {
		return "-"
	}
	return printable(s)
}

func showRun(p func(string, ...any), r message.Run) {
	who := "handler " + r.Handler
	if r.Handler == "" {
		who = "router"
	}
	line := fmt.Sprintf("%s  %s", who, r.State)
	if r.State != message.RunPending {
		if r.Outcome.Took > 0 { // nobody has measured how long it took to fail
			line += fmt.Sprintf(" in %v", r.Outcome.Took.Round(10*time.Microsecond))
		}
		if r.Outcome.Attempts > 1 {
			line += fmt.Sprintf(", %d attempts", r.Outcome.Attempts)
		}
		if r.Outcome.Code != "" {
			line += ", code " + r.Outcome.Code
		}
	}
	if !r.Replayed.IsZero() {
		line += " (replayed " + clock(r.Replayed) + ")"
	}
	p("%s", line)
	if r.Outcome.Reason != "" {
		p("  why       %s", printable(r.Outcome.Reason))
	}
	showDismissal(p, r.Dismissed)
	if f := r.Outcome.Fault; f != nil && f.Traceback != "" {
		for l := range strings.Lines(f.Traceback) {
			p("  | %s", printable(strings.TrimRight(l, "\r\n")))
		}
	}
	for _, printed := range r.Outcome.Printed {
		if printed.Left > 0 {
			p("  %-9s ... %d bytes before this are not kept", printed.Stream, printed.Left)
		}
		for l := range strings.Lines(printed.Text) {
			p("  %-9s %s", printed.Stream, printable(strings.TrimRight(l, "\r\n")))
		}
	}
}

func showDismissal(p func(string, ...any), d message.Dismissal) {
	if !d.At.IsZero() {
		p("  dismissed %s: %s", clock(d.At), printable(d.Reason))
	}
}

func showDelivery(p func(string, ...any), d message.Delivery) {
	line := fmt.Sprintf("delivery %d to %s by %s  %s", d.Number, d.Outbound, d.Handler, d.State)
	if !d.Replayed.IsZero() {
		line += " (replayed " + clock(d.Replayed) + ")"
	}
	p("%s", line)
	if d.Receipt != "" {
		p("  receipt   %s", printable(d.Receipt))
	}
	if d.Reason != "" {
		failed := d.Attempts
		if d.State == message.Delivered {
			failed--
		}
		p("  failed    %s, the last: %s", several(failed, "time"), printable(d.Reason))
	}
	showDismissal(p, d.Dismissed)
	if d.State == message.Ready && !d.NextTry.IsZero() {
		p("  next try  %s", clock(d.NextTry))
	}
	if !d.Ended.IsZero() {
		p("  ended     %s", clock(d.Ended))
	}
}

// showBody prints a body a line each for its lines, safely and not without end.
func showBody(io stdio, body []byte) error {
	const most = 64 << 10
	rest := len(body) - most
	body = body[:min(len(body), most)]
	body = bytes.ReplaceAll(body, []byte("\r\n"), []byte("\n"))
	body = bytes.ReplaceAll(body, []byte("\r"), []byte("\n"))
	for l := range bytes.Lines(body) {
		if _, err := fmt.Fprintln(io.out, printable(string(bytes.TrimRight(l, "\n")))); err != nil {
			return err
		}
	}
	if rest > 0 {
		fmt.Fprintf(io.out, "... %d more bytes: use --raw\n", rest)
	}
	return nil
}

type runJSON struct {
	Handler   string           `json:"handler,omitempty"`
	State     message.RunState `json:"state"`
	Reason    string           `json:"reason,omitempty"`
	Kind      string           `json:"fault,omitempty"`
	Type      string           `json:"type,omitempty"`
	Text      string           `json:"text,omitempty"`
	Traceback string           `json:"traceback,omitempty"`
	Attempts  int              `json:"attempts"`
	TookNS    int64            `json:"took_ns,omitempty"` // absent where it is not known, as of most that failed
	Code      string           `json:"code,omitempty"`
	Printed   []printedJSON    `json:"printed,omitempty"`
	Ended     *time.Time       `json:"ended,omitempty"`
	Replayed  *time.Time       `json:"replayed,omitempty"` // when a new attempt took its place
	Dismissed *dismissalJSON   `json:"dismissed,omitempty"`
}

// dismissalJSON says of a dead letter that somebody has seen to it.
type dismissalJSON struct {
	At     time.Time `json:"at"`
	Reason string    `json:"reason"`
}

func dismissal(d message.Dismissal) *dismissalJSON {
	if d.At.IsZero() {
		return nil
	}
	return &dismissalJSON{d.At, d.Reason}
}

type printedJSON struct {
	Stream string `json:"stream"`
	Text   string `json:"text"`
	Left   int64  `json:"left_out,omitempty"` // bytes before that
}

// cutJSON is one cut of a worker that had the message; coppice explain has its story.
type cutJSON struct {
	ID     int    `json:"id"`
	Worker string `json:"worker"`
	Kind   string `json:"kind"`
	Why    string `json:"why,omitempty"`
}

type deliveryJSON struct {
	Number    int                   `json:"number"`
	Name      string                `json:"id"`
	Outbound  string                `json:"outbound"`
	Handler   string                `json:"handler"`
	State     message.DeliveryState `json:"state"`
	Attempts  int                   `json:"attempts"`
	Receipt   string                `json:"receipt,omitempty"`
	Reason    string                `json:"reason,omitempty"`
	NextTry   *time.Time            `json:"next_try,omitempty"`
	Ended     *time.Time            `json:"ended,omitempty"`
	Replayed  *time.Time            `json:"replayed,omitempty"` // when a new attempt took its place
	Dismissed *dismissalJSON        `json:"dismissed,omitempty"`
	Body      []byte                `json:"body,omitempty"`
	AsItCame  *bool                 `json:"as_it_came,omitempty"` // absent where there is no body yet
	Diff      []string              `json:"diff,omitempty"`       // from what came
}

// someTime is a time for JSON, which leaves out a zero one.
func someTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func timelineJSON(t store.Timeline, h holds, diff bool, was []byte) any {
	out := struct {
		listed
		Edited     []string          `json:"resubmits_diff,omitempty"` // from the message that it sends again
		Cuts       []cutJSON         `json:"cuts,omitempty"`
		Tags       map[string]string `json:"tags,omitempty"`
		Runs       []runJSON         `json:"runs"`
		Deliveries []deliveryJSON    `json:"deliveries"`
		Again      []message.ID      `json:"resubmitted_as,omitempty"`
		Body       []byte            `json:"body"`
	}{listed: forMachines(t.Message, h.of(t)), Tags: t.Tags, Again: t.Resubmits, Runs: []runJSON{}, Deliveries: []deliveryJSON{}, Body: t.Message.Body}
	if was != nil && !bytes.Equal(was, t.Message.Body) {
		out.Edited = diffJSON(was, t.Message.Body)
	}
	out.SeenTo = seenTo(t)
	for _, c := range h.cutsOf(t.Message.ID) {
		out.Cuts = append(out.Cuts, cutJSON{c.ID, c.Worker, c.Kind, c.Why})
	}
	for _, r := range t.Runs {
		j := runJSON{Handler: r.Handler, State: r.State, Reason: r.Outcome.Reason, Attempts: r.Outcome.Attempts,
			TookNS: int64(r.Outcome.Took), Code: r.Outcome.Code, Ended: someTime(r.Ended), Replayed: someTime(r.Replayed)}
		if f := r.Outcome.Fault; f != nil {
			j.Kind, j.Type, j.Text, j.Traceback = f.Kind, f.Type, f.Text, f.Traceback
		}
		j.Dismissed = dismissal(r.Dismissed)
		for _, printed := range r.Outcome.Printed {
			j.Printed = append(j.Printed, printedJSON(printed))
		}
		out.Runs = append(out.Runs, j)
	}
	c := &comparing{came: t.Message.Body, diff: diff}
	for _, d := range sent(t) {
		j := deliveryJSON{Number: d.Number, Name: d.Name(), Outbound: d.Outbound, Handler: d.Handler, State: d.State,
			Attempts: d.Attempts, Receipt: d.Receipt, Reason: d.Reason, Body: d.Body, Ended: someTime(d.Ended), Replayed: someTime(d.Replayed)}
		if d.State == message.Ready {
			j.NextTry = someTime(d.NextTry)
		}
		j.AsItCame, j.Diff = c.json(d)
		j.Dismissed = dismissal(d.Dismissed)
		out.Deliveries = append(out.Deliveries, j)
	}
	return out
}
