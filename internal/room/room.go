// Package room is the memory that all bodies of an engine share, counted in bytes. Inbounds take it as bytes arrive, the
// pipeline before it reads a body to work on; whoever finds none waits for a while.
//
// Nothing waits for itself. One half is the pipeline's, which takes all that a step needs before it has any of it, and so
// always comes to an end and gives it back. The other half is for what arrives:
//
//	total ─┬─ 1/2 work      bodies of dispatches and sends; one alone may be larger than this
//	       ├─ 1/8 begun     the first Beginning bytes of each receive, so that large bodies keep no small one out
//	       └─ 3/8 grown     what receives have beyond that; the last so many bytes of it, as the largest message has, are
//	                        for one receive at a time, the elder: so one can always be received to its end
package room

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Beginning is how much of each receive, in bytes, has a share of its own. Work on a body up to this size never waits.
const Beginning = 32 << 10

// Least is how many times the largest message a room has at least, so that each of its parts has room for one.
const Least = 4

// tightAfter is how long somebody waits before others hear that there is no room.
const tightAfter = 100 * time.Millisecond

// Sentinel errors; test with errors.Is.
var (
	// ErrFull is returned where there was no room in time.
	ErrFull = errors.New("other bodies fill the memory that there is for them")
	// ErrGone is returned where the one who waited for room is gone.
	ErrGone = errors.New("gone while it waited for memory")
)

// Room is made with New. Its methods are safe for concurrent use.
type Room struct {
	tell func(tight bool, used Used)

	mu      sync.Mutex
	total   int64
	largest int64
	used    Used
	elder   *Body
	tight   bool

	begins, grows, works queue
}

// Used is what is taken, in bytes.
type Used struct {
	Begun, Grown int64 // by receives
	Work         int64
}

// New returns a room of so many bytes, for messages up to largest. tell, if it is not nil, hears of each time that somebody
// has to wait, and that nobody has to any more; it must not block.
func New(total, largest int64, tell func(tight bool, used Used)) *Room {
	if tell == nil {
		tell = func(bool, Used) {}
	}
	return &Room{tell: tell, total: max(total, Least*largest), largest: largest}
}

// Resize changes how much there is. What is taken stays.
func (r *Room) Resize(total, largest int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total, r.largest = max(total, Least*largest), largest
	r.serve()
}

// Used is what is taken now.
func (r *Room) Used() Used {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.used
}

// Take takes room for work on a body of n bytes, and waits for it until ctx ends.
func (r *Room) Take(ctx context.Context, n int64) error {
	if n <= Beginning {
		r.Count(n)
		return nil
	}
	err := r.wait(&r.works, nil, func() bool {
		if r.used.Work != 0 && r.used.Work+n > r.total/2 {
			return false
		}
		r.used.Work += n
		return true
	}, time.Time{}, ctx.Done())
	if err != nil {
		return context.Cause(ctx)
	}
	return nil
}

// Try is Take that does not wait, and takes nothing where others do; it says whether it took n.
func (r *Room) Try(n int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.works) > 0 || r.used.Work+n > r.total/2 {
		return false
	}
	r.used.Work += n
	return true
}

// Count counts n bytes that work has already, whether there is room for them or not.
func (r *Room) Count(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used.Work += n
}

// Give gives back n bytes of work's.
func (r *Room) Give(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used.Work -= n
	r.serve()
}

// begin takes n bytes of what receives begin with. The caller holds r.mu, as for grow and leave.
func (r *Room) begin(n int64) bool {
	if r.used.Begun+n > r.total/8 {
		return false
	}
	r.used.Begun += n
	return true
}

// grow takes n bytes for what a receive has beyond its beginning.
func (r *Room) grow(b *Body, n int64) bool {
	most := r.total/2 - r.total/8
	if r.elder != b && r.used.Grown+n > most-r.largest {
		if r.elder != nil {
			return false
		}
		r.elder = b
	}
	if r.used.Grown+n > most {
		return false
	}
	r.used.Grown += n
	return true
}

// leave gives back what a receive has.
func (r *Room) leave(b *Body) {
	r.used.Begun -= min(b.held, Beginning)
	r.used.Grown -= max(b.held-Beginning, 0)
	if r.elder == b {
		r.elder = nil
	}
	r.serve()
}

// queue are those who wait for one kind of room, served in this order.
type queue []*waiter

type waiter struct {
	take  func() bool // called with the room's lock held
	ready chan struct{}
}

// wait takes room at once, or in turn: the elder before others, since they wait for what it has. A zero until is no limit.
func (r *Room) wait(q *queue, b *Body, take func() bool, until time.Time, gone <-chan struct{}) error {
	r.mu.Lock()
	turn := len(*q)
	if b != nil && r.elder == b {
		turn = 0
	}
	if turn == 0 && take() {
		r.mu.Unlock()
		return nil
	}
	w := &waiter{take, make(chan struct{})}
	*q = slices.Insert(*q, turn, w)
	r.mu.Unlock()
	err := w.await(until, gone, r.tighten)
	if err == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.Index(*q, w)
	if i < 0 {
		return nil // served at the last moment
	}
	*q = slices.Delete(*q, i, i+1)
	r.serve()
	return err
}

func (w *waiter) await(until time.Time, gone <-chan struct{}, tighten func()) error {
	var over <-chan time.Time
	if !until.IsZero() {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		over = t.C
	}
	notice := time.NewTimer(tightAfter)
	defer notice.Stop()
	for {
		select {
		case <-w.ready:
			return nil
		case <-over:
			return ErrFull
		case <-gone:
			return ErrGone
		case <-notice.C:
			tighten()
		}
	}
}

// serve gives to those who wait what there is now. The caller holds r.mu.
func (r *Room) serve() {
	for _, q := range []*queue{&r.works, &r.begins, &r.grows} {
		for len(*q) > 0 && (*q)[0].take() {
			close((*q)[0].ready)
			*q = slices.Delete(*q, 0, 1)
		}
	}
	// Not before it is half empty, lest it be told with every message.
	if r.tight && r.waiting() == 0 && r.used.Begun+r.used.Grown <= r.total/4 && r.used.Work <= r.total/4 {
		r.tight = false
		r.tell(false, r.used)
	}
}

func (r *Room) waiting() int { return len(r.works) + len(r.begins) + len(r.grows) }

func (r *Room) tighten() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.tight && r.waiting() > 0 {
		r.tight = true
		r.tell(true, r.used)
	}
}
