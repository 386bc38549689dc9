package pipeline

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"coppice.dev/coppice/internal/message"
)

// holds is what the store says is held, read again after whatever may have changed it.
type holds struct {
	mu      sync.Mutex
	known   map[message.Target]message.Hold // as of the read
	read    int                             // which change the read saw; 0: none yet
	changes int                             // counted from 1
}

// changed is called after a commit that may have held or released something.
func (h *holds) changed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changes++
}

// held says whether work waits until somebody releases it.
func (p *Pipeline) held(ctx context.Context, of message.Target) (bool, error) {
	p.holds.mu.Lock()
	known, read, changes := p.holds.known, p.holds.read, p.holds.changes
	p.holds.mu.Unlock()
	if read < changes {
		var err error
		if known, err = p.readHolds(ctx, changes); err != nil {
			return false, err
		}
	}
	_, ok := known[of]
	return ok, nil
}

// readHolds reads what is held, and tells what is new and what is over. changes is how many there were before the read.
func (p *Pipeline) readHolds(ctx context.Context, changes int) (map[message.Target]message.Hold, error) {
	ctx, cancel := context.WithTimeout(ctx, commitWithin)
	defer cancel()
	list, err := p.cfg.Store.Holds(ctx)
	if err != nil {
		return nil, err
	}
	now := map[message.Target]message.Hold{}
	for _, hold := range list {
		now[hold.Target] = hold
	}
	p.holds.mu.Lock()
	defer p.holds.mu.Unlock()
	if p.holds.read >= changes { // somebody else was faster, and has told
		return now, nil
	}
	for t, hold := range now {
		if _, before := p.holds.known[t]; !before {
			p.tellHeld(t.String(), errors.New(hold.Reason), 0)
		}
	}
	for t := range p.holds.known {
		if _, still := now[t]; !still {
			p.tellReleased(t.String())
		}
	}
	p.holds.known, p.holds.read = now, changes
	return now, nil
}

func (p *Pipeline) tellHeld(what string, why error, wait time.Duration) {
	if wait > 0 {
		p.cfg.Log.Warn("held", "what", what, "why", brief(why), "wait", wait.Round(time.Millisecond))
	} else { // the reason of such a hold may be what a receiver or a handler said; the store has it
		p.cfg.Log.Warn("held until it is released", "what", what)
	}
	if f := p.cfg.Observer.Held; f != nil {
		f(what, why, wait)
	}
}

func (p *Pipeline) tellReleased(what string) {
	p.cfg.Log.Info("released", "what", what)
	if f := p.cfg.Observer.Released; f != nil {
		f(what)
	}
}

// Hold holds work until Release; what is under way ends. It may be called from any goroutine, as may the two below, and
// returns the store's errors.
func (p *Pipeline) Hold(ctx context.Context, h message.Hold) error {
	defer p.Look(h.Target)
	return p.cfg.Store.Hold(ctx, h)
}

// Release lets held work go on, and returns the holds that there were; what an outbound is to try again later it tries now.
// With bury, what stands in the way in a held lane becomes a dead letter (see store.Store), once all sends that are under way have
// ended.
func (p *Pipeline) Release(ctx context.Context, of message.Target, bury bool) (released []message.Hold, err error) {
	defer p.Look(of)
	if s := p.sends[of.Name]; s != nil && of.Kind == message.KindOutbound {
		if bury {
			done, err := s.alone(ctx)
			if err != nil {
				return nil, err
			}
			defer done()
		}
		defer func() { // not before: while the lane is held nobody tries
			if !bury || len(released) > 0 || err != nil { // after an error: the commit may have happened
				s.now.Store(true)
			}
		}()
	}
	return p.cfg.Store.Release(ctx, of, bury)
}

// sends is what others know of an outbound's loop.
type sends struct {
	busy   chan struct{} // holds one for each delivery that is being sent and recorded; full while one is being buried
	turn   chan struct{} // holds one while somebody fills busy, or has
	buried atomic.Int64  // how often a delivery was buried, or may have been
	now    atomic.Bool   // what waits for its next try is to be tried now; set after each release
}

// alone waits until nothing is being sent, and has nothing be sent until done is called.
func (s *sends) alone(ctx context.Context) (done func(), err error) {
	taken := 0
	done = func() {
		s.buried.Add(1)
		for range taken {
			<-s.busy
		}
		<-s.turn
	}
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for taken < cap(s.busy) {
		select {
		case s.busy <- struct{}{}:
			taken++
		case <-ctx.Done():
			done()
			return nil, ctx.Err()
		}
	}
	return done, nil
}

// Look has everybody read the holds again, and the one concerned look for work at once. It is to be called after whatever may
// have changed either, also after an error: the commit may have happened.
func (p *Pipeline) Look(of message.Target) {
	p.holds.changed()
	of.Inbound = ""
	p.kick(of)
}

// Replay makes a new attempt of what failed of a message; see store.Store.
func (p *Pipeline) Replay(ctx context.Context, id message.ID, names message.Names) (message.Replay, error) {
	defer func() {
		for work := range p.wake { // after an error, too: the commit may have happened
			p.kick(work)
		}
	}()
	return p.cfg.Store.Replay(ctx, id, names)
}
