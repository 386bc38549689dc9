package pipeline

import (
	"context"
	"math/rand/v2"
	"strings"
	"time"
)

// The waits after a failure that is nobody's.
const (
	firstWait = time.Second
	maxWait   = time.Minute
)

// The least that is waited after a failure: a retry never spins, whatever it was told.
const leastWait = time.Millisecond

// delay is how long to wait after the nth failure in a row, from 0 on: first, doubled each time, at most longest, less up
// to a tenth, so that what failed together does not come back together.
func delay(first, longest time.Duration, n int) time.Duration {
	d := first
	for range n {
		if d > longest/2 {
			d = longest
			break
		}
		d *= 2
	}
	d = max(min(d, longest), leastWait)
	return d - time.Duration(rand.Int64N(int64(d)/10+1))
}

// setback is the state of work that waits through no fault of a message, and is tried again by itself.
type setback struct {
	p     *Pipeline
	what  string
	fails int
}

// wait is called after a failure; false when ctx ended meanwhile.
func (t *setback) wait(ctx context.Context, why error) bool {
	d := delay(firstWait, maxWait, t.fails)
	t.fails++
	t.p.tellHeld(t.what, why, d)
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// over is called after a success.
func (t *setback) over() {
	if t.fails == 0 {
		return
	}
	t.fails = 0
	t.p.tellReleased(t.what)
}

// brief is an error as a log holds it: one line, and not the whole of what a worker wants to say.
func brief(err error) string {
	const most = 300
	s := strings.Join(strings.Fields(err.Error()), " ")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}
