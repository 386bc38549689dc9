package main

import (
	"context"
	"slices"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// standings says of messages what their dispositions leave open.
type standings struct {
	cfg   *config.Config
	r     store.Reader
	holds *holds // nil until a message needs it
}

// of says what a message waits for that has not ended, and how one was seen to that failed.
func (s *standings) of(ctx context.Context, m message.Message) (found, error) {
	f := found{Message: m}
	if m.Disposition.Final() && m.Disposition != message.Error {
		return f, nil
	}
	t, err := s.r.Outline(ctx, m.ID)
	if err != nil {
		return f, err
	}
	if m.Disposition == message.Error {
		f.seen = seenTo(t)
		return f, nil
	}
	if s.holds == nil {
		h, err := readHolds(ctx, s.cfg, s.r)
		if err != nil {
			return f, err
		}
		s.holds = &h
	}
	f.held = s.holds.of(t)
	return f, nil
}

// seenTo says how somebody has seen to a message that failed: it was "resubmitted", or all of it that failed "dismissed". Empty:
// it is a dead letter, or did not fail.
func seenTo(t store.Timeline) string {
	if t.Message.Disposition != message.Error {
		return ""
	}
	awaits := func(failed, again bool, d message.Dismissal) bool { return failed && !again && d.At.IsZero() }
	switch {
	case len(t.Resubmits) > 0:
		return "resubmitted"
	case slices.ContainsFunc(t.Runs, func(r message.Run) bool {
		return awaits(r.State == message.RunError, !r.Replayed.IsZero(), r.Dismissed)
	}), slices.ContainsFunc(t.Deliveries, func(d message.Delivery) bool {
		return awaits(d.State == message.Dead, !d.Replayed.IsZero(), d.Dismissed)
	}):
		return ""
	}
	return "dismissed"
}
