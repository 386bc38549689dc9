package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"math"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"coppice.dev/coppice/internal/cases"
	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/engine"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
	"coppice.dev/coppice/sandbox"
)

// tester is one run of the verb.
type tester struct {
	io      stdio
	dir     string // of the code
	inbound string
	against string // of the store, with last
	last    int
	update  bool
	color   string
	asJSON  bool
	verbose bool

	cfg    *config.Config
	store  store.Reader // with last
	run    *engine.DryRun
	report *testReport
}

func testCommand(io stdio) *cobra.Command {
	t := &tester{io: io}
	cmd := &cobra.Command{
		Use:   "test CASES... | --last N",
		Short: "Try messages with a folder's code, and compare what comes of them with what is expected",
		Long: `Test has messages routed and handled by a folder's code as an engine would, in workers with the same limits and deadlines,
and sends nothing. It needs neither the store nor the addresses of the connections, so it may run beside an engine.

CASES are files with a message, and folders, in which the files that end in .hl7 are cases. What is expected of case.hl7 lies beside
it, in case.hl7.want: --update writes it. A case without is new: what became of it is shown, and how what it sends differs from what
came. docs/TEST.md has the format.

--last N tries the last N messages that came by an inbound in earnest, and compares what was sent then. The code may lie in another
folder than the store: coppice test --last 100 --against feed --config feed-new.

The exit status is 1 if a case is not as expected, if a new one would end as ERROR, or if there is no case.`,
		Args: takes(0, math.MaxInt, ""),
	}
	configFlag(cmd, &t.dir)
	f := cmd.Flags()
	f.StringVar(&t.inbound, "inbound", "", "the inbound `NAME` by which cases come that do not say theirs, or whose messages --last takes")
	f.BoolVar(&t.update, "update", false, "write what comes of the cases as what is expected")
	f.IntVar(&t.last, "last", 0, "try the last `N` messages of the store instead")
	f.StringVar(&t.against, "against", "", "with --last: the folder `DIR` whose store has them, if it is not the code's")
	f.StringVar(&t.color, "color", "auto", "`WHEN` to use colour: auto (at a terminal, without NO_COLOR), always or never")
	f.BoolVar(&t.asJSON, "json", false, "print one JSON object a line: a case, and in the end the sums")
	f.BoolVarP(&t.verbose, "verbose", "v", false, "name the cases that pass too, show all that differ, and what handlers print")
	words(cmd, "color", "auto", "always", "never")
	_ = cmd.MarkFlagDirname("against") // an error only for a flag that is not there
	return verb(cmd, func(cmd *cobra.Command, args []string) error {
		if err := t.sound(cmd, args); err != nil {
			return err
		}
		return t.all(cmd.Context(), args)
	})
}

// sound finds what is wrong with the flags.
func (t *tester) sound(cmd *cobra.Command, args []string) error {
	last := cmd.Flags().Changed("last")
	switch {
	case !last && len(args) == 0:
		return usage("test needs CASES: files or folders of messages, or --last N")
	case last && t.last < 1:
		return usage("--last is at least 1")
	case last && len(args) > 0:
		return usage("--last takes its messages from the store: leave out %q", args[0])
	case last && t.update:
		return usage("--update is for cases: `coppice messages --save DIR` makes some of what came")
	case !last && t.against != "":
		return usage("--against goes with --last")
	case t.color != "auto" && t.color != "always" && t.color != "never":
		return usage("--color %q is none of auto, always, never", t.color)
	}
	return nil
}

func (t *tester) all(ctx context.Context, args []string) (err error) {
	outliveReaders() // there is a folder to remove
	if t.cfg, err = loadConfig(t.io, t.dir); err != nil {
		return err
	}
	t.report = newTestReport(t)
	try := t.cases
	if t.last > 0 {
		try = t.stored
	}
	defer func() {
		if t.store != nil {
			t.store.Close()
		}
	}()
	next, err := try(ctx, args)
	if err != nil {
		return err
	}
	if t.run, err = engine.OpenDryRun(ctx, t.cfg, sandbox.Observer{Output: t.report.printed}); err != nil {
		return tellConfig(t.io, err)
	}
	err = next(ctx)
	err = errors.Join(err, t.run.Close())
	return t.report.sum(err)
}

// cases finds the files, before anything is started.
func (t *tester) cases(_ context.Context, paths []string) (func(context.Context) error, error) {
	files, total, err := cases.Find(paths)
	if err != nil {
		return nil, err
	}
	t.report.total = total
	return func(ctx context.Context) error {
		for _, file := range files {
			for c, err := range cases.In(file) {
				if err == nil {
					err = t.one(ctx, c)
				}
				if err != nil {
					return err
				}
			}
		}
		return nil
	}, nil
}

// one tries a case. An error ends the verb.
func (t *tester) one(ctx context.Context, c cases.Case) error {
	want, err := cases.Read(c.Want)
	expected := err == nil
	v := verdict{name: c.Name, body: c.Body}
	if !expected && !errors.Is(err, fs.ErrNotExist) && !t.update {
		v.word, v.problem = failed, err.Error()
		return t.report.add(v)
	}
	m := message.Message{ID: idOf(c.Name), Inbound: want.Inbound, Received: time.Now().UTC().Truncate(time.Second), Body: c.Body}
	if want.Message > 0 {
		m.ID, m.Received = want.Message, want.Received
	} else if m.Inbound, err = t.theInbound(t.cfg); err != nil {
		return err
	}
	if parts := t.run.Parts(m.Inbound, c.Body); parts != nil && !expected {
		for i, body := range parts {
			if err := t.one(ctx, c.Part(i+1, body)); err != nil {
				return err
			}
		}
		return nil
	}
	if err := t.try(ctx, m, &v); err != nil {
		return err
	}
	switch {
	case v.word == failed:
	case t.update:
		changed, err := cases.Write(c.Want, v.result)
		if err != nil {
			return err
		}
		if v.word = unchanged; changed {
			v.word = written
		}
	case expected:
		v.judge(cases.Compare(want, v.result))
	default:
		if v.word = fresh; v.result.Disposition == message.Error {
			v.word = failed
		}
	}
	return t.report.add(v)
}

// try runs one message. What keeps it from being run makes it a failed one; an error is of what ends the verb.
func (t *tester) try(ctx context.Context, m message.Message, v *verdict) error {
	t.report.begins(int64(m.ID), v.name)
	trial, err := t.run.Run(ctx, m)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		v.word, v.problem = failed, err.Error()
		v.held, _ = errors.AsType[*engine.HeldError](err)
		return nil
	}
	v.result = cases.Of(m, trial.Runs, trial.Tags)
	return nil
}

// theInbound is the one that was asked for, or the only one.
func (t *tester) theInbound(cfg *config.Config) (string, error) {
	var names []string
	for _, in := range cfg.Inbounds {
		if t.inbound == "" || in.Name == t.inbound {
			names = append(names, in.Name)
		}
	}
	switch {
	case len(names) == 1:
		return names[0], nil
	case t.inbound != "":
		return "", fmt.Errorf("%s has no inbound %q", cfg.File, t.inbound)
	}
	return "", usage("%s has several inbounds: choose one with --inbound (%s)", cfg.File, strings.Join(names, ", "))
}

// idOf is what the handlers of a new case are told as the message's id. It stays the same wherever the case lies, and tells cases
// apart in what their handlers print.
func idOf(name string) message.ID {
	h := fnv.New32a()
	h.Write([]byte(filepath.Base(name)))
	return message.ID(h.Sum32()>>1) + 1
}
