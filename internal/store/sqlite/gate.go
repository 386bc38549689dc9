package sqlite

import (
	"sync"
	"sync/atomic"

	"coppice.dev/coppice/internal/store"
)

// gate lets calls in until it is shut, and shutting waits for those inside.
type gate struct {
	closed atomic.Bool
	mu     sync.RWMutex
}

// enter lets a call in, which must leave; store.ErrClosed once the gate is shut or shutting.
func (g *gate) enter() error {
	if g.closed.Load() { // before the lock, which the one who shuts may be waiting for
		return store.ErrClosed
	}
	g.mu.RLock()
	if g.closed.Load() {
		g.mu.RUnlock()
		return store.ErrClosed
	}
	return nil
}

func (g *gate) leave() { g.mu.RUnlock() }

// shut lets nobody in any more and returns when all have left: true for the first caller, false for any other.
func (g *gate) shut() bool {
	if !g.closed.CompareAndSwap(false, true) {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return true
}
