package sandbox

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"
)

// standbys are the workers of a pool that have been started ahead of need and have served nothing yet.
type standbys struct {
	pool  *Pool
	grows sync.WaitGroup
	timer *time.Timer

	// Under the pool's lock:
	ready    []*session // oldest first
	starting int
	looking  int       // those that tend has taken out to look at
	ends     []*ending // of those that did not last
}

// get takes the oldest that is fit to serve; nil if there is none.
func (b *standbys) get() *session {
	b.pool.mu.Lock()
	defer b.pool.mu.Unlock()
	for len(b.ready) > 0 {
		s := b.ready[0]
		b.ready = b.ready[1:]
		if s.usable() {
			return s
		}
		b.ends = append(b.ends, s.end(s.why(), 0))
		b.wake(idleLook)
	}
	return nil
}

// fill begins to start as many as are missing, as many at once as there are cores. It does not block.
func (b *standbys) fill() {
	p := b.pool
	if p.spec.Standbys == 0 || p.breaker.open() != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return // the ends are Close's, which waits for them without the lock
	}
	b.prune()
	for b.starting < runtime.GOMAXPROCS(0) && len(b.ready)+b.looking+b.starting+len(b.ends) < p.spec.Standbys {
		b.starting++
		b.grows.Go(b.one)
	}
}

// prune forgets the ends that are over. One whose worker could not be proved gone stays, and takes the room of a standby.
func (b *standbys) prune() {
	kept := b.ends[:0]
	for _, e := range b.ends {
		select {
		case <-e.done:
			if e.err == nil {
				continue
			}
		default:
		}
		kept = append(kept, e.again())
	}
	b.ends = kept
}

// one starts one standby, and the next if one is still missing.
func (b *standbys) one() {
	p := b.pool
	ctx, cancel := p.untilClosed(context.Background())
	defer cancel()
	s, err := p.grow(ctx, nil, func(*session) bool { return ctx.Err() != nil })
	p.mu.Lock()
	b.starting--
	switch {
	case err == nil && !p.closed:
		s.rest.begins(s.worker, &p.spec.Limits)
		b.ready = append(b.ready, s)
	case err == nil:
		b.ends = append(b.ends, s.end(ErrClosed, 0))
	case s != nil:
		b.ends = append(b.ends, s.end(boots(err), 0))
	}
	wait := idleLook
	if err != nil {
		wait = max(p.breaker.wait(), firstBackoff)
	}
	if !p.closed {
		b.wake(wait)
	}
	p.mu.Unlock()
	if err == nil {
		b.fill()
	}
}

// wake sets when to tend next, unless that is earlier already.
func (b *standbys) wake(wait time.Duration) {
	if b.timer == nil {
		b.timer = time.AfterFunc(wait, b.tend)
	} else {
		b.timer.Reset(wait)
	}
}

// tend looks at each standby, and starts what is missing.
func (b *standbys) tend() {
	p := b.pool
	next := idleLooks
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	all := b.ready
	b.ready, b.looking = nil, b.looking+len(all)
	b.grows.Add(1)
	p.mu.Unlock()
	defer b.grows.Done()
	var kept []*session
	var ends []*ending
	for _, s := range all {
		err := s.rest.look(s.worker, &p.spec.Limits)
		if err == nil && s.usable() {
			kept = append(kept, s)
			next = min(next, s.rest.wait)
			continue
		}
		if err == nil {
			err = s.why()
		}
		ends = append(ends, s.end(err, 0))
	}
	p.mu.Lock()
	b.ready, b.looking = append(kept, b.ready...), b.looking-len(all)
	b.ends = append(b.ends, ends...)
	if len(b.ends) > 0 { // each has the room of a standby until it is proved gone
		next = min(next, idleLook)
	}
	if !p.closed {
		b.wake(next)
	}
	p.mu.Unlock()
	if len(kept) > 0 {
		p.breaker.healed()
	}
	b.fill()
}

// close ends them all, and waits until they are proved gone. No more are begun: the pool is closed.
func (b *standbys) close(ctx context.Context) error {
	b.grows.Wait() // what they wait for ends with the pool
	b.pool.mu.Lock()
	if b.timer != nil {
		b.timer.Stop()
	}
	for _, s := range b.ready {
		s.closing.Store(true)
		b.ends = append(b.ends, s.end(ErrClosed, 0))
	}
	b.ready = nil
	for i, e := range b.ends {
		b.ends[i] = e.again()
	}
	ends := b.ends
	b.pool.mu.Unlock()
	var errs []error
	for _, e := range ends {
		errs = append(errs, e.await(ctx))
	}
	return errors.Join(errs...)
}
