package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
	"coppice.dev/coppice/internal/store/sqlite"
)

func messagesCommand(io stdio) *cobra.Command {
	var dir, disposition, tag, since, until string
	var to saving
	var q store.Query
	var s search
	var before int64
	var asJSON, count, refused bool
	cmd := &cobra.Command{
		Use:   "messages",
		Short: "List what became of the messages, newest first",
		Long: `Messages lists the messages in a folder's store, newest first. It reads beside a running engine, or from the file of a
stopped one.

Dispositions: RECEIVED and ROUTED are under way; PROCESSED, FILTERED, UNROUTED and ERROR are final. HELD says of one that is under
way that it waits: for a worker that could not start when it was last tried, for a delivery that is to be tried again, its own
or one before it in its lane, or until coppice release. --disposition HELD lists those alone. ERROR, resubmitted and ERROR, dismissed are
those that somebody has seen to.

--contains TEXT looks for bytes in what came and in what was sent, upper and lower case apart. No index has them: it reads one message
after the other, newest first, of those that the other filters leave, until --limit are found or --look have been read, or 1 GiB of
bodies. It says how far it came, and how to go on.

--save DIR writes the messages as cases for coppice test instead, with what was sent as what is expected of those whose handlers
have ended.`,
		Args: takes(0, 0, ""), ValidArgsFunction: cobra.NoFileCompletions,
	}
	configFlag(cmd, &dir)
	f := cmd.Flags()
	f.StringVar(&q.Inbound, "inbound", "", "only from the inbound `NAME`")
	f.StringVar(&disposition, "disposition", "", "only with the disposition `WORD`, or HELD for those that wait")
	words(cmd, "disposition", append(dispositionWords(), string(dispositionHeld))...)
	names(cmd, "inbound", &dir, message.KindInbound)
	f.StringVar(&q.Type, "type", "", "only of this `TYPE`, a prefix: ADT, or ADT^A01")
	f.StringVar(&q.ControlID, "control-id", "", "only with this control `ID`, a prefix")
	f.StringVar(&tag, "tag", "", "only with a tag, `NAME=VALUE`, as handlers set them; NAME=VALUE* for values that begin so")
	f.StringVar(&since, "since", "", "only received since `TIME`: "+timeForms)
	f.StringVar(&until, "until", "", "only received before `TIME`")
	f.Int64Var(&before, "before", 0, "only below this `ID`, for the next page")
	f.StringVar(&s.text, "contains", "", "only with this `TEXT` in a body")
	f.IntVar(&s.most, "look", searchMost, "with --contains or HELD: look at no more than `N` messages")
	f.IntVarP(&q.Limit, "limit", "n", 50, "at most `N`")
	f.BoolVar(&count, "count", false, "only count, by disposition")
	f.BoolVar(&refused, "refused", false, "list what inbounds turned away instead")
	f.BoolVar(&asJSON, "json", false, "print one JSON object a line")
	f.StringVar(&to.dir, "save", "", "write them into the folder `DIR` as cases for coppice test")
	f.BoolVar(&to.force, "force", false, "with --save: write over cases that are there")
	_ = cmd.MarkFlagDirname("save") // an error only for a flag that is not there
	return verb(cmd, func(cmd *cobra.Command, _ []string) error {
		if q.Limit < 1 || before < 0 {
			return usage("--limit is at least 1, and --before an id")
		}
		if to.force && to.dir == "" {
			return usage("--force goes with --save")
		}
		if err := alone(cmd, count, refused); err != nil {
			return err
		}
		q.Before = message.ID(before)
		q.Disposition = message.Disposition(strings.ToUpper(disposition))
		s.held = q.Disposition == dispositionHeld
		if !known(q.Disposition) && !s.held {
			return usage("--disposition %q is none of %s, %s", disposition, strings.Join(dispositionWords(), ", "), dispositionHeld)
		}
		if err := s.sound(cmd); err != nil {
			return err
		}
		if err := narrow(&q, tag, since, until); err != nil {
			return err
		}
		r, cfg, err := openReader(cmd.Context(), io, dir)
		if err != nil {
			return err
		}
		defer r.Close()
		s.io, s.r, s.q, s.asJSON, s.stands = io, r, q, asJSON, &standings{cfg: cfg, r: r}
		switch {
		case count:
			return printCounts(cmd.Context(), io, r, asJSON)
		case refused:
			return printRefusals(cmd.Context(), io, r, q.Limit, asJSON)
		case to.dir != "":
			list, err := s.all(cmd.Context())
			if err != nil {
				return err
			}
			return to.save(cmd.Context(), io, r, list, asJSON)
		case s.needed():
			return s.list(cmd.Context())
		}
		return printMessages(cmd.Context(), io, cfg, r, q, asJSON)
	})
}

// narrow restricts a query to a tag and to times.
func narrow(q *store.Query, tag, since, until string) (err error) {
	if tag != "" {
		var ok bool
		if q.Tag, q.TagValue, ok = strings.Cut(tag, "="); !ok || q.Tag == "" {
			return usage("--tag %q is not NAME=VALUE", tag)
		}
		q.TagValue, q.TagPrefix = strings.CutSuffix(q.TagValue, "*")
	}
	now := time.Now()
	if q.Since, err = parseTime("since", since, now); err != nil {
		return err
	}
	q.Until, err = parseTime("until", until, now)
	return err
}

func known(d message.Disposition) bool {
	return d == "" || slices.Contains(message.Dispositions(), d)
}

func dispositionWords() (out []string) {
	for _, d := range message.Dispositions() {
		out = append(out, string(d))
	}
	return out
}

// alone refuses filters where they would do nothing.
func alone(cmd *cobra.Command, count, refused bool) error {
	if count && refused {
		return usage("--count and --refused exclude one another")
	}
	mode, filters := "--count", []string{"inbound", "disposition", "type", "control-id", "tag", "since", "until", "before", "contains", "look", "limit"}
	if refused {
		mode, filters = "--refused", filters[:len(filters)-1]
	}
	filters = append(filters, "save")
	for _, f := range filters {
		if (count || refused) && cmd.Flags().Changed(f) {
			return usage("%s is about all of the store: leave out --%s", mode, f)
		}
	}
	return nil
}

// openReader opens the store that a folder's configuration names, for looking.
func openReader(ctx context.Context, io stdio, dir string) (store.Reader, *config.Config, error) {
	cfg, err := locate(io, dir)
	if err != nil {
		return nil, nil, err
	}
	r, err := sqlite.OpenReader(ctx, cfg.Store.Path)
	if err != nil {
		return nil, nil, tellStore(err)
	}
	return r, cfg, nil
}

// tellStore puts the hint of a store that could not be opened on a line of its own.
func tellStore(err error) error {
	var bad *sqlite.OpenError
	if !errors.As(err, &bad) || bad.Hint == "" {
		return err
	}
	return fmt.Errorf("open store %s: %w\n  hint: %s", bad.Path, bad.Err, bad.Hint)
}

// listed is a message for machines.
type listed struct {
	ID          message.ID          `json:"id"`
	Inbound     string              `json:"inbound"`
	Peer        string              `json:"peer"`
	Type        string              `json:"type"`
	ControlID   string              `json:"control_id"`
	Received    time.Time           `json:"received"`
	Ended       *time.Time          `json:"ended,omitempty"`
	Size        int64               `json:"size"`
	SHA256      string              `json:"sha256"`
	Disposition message.Disposition `json:"disposition"`
	Reason      string              `json:"reason,omitempty"`
	Resubmits   message.ID          `json:"resubmits,omitempty"`
	Duplicates  int64               `json:"duplicates,omitempty"`
	Held        []held              `json:"held,omitempty"`
	SeenTo      string              `json:"seen_to,omitempty"`  // of one that failed: "resubmitted" or "dismissed"
	FoundIn     string              `json:"found_in,omitempty"` // "body" or "delivery 2", of a search
}

func forMachines(m message.Message, waits []held) listed {
	return listed{ID: m.ID, Inbound: m.Inbound, Peer: m.Peer, Type: m.Type, ControlID: m.ControlID, Received: m.Received,
		Size: m.Size, SHA256: m.SHA256, Disposition: m.Disposition, Reason: m.Reason, Held: waits, Resubmits: m.Resubmits, Duplicates: m.Duplicates,
		Ended: someTime(m.Ended)}
}

func printMessages(ctx context.Context, io stdio, cfg *config.Config, r store.Reader, q store.Query, asJSON bool) error {
	list, err := r.Messages(ctx, q)
	if err != nil {
		return err
	}
	var all []found
	e, stands := lines(io.out), &standings{cfg: cfg, r: r}
	for _, m := range list {
		f, err := stands.of(ctx, m)
		if errors.Is(err, store.ErrNotFound) { // it was purged since the list was read
			continue
		}
		if err != nil {
			return err
		}
		all = append(all, f)
		if asJSON {
			if err := e.Encode(f.forMachines()); err != nil {
				return err
			}
		}
	}
	if asJSON {
		return nil
	}
	return printFound(io, all, false)
}

// printFound prints messages as a table; in says where the text is that was looked for.
func printFound(io stdio, list []found, in bool) error {
	if len(list) == 0 {
		fmt.Fprintln(io.err, "no messages")
		return nil
	}
	rows := [][]string{{"ID", "RECEIVED", "INBOUND", "TYPE", "CONTROL ID", "BYTES", "FOUND IN", "DISPOSITION", "REASON"}}
	for _, m := range list {
		standing, why := string(m.Disposition), m.Reason
		if len(m.held) > 0 {
			standing, why = standing+", HELD", m.held[0].String()
		}
		if m.seen != "" {
			standing += ", " + m.seen
		}
		rows = append(rows, []string{strconv.FormatInt(int64(m.ID), 10), clock(m.Received), m.Inbound, clip(m.Type, 20), clip(m.ControlID, 24),
			strconv.FormatInt(m.Size, 10), m.in, standing, clip(why, 160)})
	}
	if column := slices.Index(rows[0], "FOUND IN"); !in {
		for i := range rows {
			rows[i] = slices.Delete(rows[i], column, column+1)
		}
	}
	return table(io.out, rows)
}

func printCounts(ctx context.Context, io stdio, r store.Reader, asJSON bool) error {
	counts, err := r.Counts(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(io.out, counts)
	}
	var rows [][]string
	for _, d := range message.Dispositions() {
		rows = append(rows, []string{string(d), strconv.FormatInt(counts[d], 10)})
	}
	return table(io.out, rows)
}

func printRefusals(ctx context.Context, io stdio, r store.Reader, limit int, asJSON bool) error {
	list, err := r.Refusals(ctx, limit)
	if err != nil {
		return err
	}
	if asJSON {
		e := lines(io.out)
		for _, r := range list {
			err := e.Encode(struct {
				At      time.Time `json:"at"`
				Inbound string    `json:"inbound"`
				Peer    string    `json:"peer"`
				Size    int64     `json:"size"`
				Reason  string    `json:"reason"`
			}{r.At, r.Inbound, r.Peer, r.Size, r.Reason})
			if err != nil {
				return err
			}
		}
		return nil
	}
	if len(list) == 0 {
		fmt.Fprintln(io.err, "nothing was turned away")
		return nil
	}
	rows := [][]string{{"AT", "INBOUND", "PEER", "BYTES", "REASON"}}
	for _, r := range list {
		rows = append(rows, []string{clock(r.At), r.Inbound, r.Peer, strconv.FormatInt(r.Size, 10), r.Reason})
	}
	return table(io.out, rows)
}
