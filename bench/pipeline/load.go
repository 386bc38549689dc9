package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"coppice.dev/coppice/internal/connect/mllp"
	"coppice.dev/coppice/internal/hl7"
)

// patience bounds a turn: a message that is not done by then is lost.
const patience = 3 * time.Minute

// bed is what is around a system while it is measured, the same for all: a sender for each lane, a receiver for each lane,
// and the turn that is under way.
type bed struct {
	lanes     int
	receivers []*mllp.Receiver
	now       atomic.Pointer[turn]
	turns     int
	large     chan struct{} // one more of the large messages is done
}

// newBed makes one whose system tells it what is done.
func newBed(lanes int) (*bed, error) { return newBedWith(lanes, func(*bed, []byte) {}) }

// newWatchingBed makes one for a system in another process: what has arrived counts as done.
func newWatchingBed(lanes int) (*bed, error) {
	return newBedWith(lanes, func(b *bed, body []byte) {
		h, _ := hl7.ParseHeader(body)
		b.done(h.ControlID)
	})
}

func newBedWith(lanes int, arrived func(b *bed, body []byte)) (*bed, error) {
	b := &bed{lanes: lanes, large: make(chan struct{}, 1<<16)}
	for range lanes {
		r, err := mllp.NewReceiver("127.0.0.1:0", func(body []byte) string {
			arrived(b, body)
			return hl7.AA
		})
		if err != nil {
			return nil, errors.Join(err, b.close())
		}
		b.receivers = append(b.receivers, r)
	}
	return b, nil
}

func (b *bed) close() error {
	var errs []error
	for _, r := range b.receivers {
		errs = append(errs, r.Close())
	}
	return errors.Join(errs...)
}

// turn is one load on one system: so many messages in each lane.
type turn struct {
	number int
	began  time.Time
	trips  [][]trip        // by lane
	ended  []chan struct{} // by lane: one more is done
	left   atomic.Int64
	over   chan struct{} // closed when all are done
	odd    atomic.Pointer[string]
}

// trip is one message's way, in time since the turn began.
type trip struct{ sent, acked, done time.Duration }

// done is told by each system when a message has ended there, by its control id: after the commit of that, where there is one.
func (b *bed) done(control string) {
	if control == largeControl {
		b.large <- struct{}{}
		return
	}
	t := b.now.Load()
	var number, lane, n int
	_, err := fmt.Sscanf(control, "T%dL%dN%d", &number, &lane, &n)
	if t == nil || err != nil || number != t.number || lane >= len(t.trips) || n >= len(t.trips[lane]) || t.trips[lane][n].done != 0 {
		if t != nil {
			t.odd.Store(&control)
		}
		return
	}
	t.trips[lane][n].done = time.Since(t.began)
	t.ended[lane] <- struct{}{} // has room for all
	if t.left.Add(-1) == 0 {
		close(t.over)
	}
}

// run sends n messages of a size into each lane, and returns when all are done. With single a lane's next message is sent once
// the one before is done, otherwise once it is acknowledged.
func (b *bed) run(clients []*mllp.Client, n, size int, single bool) (*turn, error) {
	b.turns++
	t := &turn{number: b.turns, over: make(chan struct{}), began: time.Now()}
	t.left.Store(int64(n * len(clients)))
	for range clients {
		t.trips = append(t.trips, make([]trip, n))
		t.ended = append(t.ended, make(chan struct{}, n))
	}
	b.now.Store(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	errs := make([]error, len(clients))
	var senders sync.WaitGroup
	for lane, c := range clients {
		senders.Go(func() { errs[lane] = t.send(ctx, c, lane, size, single) })
	}
	senders.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	select {
	case <-t.over:
	case <-ctx.Done():
		return nil, fmt.Errorf("%d messages are acknowledged and not done after %v", t.left.Load(), patience)
	}
	if odd := t.odd.Load(); odd != nil {
		return nil, fmt.Errorf("message %q ended twice, or was not sent", *odd)
	}
	return t, nil
}

func (t *turn) send(ctx context.Context, c *mllp.Client, lane, size int, single bool) error {
	for n := range t.trips[lane] {
		trip := &t.trips[lane][n]
		body := hl7Body(fmt.Sprintf("T%dL%dN%d", t.number, lane, n), size)
		trip.sent = time.Since(t.began)
		ack, err := c.Exchange(ctx, body)
		if err != nil {
			return fmt.Errorf("lane %d, message %d: %w", lane, n, err)
		}
		if ack.Code != hl7.AA {
			return fmt.Errorf("lane %d, message %d: answered with %s", lane, n, ack.Code)
		}
		trip.acked = time.Since(t.began)
		if !single {
			continue
		}
		select {
		case <-t.ended[lane]:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// hl7Body is a message of exactly so many bytes, if that is enough for its header.
func hl7Body(control string, size int) []byte {
	b := fmt.Appendf(make([]byte, 0, size), "MSH|^~\\&|BENCH|A|B|C|20260101||ADT^A01|%s|P|2.5\rPID|1||4711||\rNTE|1||", control)
	if fill := size - len(b) - 1; fill > 0 {
		b = append(b, bytes.Repeat([]byte("x"), fill)...)
	}
	return append(b, '\r')
}

// rate is how many messages a second were done, from the first one's beginning to the last one's end.
func (t *turn) rate() float64 {
	var last time.Duration
	n := 0
	for _, lane := range t.trips {
		n += len(lane)
		for _, trip := range lane {
			last = max(last, trip.done)
		}
	}
	return float64(n) / last.Seconds()
}

// acks are the times to the acknowledgement, trips those to the end.
func (t *turn) acks() []time.Duration {
	return t.times(func(m trip) time.Duration { return m.acked - m.sent })
}
func (t *turn) ends() []time.Duration {
	return t.times(func(m trip) time.Duration { return m.done - m.sent })
}

func (t *turn) times(of func(trip) time.Duration) []time.Duration {
	var all []time.Duration
	for _, lane := range t.trips {
		for _, trip := range lane {
			all = append(all, of(trip))
		}
	}
	return all
}

// dial connects a sender to each lane.
func dial(addrs []string) ([]*mllp.Client, error) {
	var all []*mllp.Client
	for _, addr := range addrs {
		c, err := mllp.Dial(context.Background(), addr)
		if err != nil {
			hangUp(all)
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

func hangUp(all []*mllp.Client) {
	for _, c := range all {
		c.Close()
	}
}

// quantile of some times: 0.5 is the median.
func quantile(times []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}
