package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/engine"
	"coppice.dev/coppice/internal/store"
	"coppice.dev/coppice/internal/store/sqlite"
)

func purgeCommand(io stdio) *cobra.Command {
	var dir, done, dead string
	p := &purger{io: io}
	cmd := &cobra.Command{
		Use:   "purge",
		Short: "Remove messages that have ended from a stopped engine's store",
		Long: `Purge removes messages that have ended, each with its bodies, runs, deliveries and tags, and gives most of the room back to
the disk. What is still to do is never removed. It needs the store for itself: a running engine purges by itself, as
store.retention in coppice.toml says.

A time is a DATE, 2026-01-31 or 2026-01-31T15:04:05Z, or an AGE, 30d or 12h. With neither flag, what store.retention lets go
is removed; with one of them, that kind alone. It may be interrupted at any moment.`,
		Args: takes(0, 0, ""), ValidArgsFunction: cobra.NoFileCompletions,
	}
	configFlag(cmd, &dir)
	f := cmd.Flags()
	f.StringVar(&done, "done-before", "", "those that were PROCESSED, FILTERED or UNROUTED before `TIME`")
	f.StringVar(&dead, "dead-before", "", "those that ended in ERROR before `TIME`")
	f.BoolVar(&p.dry, "dry-run", false, "only count what would be removed; also beside a running engine")
	f.BoolVar(&p.asJSON, "json", false, "print a JSON object")
	return verb(cmd, func(cmd *cobra.Command, _ []string) error {
		now := time.Now()
		asked, err := purgeTimes(done, dead, now)
		if err != nil {
			return err
		}
		cfg, err := loadConfig(io, dir)
		if err != nil {
			return err
		}
		p.request = purgeRequest(cfg, asked, now)
		return p.run(cmd.Context(), cfg)
	})
}

// purgeTimes reads the two flags.
func purgeTimes(done, dead string, now time.Time) (r store.PurgeRequest, err error) {
	if r.DoneBefore, err = timeOrAge("done-before", done, now); err != nil {
		return r, err
	}
	r.DeadBefore, err = timeOrAge("dead-before", dead, now)
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

// timeOrAge reads a flag that holds a time, or how long ago it is; zero for an empty one.
func timeOrAge(flag, s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			return t, nil
		}
	}
	age, err := config.ParseDuration(s)
	if err != nil {
		return time.Time{}, usage("--%s %q is no date such as 2026-01-31, and no age such as 30d", flag, s)
	}
	return now.Add(-age), nil
}

// purger is one run of the verb.
type purger struct {
	io      stdio
	request store.PurgeRequest
	dry     bool
	asJSON  bool
}

func (p *purger) run(ctx context.Context, cfg *config.Config) error {
	if p.dry {
		r, err := sqlite.OpenReader(ctx, cfg.Store.Path)
		if err != nil {
			return tellStore(err)
		}
		defer r.Close()
		could, err := r.Purgeable(ctx, p.request)
		if err != nil {
			return err
		}
		return p.report(could)
	}
	s, err := openToPurge(ctx, cfg.Store.Path)
	if err != nil {
		return err
	}
	gone, err := p.purge(ctx, s)
	err = causeOf(ctx, errors.Join(err, s.Close()))
	if err == nil || gone.Messages > 0 {
		err = errors.Join(err, p.report(gone))
	}
	return err
}

// openToPurge opens a store that is there, and that nobody uses.
func openToPurge(ctx context.Context, path string) (*sqlite.Store, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) { // Open would make one
		return nil, fmt.Errorf("open store %s: %w\n  hint: check the path; a store is there only once an engine has run", path, fs.ErrNotExist)
	}
	s, err := sqlite.Open(ctx, path, sqlite.Options{})
	if bad, ok := errors.AsType[*sqlite.OpenError](err); ok && errors.Is(err, store.ErrLocked) {
		return nil, fmt.Errorf("open store %s: %w\n  hint: it purges by itself, as store.retention says; to purge by hand, stop it first", path, bad.Err)
	}
	if err != nil {
		return nil, tellStore(err)
	}
	return s, nil
}

// purge takes step after step, with a bar where a person sees it.
func (p *purger) purge(ctx context.Context, s *sqlite.Store) (gone store.Purged, err error) {
	all, err := s.Purgeable(ctx, p.request)
	if err != nil {
		return gone, err
	}
	var bar *progressbar.ProgressBar
	if terminal(p.io.err) {
		bar = progressbar.NewOptions64(all.Messages, progressbar.OptionSetWriter(p.io.err), progressbar.OptionShowCount(),
			progressbar.OptionSetDescription("purging"), progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(100*time.Millisecond))
		defer bar.Finish()
	}
	for {
		step, err := s.Purge(ctx, p.request)
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
			DryRun   bool  `json:"dry_run"`
		}{r.Messages, r.Bytes, p.dry})
	}
	did := "removed"
	if p.dry {
		did = "would remove"
	}
	_, err := fmt.Fprintf(p.io.out, "%s %d messages with %d bytes\n", did, r.Messages, r.Bytes)
	return err
}
