package pipeline

import (
	"context"
	"sync"
	"time"

	"coppice.dev/coppice/internal/message"
)

// window is how many deliveries of each lane an outbound that keeps no order looks at, those that are out and those that wait for
// their next try among them; what is behind waits until one of them ends. So an outage does not have everything tried that waits, and
// what is in memory does not depend on how much that is. No Outbound.Parallel is larger.
const window = 64

// unordered is the loop of an outbound that keeps no order. It chooses what goes out next; each delivery that is out has a flight of
// its own, which sends it and records how that ended.
type unordered struct {
	*sending
	// flying holds deliveries that are out, and those of open. It changes between two looks alone: what was out when a look began is
	// not taken for ready, whatever became of it meanwhile.
	flying map[int64]bool
	open   []*ending // which the store has not taken yet

	air    sync.WaitGroup
	mu     sync.Mutex // of landed
	landed []landing  // flights that ended since the loop last asked
}

// landing is how a flight ended.
type landing struct {
	delivery int64
	ending   *ending // nil: nothing was sent, or a stop cut it short
	err      error   // the store's: without an ending there was no body to be had; otherwise it is not recorded
}

// flyAll sends what is ready at an outbound that keeps no order until ctx ends, and waits for what is out by then.
func (p *Pipeline) flyAll(ctx, hard context.Context, out *Outbound) {
	u := &unordered{sending: newSending(p, out), flying: map[int64]bool{}}
	p.loop(ctx, delivering(out.Name), func() (time.Duration, error) { return u.step(ctx, hard) })
	u.air.Wait()
	_ = u.land() // what is not recorded is open
	for _, e := range u.open {
		u.air.Go(func() { u.settleAtStop(hard, e) })
	}
	u.air.Wait()
}

// step has as many deliveries go out as there are and as may be, and returns how long until there is one more (negative: not until a
// kick, which each landing gives). An error is the store's and holds the outbound, but for what is out.
func (u *unordered) step(ctx, hard context.Context) (time.Duration, error) {
	err := u.land()
	if err == nil {
		err = u.settleOpen(hard)
	}
	if err == nil {
		err = u.tellOrder(ctx)
	}
	for looked := false; err == nil && ctx.Err() == nil; {
		select {
		case u.shared.busy <- struct{}{}:
		default:
			return -1, nil // as many as may be are out, or one is being buried
		}
		var d *message.Delivery
		var wait time.Duration
		d, wait, err = u.next(ctx, &looked)
		if d == nil {
			<-u.shared.busy
			return wait, err
		}
		u.fly(ctx, hard, *d)
	}
	return 0, err
}

// next returns what is to go out next; if nothing is, how long until something is. It looks at the store once in a step at most, and
// only if nothing of what it knows can be sent.
func (u *unordered) next(ctx context.Context, looked *bool) (*message.Delivery, time.Duration, error) {
	if u.shared.now.Load() {
		u.ahead = nil // and some of it may be buried
	}
	for {
		if len(u.ahead) > 0 || *looked { // pick forgets when what it is not shown is due
			free, err := u.released(ctx, u.ahead)
			if err != nil {
				return nil, 0, err
			}
			d, wait := u.pick(free, time.Now())
			if d != nil || *looked {
				return d, wait, nil
			}
		}
		if err := u.look(ctx); err != nil {
			return nil, 0, err
		}
		*looked = true
	}
}

// look reads what is ready and not out.
func (u *unordered) look(ctx context.Context) error {
	u.ahead = nil
	list, err := u.cfg.Store.Ready(ctx, u.out.Name, window)
	if err != nil {
		return err
	}
	now := u.shared.now.Swap(false)
	for _, d := range list {
		if u.flying[d.ID] {
			continue
		}
		u.ahead = append(u.ahead, d)
		if now {
			u.due[d.ID] = time.Now()
		}
	}
	return nil
}

// fly sends a delivery and records how that ended, while others do the same.
func (u *unordered) fly(ctx, hard context.Context, d message.Delivery) {
	u.flying[d.ID] = true
	for i := range u.ahead {
		if u.ahead[i].ID == d.ID {
			u.ahead = append(u.ahead[:i], u.ahead[i+1:]...)
			break
		}
	}
	u.air.Go(func() {
		l := u.flight(ctx, hard, d)
		u.mu.Lock()
		u.landed = append(u.landed, l)
		u.mu.Unlock()
		<-u.shared.busy
		u.kick(delivering(u.out.Name))
	})
}

func (u *unordered) flight(ctx, hard context.Context, d message.Delivery) landing {
	l := landing{delivery: d.ID}
	if l.ending, l.err = u.send(ctx, hard, d); l.ending != nil {
		l.err = u.record(hard, l.ending)
	}
	return l
}

// land takes notice of the flights that ended, and returns the store's errors.
func (u *unordered) land() (err error) {
	u.mu.Lock()
	landed := u.landed
	u.landed = nil
	u.mu.Unlock()
	for _, l := range landed {
		switch {
		case l.ending != nil && l.err != nil:
			u.open = append(u.open, l.ending)
		case l.ending != nil:
			u.forget(l.ending)
		default:
			delete(u.flying, l.delivery)
		}
		if l.err != nil {
			err = l.err
		}
	}
	return err
}

// settleOpen records what is open.
func (u *unordered) settleOpen(ctx context.Context) error {
	for len(u.open) > 0 {
		if err := u.settle(ctx, u.open[0]); err != nil {
			return err
		}
		u.forget(u.open[0])
		u.open = u.open[1:]
	}
	return nil
}

// forget lets go of a delivery whose end is recorded. One that is to be tried again is ready, which only a look shows.
func (u *unordered) forget(e *ending) {
	delete(u.flying, e.delivery.ID)
	if !e.due.IsZero() {
		u.due[e.delivery.ID], u.ahead = e.due, nil
	}
}
