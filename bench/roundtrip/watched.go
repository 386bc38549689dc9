package main

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"coppice.dev/coppice/sandbox"
)

// watched is a pool of which one knows when it is at rest: each worker that a message has cost is proved gone, and another is
// ready in its place. One goroutine at a time uses it.
type watched struct {
	*sandbox.Pool
	alive int // workers at rest
	costs int // workers that messages have cost

	mu      sync.Mutex    // over what the observer tells
	ready   int           // workers that have become it, in all
	gone    int           // of these, how many have been proved gone
	proved  time.Time     // when the last was
	err     error         // the first thing that should not have happened
	where   string        // what holds the trees
	changed chan struct{} // has something in it when any of these has changed
}

// watch makes a pool of the spec, with so many workers at rest.
func watch(spec sandbox.Spec, alive int) (w *watched, err error) {
	w = &watched{alive: alive, changed: make(chan struct{}, 1)}
	spec.Observer = sandbox.Observer{
		Started: func(s sandbox.Started) {
			w.note(func() { w.ready, w.where = w.ready+1, fmt.Sprintf("level %v, rung %s", s.Level, s.Facts.Rung) })
		},
		Cut: func(c sandbox.Cut) {
			now := time.Now()
			w.note(func() { w.gone, w.proved, w.err = w.gone+1, now, errors.Join(w.err, c.Err) })
		},
		Held: func(h sandbox.Held) { w.note(func() { w.err = errors.Join(w.err, h.Err) }) },
	}
	w.Pool, err = session(spec)
	return w, err
}

func (w *watched) note(what func()) {
	w.mu.Lock()
	what()
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// settled waits until the pool is at rest. A standby is told of a moment before it can be taken, so a message in a great many may
// find none: medians bear that.
func (w *watched) settled() error {
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	for {
		w.mu.Lock()
		ready, gone, err := w.ready, w.gone, w.err
		w.mu.Unlock()
		if err != nil || gone == w.costs && ready == w.costs+w.alive {
			return err
		}
		select {
		case <-w.changed:
		case <-limit.C:
			return fmt.Errorf("the pool does not rest: %d workers are gone of %d, %d have been ready of %d", gone, w.costs, ready, w.costs+w.alive)
		}
	}
}

// proof is when the worker of the last message that cost one was proved gone.
func (w *watched) proof() (time.Time, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone != w.costs {
		return time.Time{}, fmt.Errorf("%d workers are proved gone, not %d", w.gone, w.costs)
	}
	return w.proved, nil
}
