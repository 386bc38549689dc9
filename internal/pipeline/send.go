package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"time"

	"coppice.dev/coppice/internal/message"
)

// sending is the loop of an outbound that keeps order, and what unordered has in common with it.
type sending struct {
	*Pipeline
	out    *Outbound
	shared *sends
	told   bool // the store knows whether it keeps order
	// ahead are the heads of the lanes at the last look, each with what was ready right behind it, all in the order of their places;
	// nil: to be read. Nothing gets in front of what is ready but what somebody does to a lane, which buried counts, or now tells.
	// Where no order is kept, what was ready at the last look and has not gone out since.
	ahead  []message.Delivery
	buried int64 // what it was before the look
	// blocked says that at the last look one head could be sent, and another could not. While that lasts each send looks again, so
	// one of each lane will do.
	blocked bool
	// due holds, for heads that wait to be tried again, when: on the monotonic clock, unlike what the store has.
	due map[int64]time.Time
	// last is how the last send ended, until the store has it: a store that fails for a while must not make the receiver
	// get the body again and again.
	last *ending
}

func newSending(p *Pipeline, out *Outbound) *sending {
	return &sending{Pipeline: p, out: out, shared: p.sends[out.Name], due: map[int64]time.Time{}}
}

// ending is how one send ended.
type ending struct {
	delivery message.Delivery                // as it was sent, without its body
	due      time.Time                       // when it is to be tried again; zero: never
	commit   func(ctx context.Context) error // records it
	tell     func()                          // after that
	sent     bool                            // the receiver has it, and what is behind it is next
}

// sendAll sends what heads the lanes of one outbound, one after the other, until ctx ends.
func (p *Pipeline) sendAll(ctx, hard context.Context, out *Outbound) {
	s := newSending(p, out)
	p.loop(ctx, delivering(out.Name), func() (time.Duration, error) { return s.step(ctx, hard) })
	if s.last != nil {
		s.settleAtStop(hard, s.last)
	}
}

// tellOrder has the store know whether the outbound keeps order: what waits may be from before a change of that.
func (s *sending) tellOrder(ctx context.Context) error {
	if s.told {
		return nil
	}
	err := s.cfg.Store.KeepOrder(ctx, s.out.Name, s.out.Parallel == 0)
	s.told = err == nil
	return err
}

// step makes one delivery and records how it ended. If there is none to make, it returns how long until there is one
// (negative: not until a kick). An error is the store's and holds the outbound.
func (s *sending) step(ctx, hard context.Context) (time.Duration, error) {
	if s.last != nil {
		err := s.settle(hard, s.last)
		if err == nil {
			s.last = nil
		}
		return 0, err
	}
	if err := s.tellOrder(ctx); err != nil {
		return 0, err
	}
	heads, err := s.heads(ctx)
	if err != nil {
		return 0, err
	}
	heads, err = s.released(ctx, heads)
	if err != nil {
		return 0, err
	}
	d, wait := s.pick(heads, time.Now())
	if d == nil {
		s.ahead = nil
		return wait, nil
	}
	select {
	case s.shared.busy <- struct{}{}:
		defer func() { <-s.shared.busy }()
	default:
		return leastWait, nil // a head is being buried, perhaps this one
	}
	if s.shared.buried.Load() != s.buried {
		return 0, nil // since the heads were read
	}
	ahead := s.ahead
	s.ahead = nil // unless it goes well
	if s.last, err = s.send(ctx, hard, *d); s.last == nil {
		return 0, err
	}
	if !s.last.due.IsZero() {
		s.due[d.ID] = s.last.due
	}
	if err := s.record(hard, s.last); err != nil {
		return 0, err
	}
	if s.last.sent {
		s.ahead = behind(ahead, *d)
	}
	s.last = nil
	return 0, nil
}

// heads returns the heads of the lanes, oldest place first: from memory if each of them can be sent. What is not there then is
// newer, since it has its place yet to get; while a head waits for its run or its next try, what may have changed of it is looked
// for each time.
func (s *sending) heads(ctx context.Context) ([]message.Delivery, error) {
	if !s.shared.now.Load() && s.shared.buried.Load() == s.buried && len(s.ahead) > 0 {
		if heads := headsOf(s.ahead); s.ready(heads) == len(heads) {
			return heads, nil
		}
	}
	s.ahead, s.buried = nil, s.shared.buried.Load()
	most := mostAhead
	if s.blocked {
		most = 1
	}
	list, err := s.cfg.Store.Heads(ctx, s.out.Name, most)
	if err != nil {
		return nil, err
	}
	s.ahead = upToReserved(list)
	heads := headsOf(s.ahead)
	if s.shared.now.Swap(false) {
		for _, d := range heads {
			s.due[d.ID] = time.Now()
		}
	}
	n := s.ready(heads)
	s.blocked = n > 0 && n < len(heads)
	return heads, nil
}

// ready counts the deliveries that can be sent now.
func (s *sending) ready(list []message.Delivery) (n int) {
	now := time.Now()
	for i := range list {
		if d := &list[i]; d.State == message.Ready && !s.dueAt(d, now).After(now) {
			n++
		}
	}
	return n
}

// headsOf returns the first delivery of each lane.
func headsOf(list []message.Delivery) (heads []message.Delivery) {
	seen := map[string]bool{}
	for _, d := range list {
		if !seen[d.Inbound] {
			heads = append(heads, d)
		}
		seen[d.Inbound] = true
	}
	return heads
}

// upToReserved returns, of the first deliveries of lanes, those that go out one after the other as they stand: of each lane its head, and
// what is ready behind it up to a place that is still reserved.
func upToReserved(list []message.Delivery) (known []message.Delivery) {
	reserved := map[string]bool{}
	for _, d := range list {
		ends, seen := reserved[d.Inbound]
		if !seen || !ends && d.State == message.Ready {
			known = append(known, d)
		}
		reserved[d.Inbound] = ends || d.State != message.Ready
	}
	return known
}

// behind returns what is known of the lanes once a head has gone; nil if nothing is known of what is behind it.
func behind(list []message.Delivery, head message.Delivery) []message.Delivery {
	list = slices.DeleteFunc(list, func(d message.Delivery) bool { return d.ID == head.ID })
	if !slices.ContainsFunc(list, func(d message.Delivery) bool { return d.Inbound == head.Inbound }) {
		return nil
	}
	return list
}

// send makes a delivery and says how that ended; nil if its body cannot be read, and if a stop cut it short: it is sent again.
func (s *sending) send(ctx, hard context.Context, d message.Delivery) (*ending, error) {
	h := hand{room: s.cfg.Room}
	defer h.has(0)
	err := h.reach(ctx, func() (int64, error) { return s.cfg.Store.DeliverySize(ctx, d.ID) })
	if err == nil {
		d.Body, err = s.cfg.Store.DeliveryBody(ctx, d.ID)
	}
	if err != nil {
		return nil, err
	}
	h.has(int64(len(d.Body)))
	receipt, err := s.out.Sender.Send(hard, d)
	d.Body = nil
	var rejection *message.Rejection
	if err != nil && hard.Err() != nil && !errors.As(err, &rejection) {
		return nil, context.Cause(hard)
	}
	return s.ended(d, receipt, err), nil
}

// released returns the heads of the lanes that are not held.
func (s *sending) released(ctx context.Context, heads []message.Delivery) ([]message.Delivery, error) {
	if all, err := s.held(ctx, delivering(s.out.Name)); all || err != nil {
		return nil, err
	}
	var free []message.Delivery
	for _, d := range heads {
		lane := delivering(s.out.Name)
		lane.Inbound = d.Inbound
		held, err := s.held(ctx, lane)
		if err != nil {
			return nil, err
		}
		if !held {
			free = append(free, d)
		}
	}
	return free, nil
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
		at := s.dueAt(d, now)
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

// dueAt is when a delivery is to be tried; zero: at once.
func (s *sending) dueAt(d *message.Delivery, now time.Time) time.Time {
	at, known := s.due[d.ID]
	if !known && !d.NextTry.IsZero() {
		// From before a restart, by the wall clock, which may have jumped: never more than the longest wait.
		at = now.Add(min(d.NextTry.Sub(now), s.out.Retry.Max))
	}
	return at
}

// ended says what is to be recorded of a send.
func (s *sending) ended(d message.Delivery, receipt message.Receipt, err error) *ending {
	var rejection *message.Rejection
	switch {
	case err == nil:
		return s.delivered(d, receipt)
	case errors.As(err, &rejection) && (rejection.Final || d.Rejected+1 >= s.out.Retry.Rejected):
		if s.out.Retry.Hold {
			return s.parked(d, rejection.Error())
		}
		return s.dead(d, rejection.Error())
	}
	return s.again(d, err, rejection != nil)
}

func (s *sending) delivered(d message.Delivery, receipt message.Receipt) *ending {
	return &ending{sent: true, delivery: d,
		commit: func(ctx context.Context) error { return s.cfg.Store.Delivered(ctx, d.ID, receipt) },
		tell: func() {
			if d.Attempts > 0 {
				s.cfg.Log.Info("delivered after all", "delivery", d.Name(), "outbound", s.out.Name, "attempt", d.Attempts+1)
			}
			if f := s.cfg.Observer.Sent; f != nil {
				f(d, receipt)
			}
		}}
}

func (s *sending) dead(d message.Delivery, reason string) *ending {
	return &ending{delivery: d,
		commit: func(ctx context.Context) error { return s.cfg.Store.Bury(ctx, d.ID, reason) },
		tell: func() {
			s.cfg.Log.Warn("dead letter", "delivery", d.Name(), "outbound", s.out.Name)
			if f := s.cfg.Observer.Buried; f != nil {
				f(d, reason)
			}
		}}
}

func (s *sending) parked(d message.Delivery, reason string) *ending {
	return &ending{delivery: d,
		commit: func(ctx context.Context) error {
			defer s.holds.changed()
			return s.cfg.Store.Park(ctx, d.ID, reason)
		},
		tell: func() {
			s.cfg.Log.Warn("rejected, and its lane is held", "delivery", d.Name(), "outbound", s.out.Name, "inbound", d.Inbound)
			if f := s.cfg.Observer.Parked; f != nil {
				f(d, reason)
			}
		}}
}

func (s *sending) again(d message.Delivery, err error, rejected bool) *ending {
	wait := delay(s.out.Retry.First, s.out.Retry.Max, d.Attempts)
	next := time.Now().Add(wait)
	return &ending{delivery: d, due: next,
		commit: func(ctx context.Context) error { return s.cfg.Store.Retry(ctx, d.ID, err.Error(), rejected, next) },
		tell: func() {
			s.cfg.Log.Warn("delivery waits", "delivery", d.Name(), "outbound", s.out.Name, "attempt", d.Attempts+1,
				"wait", wait.Round(time.Millisecond), "why", why(err))
			if f := s.cfg.Observer.Retried; f != nil {
				f(d, err, wait)
			}
		}}
}

// record commits how a send ended.
func (p *Pipeline) record(ctx context.Context, e *ending) error {
	ctx, cancel := committing(ctx)
	defer cancel()
	if err := e.commit(ctx); err != nil {
		return fmt.Errorf("record delivery %s: %w", e.delivery.Name(), err)
	}
	e.tell()
	return nil
}

// settle records how a send ended, after a commit that failed, unless that happened all the same: the delivery has gone, or has one
// attempt more.
func (p *Pipeline) settle(ctx context.Context, e *ending) error {
	asking, cancel := committing(ctx)
	defer cancel()
	attempts, ready, err := p.cfg.Store.StillReady(asking, e.delivery.ID)
	if err != nil {
		return err
	}
	if ready && attempts == e.delivery.Attempts {
		return p.record(ctx, e)
	}
	e.tell()
	return nil
}

// settleAtStop tries once more to record how a send ended. If the store does not take it, the delivery repeats.
func (p *Pipeline) settleAtStop(ctx context.Context, e *ending) {
	if err := p.settle(ctx, e); err != nil {
		p.cfg.Log.Error("a delivery that ended is not recorded and will repeat", "delivery", e.delivery.Name(),
			"outbound", e.delivery.Outbound, "err", err)
	}
}

// why is as much of a delivery's error as a log may hold: what the network or the file system said, but no word of the
// receiver's, which may repeat what the message holds. The store has it whole.
func why(err error) string {
	var network *net.OpError
	var path *fs.PathError
	var rejection *message.Rejection
	switch {
	case errors.As(err, &rejection):
		return "rejected with " + rejection.Code
	case errors.As(err, &network):
		return network.Error()
	case errors.As(err, &path):
		return path.Error()
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "no answer in time"
	}
	return "no good answer; show tells more"
}
