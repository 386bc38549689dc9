package sandbox

import (
	"cmp"
	"runtime"
	"sync"
	"time"

	"coppice.dev/coppice/tree"
)

// Limits are what a worker, with all of its tree, may use. A zero field takes the default; a negative one sets no limit.
type Limits struct {
	// CPU is the time, on all cores together, of one dispatch. It is looked at while the dispatch runs, as late as the limit
	// allows, so that a short one costs nothing; what it used in its first few milliseconds is not counted. By default there
	// is no limit but the deadline.
	CPU time.Duration
	// IdleCPU is what a worker may use between dispatches, besides a twentieth of a core that it may use for ever. One that
	// goes over it is retired; no message pays. 5 s by default.
	IdleCPU time.Duration
	// Output is how many bytes a worker may print from one dispatch to the next. 64 MiB by default.
	Output int64
	// Memory is how many bytes a worker may keep resident from one dispatch to the next. One that keeps more is retired
	// after its answer; no message pays. It is looked at once a second at most. No limit by default.
	Memory int64
	// Idle is how long a worker may wait for a dispatch before it is retired. No limit by default.
	Idle time.Duration
}

func (l Limits) filled() Limits {
	l.IdleCPU = cmp.Or(l.IdleCPU, 5*time.Second)
	l.Output = cmp.Or(l.Output, 64<<20)
	return l
}

const (
	// firstLook is when the CPU time of a dispatch is looked at first, at the latest: what it has used by then is taken for
	// none, since a look before each dispatch would cost more than most dispatches.
	firstLook = 10 * time.Millisecond
	// nextLook is the least time between two looks at one dispatch; the system's own account is no finer.
	nextLook = 10 * time.Millisecond
	// gapLook is how often the end of a dispatch looks at what the worker keeps, and the begin of the next at what it used
	// meanwhile.
	gapLook = time.Second
	// idleLook is when an idle worker is looked at first. Each look that finds it quiet doubles the wait, up to idleLooks.
	idleLook  = time.Second
	idleLooks = 5 * time.Minute
	// quiet is the share of a core, one in so many, that an idle worker may use for ever.
	quiet = 20
)

// spent is the CPU time of a worker's tree as looks at it told. What ended unseen can make the system's account shrink; this
// one does not.
type spent struct {
	last, sum time.Duration
}

func (s *spent) add(u tree.Usage) {
	now := u.User + u.System
	s.sum += max(now-s.last, 0)
	s.last = now
}

// cpuWatch looks at what one dispatch uses.
type cpuWatch struct {
	worker child
	most   time.Duration
	over   func(*LimitError)

	mu    sync.Mutex
	timer *time.Timer
	looks int
	used  spent
	done  bool
}

// watchCPU looks at what a dispatch uses, from now until stop. over is called, once at most, if that is more than most.
func watchCPU(worker child, most time.Duration, over func(*LimitError)) *cpuWatch {
	w := &cpuWatch{worker: worker, most: most, over: over}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(min(most/cores(), firstLook), w.look)
	return w
}

// cores is how many can work for a worker at once.
func cores() time.Duration { return time.Duration(runtime.NumCPU()) }

func (w *cpuWatch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done {
		return
	}
	u, err := w.worker.Usage()
	if err != nil {
		return // it has ended, or nobody can look here
	}
	w.used.add(u)
	if w.looks++; w.looks == 1 {
		w.used.sum = 0
	}
	if w.used.sum > w.most {
		w.done = true
		w.over(&LimitError{Limit: LimitCPU, Most: int64(w.most), Used: int64(w.used.sum)})
		return
	}
	w.timer.Reset(max((w.most-w.used.sum)/cores(), nextLook))
}

// stop ends the watch: over is not called after it.
func (w *cpuWatch) stop() {
	if w.timer.Stop() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = true
	w.timer.Stop()
}

// rest is what is known of a worker between its dispatches. It belongs to whoever has the worker's seat.
type rest struct {
	used   spent
	looked time.Time     // when that was
	over   time.Duration // idle CPU time beyond what is free
	open   bool          // the last look was at the begin of the gap that goes on now
	wait   time.Duration // until the next look
}

// begins is called at the end of a dispatch. A worker that keeps too much is retired for the error that it returns.
func (r *rest) begins(worker child, l *Limits) error {
	r.wait = idleLook
	now := time.Now()
	if r.open = false; now.Sub(r.looked) < gapLook {
		return nil
	}
	u, err := worker.Usage()
	if err != nil {
		return nil
	}
	r.used.add(u)
	r.looked, r.open = now, true
	return l.keeps(u)
}

// look is called while the worker rests, and right before its next dispatch if the gap is open.
func (r *rest) look(worker child, l *Limits) error {
	now := time.Now()
	before := r.used.sum
	u, err := worker.Usage()
	if err != nil {
		return nil
	}
	r.used.add(u)
	since := now.Sub(r.looked)
	r.looked = now
	if !r.open {
		r.open = true
		return l.keeps(u)
	}
	used := r.used.sum - before
	r.wait = min(2*r.wait, idleLooks)
	if used > since/quiet {
		r.wait = idleLook
	}
	r.over = max(r.over+used-since/quiet, 0)
	if l.IdleCPU > 0 && r.over > l.IdleCPU {
		return &LimitError{Limit: LimitIdleCPU, Most: int64(l.IdleCPU), Used: int64(r.over)}
	}
	return l.keeps(u)
}

// keeps is the error of a worker that keeps more memory than it may.
func (l *Limits) keeps(u tree.Usage) error {
	if l.Memory > 0 && u.Memory > l.Memory {
		return &LimitError{Limit: LimitMemory, Most: l.Memory, Used: u.Memory}
	}
	return nil
}
