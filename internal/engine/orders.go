package engine

import (
	"context"
	"errors"
	"sync"
)

// errReloading is why an order that waits is given up.
var errReloading = errors.New("the engine reloads: try again")

// orders has people's orders and a reload take turns: an order acts by the names of now, from its look at them to its commit,
// and a reload changes no names in between. Nor does it wait for an order that waits for something itself. The zero value is
// ready for use.
type orders struct {
	names sync.RWMutex // read-locked by orders

	mu       sync.Mutex
	patience context.Context // of orders that wait; nil: none has asked since the last reload
	lose     context.CancelCauseFunc
}

// enter begins an order. One that waits does so while patience lasts, whose cause says why it ended.
func (o *orders) enter() (patience context.Context, leave func()) {
	o.names.RLock()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.have()
	return o.patience, o.names.RUnlock
}

// reload begins a reload's turn, when the orders that have begun are done.
func (o *orders) reload() (done func()) {
	o.mu.Lock()
	o.have() // for those that enter before the lock is ours
	o.lose(errReloading)
	o.mu.Unlock()
	o.names.Lock()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.patience = nil
	return o.names.Unlock
}

func (o *orders) have() {
	if o.patience == nil {
		o.patience, o.lose = context.WithCancelCause(context.Background())
	}
}
