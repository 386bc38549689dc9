package pipeline

import (
	"context"
	"errors"
	"fmt"
	"time"

	"coppice.dev/coppice/internal/message"
)

// sending is one outbound's loop.
type sending struct {
	*Pipeline
	out *Outbound
	// due holds, for heads that wait to be tried again, when: on the monotonic clock, unlike what the store has.
	due map[int64]time.Time
}

// sendAll sends what heads the lanes of one outbound, one after the other, until ctx ends.
func (p *Pipeline) sendAll(ctx, hard context.Context, out *Outbound) {
	s := &sending{Pipeline: p, out: out, due: map[int64]time.Time{}}
	lane := outboundLane + out.Name
	held := &hold{p: p, what: lane}
	for ctx.Err() == nil {
		heads, err := p.cfg.Store.Heads(ctx, out.Name)
		if err == nil {
			d, wait := s.pick(heads, time.Now())
			if d == nil {
				held.over()
				if !p.idle(ctx, lane, wait) {
					return
				}
				continue
			}
			err = s.send(hard, *d)
		}
		if err == nil {
			held.over()
		} else if ctx.Err() != nil || !held.wait(ctx, err) {
			return
		}
	}
}

// pick returns the oldest head that can be sent now; none, and how long until one can (negative: not until a kick).
func (s *sending) pick(heads []message.Delivery, now time.Time) (*message.Delivery, time.Duration) {
	due := make(map[int64]time.Time, len(heads))
	wait := time.Duration(-1)
	var ready *message.Delivery
	for i := range heads {
		d := &heads[i]
		if d.State != message.Ready {
			continue
		}
		at, known := s.due[d.ID]
		if !known && !d.NextTry.IsZero() {
			// From before a restart, by the wall clock, which may have jumped: never more than the longest wait.
			at = now.Add(min(d.NextTry.Sub(now), s.out.Retry.Max))
		}
		due[d.ID] = at
		if left := at.Sub(now); left > 0 {
			if wait < 0 || left < wait {
				wait = left
			}
			continue
		}
		if ready == nil {
			ready = d
		}
	}
	s.due = due // heads that have ended are forgotten
	return ready, wait
}

// send makes one delivery and commits how it ended. An error is the store's and holds the outbound.
func (s *sending) send(ctx context.Context, d message.Delivery) error {
	receipt, err := s.out.Sender.Send(ctx, d)
	// Whether the receiver has it is known now, and must be recorded even if the time to stop has come.
	record := context.WithoutCancel(ctx)
	var rejection *message.Rejection
	switch {
	case err == nil:
		if err := s.cfg.Store.Delivered(record, d.ID, receipt); err != nil {
			return fmt.Errorf("record delivery %s: %w", d.Name(), err)
		}
		if f := s.cfg.Observer.Sent; f != nil {
			f(d, receipt)
		}
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx) // cut short by the stop: it stays the head and is sent again
	case errors.As(err, &rejection) && (rejection.Final || d.Rejected+1 >= s.out.Retry.Rejected):
		return s.bury(record, d, rejection.Error())
	}
	wait := delay(s.out.Retry.First, s.out.Retry.Max, d.Attempts)
	next := time.Now().Add(wait)
	if err := s.cfg.Store.Retry(record, d.ID, err.Error(), rejection != nil, next); err != nil {
		return fmt.Errorf("record retry of %s: %w", d.Name(), err)
	}
	s.due[d.ID] = next
	s.cfg.Log.Warn("delivery waits", "delivery", d.Name(), "outbound", s.out.Name, "attempt", d.Attempts+1, "wait", wait.Round(time.Millisecond))
	if f := s.cfg.Observer.Retried; f != nil {
		f(d, err, wait)
	}
	return nil
}

func (s *sending) bury(ctx context.Context, d message.Delivery, reason string) error {
	if err := s.cfg.Store.Bury(ctx, d.ID, reason); err != nil {
		return fmt.Errorf("record dead letter %s: %w", d.Name(), err)
	}
	s.cfg.Log.Warn("dead letter", "delivery", d.Name(), "outbound", s.out.Name)
	if f := s.cfg.Observer.Buried; f != nil {
		f(d, reason)
	}
	return nil
}
