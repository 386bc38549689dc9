package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/control"
	"coppice.dev/coppice/internal/engine"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
	"coppice.dev/coppice/internal/store/sqlite"
)

func purgeCommand(io stdio) *cobra.Command {
	var dir, done, dead string
	p := &purger{io: io}
	cmd := &cobra.Command{
		Use:   "purge",
		Short: "Remove messages that have ended",
		Long: `Purge removes messages that have ended, each with its bodies, runs, deliveries and tags, and gives most of the room back to
the disk. What is still to do is never removed. An engine that runs purges by itself, as store.retention in coppice.toml says; this
has it remove more, or does so in the store's file where none runs. It goes in small steps and may be interrupted at any moment.

A TIME is ` + timeForms + `. With neither flag, what store.retention lets go
is removed; with one of them, that kind alone.`,
		Args: takes(0, 0, ""), ValidArgsFunction: cobra.NoFileCompletions,
	}
	configFlag(cmd, &dir)
	f := cmd.Flags()
	f.StringVar(&done, "done-before", "", "those that were PROCESSED, FILTERED or UNROUTED before `TIME`")
	f.StringVar(&dead, "dead-before", "", "those that ended in ERROR before `TIME`")
	f.BoolVar(&p.dry, "dry-run", false, "only count what would be removed")
	f.BoolVar(&p.asJSON, "json", false, "print a JSON object")
	return verb(cmd, func(cmd *cobra.Command, _ []string) error {
		now := time.Now()
		asked, err := purgeTimes(done, dead, now)
		if err != nil {
			return err
		}
		cfg, err := locate(io, dir)
		if err != nil {
			return err
		}
		p.request = purgeRequest(cfg, asked, now)
		return p.run(cmd.Context(), cfg, dir)
	})
}

// purgeTimes reads the two flags.
func purgeTimes(done, dead string, now time.Time) (r store.PurgeRequest, err error) {
	if r.DoneBefore, err = parseTime("done-before", done, now); err != nil {
		return r, err
	}
	r.DeadBefore, err = parseTime("dead-before", dead, now)
	return r, err
}

// purgeRequest is what was asked for, or else what the configuration lets go.
func purgeRequest(cfg *config.Config, asked store.PurgeRequest, now time.Time) store.PurgeRequest {
	r := engine.Retention(cfg, now)
	if !asked.Earlier().IsZero() {
		r.DoneBefore, r.DeadBefore = asked.DoneBefore, asked.DeadBefore
	}
	return r
}

// purger is one run of the verb.
type purger struct {
	io      stdio
	request store.PurgeRequest
	dry     bool
	asJSON  bool
	letters int // of what is removed, how many nobody has seen to; up to mostLetters
}

// mostLetters is how many dead letters are looked at before a purge.
const mostLetters = 1000

// unseen counts the messages that a purge removes with dead letters that nobody has seen to.
func (p *purger) unseen(ctx context.Context, r store.Reader) (n int, err error) {
	if p.request.DeadBefore.IsZero() {
		return 0, nil
	}
	list, err := r.DeadLetters(ctx, store.DeadLetters{Limit: mostLetters})
	last := message.ID(0)
	for _, d := range list {
		if d.Message == last || err != nil {
			continue
		}
		last = d.Message
		t, failed := r.Outline(ctx, d.Message)
		switch m := t.Message; {
		case errors.Is(failed, store.ErrNotFound):
		case failed != nil:
			err = failed
		case m.Disposition == message.Error && m.Ended.Before(p.request.DeadBefore):
			n++
		}
	}
	return n, err
}

func (p *purger) run(ctx context.Context, cfg *config.Config, dir string) error {
	r, err := sqlite.OpenReader(ctx, cfg.Store.Path)
	if err != nil {
		return tellStore(err)
	}
	could, err := r.Purgeable(ctx, p.request)
	if err == nil {
		p.letters, err = p.unseen(ctx, r)
	}
	if err = errors.Join(err, r.Close()); err != nil {
		return err
	}
	if p.dry {
		return p.report(could)
	}
	c, _, done, err := reach(ctx, p.io, dir)
	if err != nil {
		return err
	}
	defer done()
	gone, err := p.purge(ctx, c, could.Messages)
	err = causeOf(ctx, err)
	if err == nil || gone.Messages > 0 {
		err = errors.Join(err, p.report(gone))
	}
	return err
}

// purge takes step after step, with a bar where a person sees it.
func (p *purger) purge(ctx context.Context, c control.Commands, all int64) (gone store.Purged, err error) {
	var bar *progressbar.ProgressBar
	if terminal(p.io.err) {
		bar = progressbar.NewOptions64(all, progressbar.OptionSetWriter(p.io.err), progressbar.OptionShowCount(),
			progressbar.OptionSetDescription("purging"), progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(100*time.Millisecond))
		defer bar.Finish()
	}
	for {
		step, err := c.Purge(ctx, p.request.DoneBefore, p.request.DeadBefore)
		gone.Messages += step.Messages
		gone.Bytes += step.Bytes
		if bar != nil {
			bar.Add64(step.Messages)
		}
		if err != nil || !step.More {
			return gone, err
		}
	}
}

func (p *purger) report(r store.Purged) error {
	if p.asJSON {
		return printJSON(p.io.out, struct {
			Messages int64 `json:"messages"`
			Bytes    int64 `json:"bytes"`
			Letters  int   `json:"dead_letters"` // of them, those that nobody had seen to; 1000 may be more
			DryRun   bool  `json:"dry_run"`
		}{r.Messages, r.Bytes, p.letters, p.dry})
	}
	did := "removed"
	if p.dry {
		did = "would remove"
	}
	_, err := fmt.Fprintf(p.io.out, "%s %d messages with %d bytes\n", did, r.Messages, r.Bytes)
	if p.letters > 0 && r.Messages > 0 {
		many := strconv.Itoa(p.letters)
		if p.letters >= mostLetters {
			many += " or more"
		}
		fmt.Fprintf(p.io.err, "among them dead letters that nobody had seen to: %s\n", many)
	}
	return err
}
