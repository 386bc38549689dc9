package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"coppice.dev/coppice/internal/cases"
	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// stored lists the last messages of the store, before anything is started.
func (t *tester) stored(ctx context.Context, _ []string) (func(context.Context) error, error) {
	r, cfg, err := openReader(ctx, t.io, cmp.Or(t.against, t.dir))
	if errors.Is(err, fs.ErrNotExist) && t.against == "" {
		return nil, fmt.Errorf("%w\n  hint: if another folder's store has the messages, name it with --against", err)
	}
	if err != nil {
		return nil, err
	}
	t.store = r
	list, err := t.lastOf(ctx, r, cfg)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		for _, m := range list {
			if err := t.again(ctx, r, m.ID); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// lastOf lists the messages oldest first, as they came.
func (t *tester) lastOf(ctx context.Context, r store.Reader, cfg *config.Config) ([]message.Message, error) {
	inbound, err := t.theInbound(cfg)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(t.cfg.Inbounds, func(in config.Inbound) bool { return in.Name == inbound }) {
		return nil, fmt.Errorf("%s has no inbound %q, whose messages are to be tried", t.cfg.File, inbound)
	}
	list, err := r.Messages(ctx, store.Query{Inbound: inbound, Limit: t.last})
	switch {
	case err != nil:
		return nil, err
	case len(list) == 0:
		return nil, fmt.Errorf("the store of %s has no message of inbound %s", cfg.File, inbound)
	}
	for _, m := range list {
		t.report.total += m.Size
	}
	slices.Reverse(list)
	return list, nil
}

// again tries a message that came before, and compares what became of it then.
func (t *tester) again(ctx context.Context, r store.Reader, id message.ID) error {
	tl, err := r.Timeline(ctx, id)
	if err != nil {
		return err
	}
	m := tl.Message
	v := verdict{name: fmt.Sprintf("message %d", id), body: m.Body}
	want, ended := cases.FromStore(tl)
	if !ended {
		v.word = unfinished
		return t.report.add(v)
	}
	if err := t.try(ctx, m, &v); err != nil {
		return err
	}
	if v.word != failed {
		v.judge(cases.Compare(want, v.result))
		if v.word == failed && want.Disposition == message.Error && v.result.Disposition != message.Error {
			v.word = mended // which is what new code is for: it is shown, and fails nothing
		}
	}
	return t.report.add(v)
}
