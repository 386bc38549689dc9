// Package tree starts a process so that all of its descendants can be killed, whatever they do, and proves that they
// are gone: Kill returns nil only after the tree was observed empty. Where the host gives no more than level Group, that holds
// for the process group, and what has left it lives on: demand more by Spec.Level, or look at Tree.Level.
//
// A tree is what was born of its command: children and grandchildren, also those that called setsid, forked twice, or
// hold its pipes. A process that a privileged service starts on request (systemd-run, cron, at, docker) is outside.
//
// How surely that works depends on the host; Tree.Level says what it came to, and Spec.Level refuses less.
//
// The package takes no process-wide act in its host: no signal handlers, no wait for children that it did not start, no
// limits. On Linux all levels above the process group need a shim, which is the program itself, executed again: see
// package shimhook. Everything here is safe for concurrent use, and any number of trees can live at once.
//
// A program that is PID 1, as in a container, becomes the parent of every orphan and has to collect it (wait(2)); this
// package collects its own children alone. A tree that is proved empty leaves none, but on the level group, and where
// somebody has killed the shim, the escapees come to that program: dead ones stay zombies until it waits for them.
package tree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// Spec says what to start and what to ask of the host. It is not changed and not kept.
type Spec struct {
	// Path is the file to execute: absolute, or relative to Dir. PATH is not searched.
	Path string
	// Args are the command's arguments with its own name first; nil means Path alone.
	Args []string
	// Env is the whole environment; nil is an empty one, never the engine's. (Windows adds SYSTEMROOT if it is not there.)
	Env []string
	// Dir is the working folder; empty means the engine's.
	Dir string
	// Stdin, Stdout and Stderr are the command's first three descriptors; nil is the null device. Extra follow from 3
	// on, nil being the null device as well. On Windows they are descriptors to a program with a C runtime (C, Python,
	// Node); any other finds the handles of the first two in LinkEnv: see Link. All stay the caller's: close them after
	// Start, or a reader never sees their end.
	Stdin, Stdout, Stderr *os.File
	Extra                 []*os.File

	// Level is the least that will do; 0 takes the best that the host has.
	Level Level
	// Rung, if not empty, is the only rung to try.
	Rung string
	// Shim is a binary that has the shim's hook; empty means the program itself. One that lacks it is executed all the
	// same, runs its own main, and the rung is then not to be had: demand a Level, or a weaker one is taken.
	Shim string

	// NewSession gives the command a session of its own and no controlling terminal; otherwise it gets a process group of
	// its own in the engine's session.
	NewSession bool
	// Foreground, if not nil, is the controlling terminal of the engine's session: the command's process group is made its
	// foreground one before the command's first instruction (tcsetpgrp(3)). It stays the caller's, who takes the
	// terminal back afterwards: see Tree.Stopped. Unix alone; not with NewSession.
	Foreground *os.File
	// NoNewPrivileges makes set-user-id and file capabilities void for the tree (Linux).
	NoNewPrivileges bool
	// DropCapabilities takes all capabilities from the tree (Linux). In a user namespace it is always done: the rung
	// rests on it.
	DropCapabilities bool
	// Limits are those of each process of the tree; a zero field sets none.
	Limits Limits
}

// Limits are per process and inherited (setrlimit(2)). They are set between the command's birth and its first instruction
// where there is a shim, which does not live under them itself, and not at all elsewhere: see Facts.Limited. A limit above
// the engine's own hard limit comes to that one.
type Limits struct {
	NoCore bool   // core files of size 0
	Files  uint64 // open descriptors
	Data   uint64 // bytes of private writable memory (RLIMIT_DATA)
	File   uint64 // bytes of the largest file it may write
	Tasks  uint64 // processes and threads of the tree; only where the tree has a user namespace of its own
}

// Tree is a started command with all of its descendants. It ends by Kill or by the command's own exit, which also cuts
// what the command left behind. One who starts a tree must see it to its end by Wait or Kill.
type Tree struct {
	hold  holder
	level Level
	facts Facts

	stops  chan os.Signal
	exited chan struct{} // closed when the command itself has ended, or is known to have died with the tree
	ended  chan struct{} // closed when the tree has been proved empty, or cannot be any more

	cutting sync.Once
	cut     chan struct{} // closed when the cut has begun

	mu     sync.Mutex
	status Status
	report Report
	begun  time.Time
	err    error // why emptiness cannot be proved
}

// holder is one living tree on one rung: the seam between what every tree does and what a rung does.
type holder interface {
	// wait blocks until the command has ended, and returns its status. The tree may live on. Until then it calls stopped
	// each time that a signal has stopped the command.
	wait(stopped func(os.Signal)) Status
	// kill begins to end the whole tree. It does not block and may be called again.
	kill()
	// empty blocks until the tree is empty; an error says why that cannot be proved any more.
	empty() error
	// signal sends a signal to the command's process group.
	signal(os.Signal) error
	// members reads the tree once; seen counts it for a report and names some, as quickly as can be.
	members() ([]Member, error)
	seen() (int, []Member)
	// alone says, once the tree is empty, whether it is known that the command left nobody behind.
	alone() bool
	// usage reads what the tree uses, once.
	usage() (Usage, error)
	// guard is nil if the tree can neither leave what holds it nor attack what kills it, else the reason.
	guard() error
}

// rung is one way to hold a tree.
type rung struct {
	name string
	// held is what it gives with its guard, loose without one. A rung that never has one, or always, leaves the other empty.
	held, loose standing
	// start starts the command. A *refusal lets the next rung have a go; any other error ends the attempt: the command
	// itself cannot be executed.
	start func(context.Context, *Spec) (holder, error)
}

// standing is what a rung gives.
type standing struct {
	level Level
	facts Facts
}

// refusal is the error of a rung that the host does not give.
type refusal struct{ err error }

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// Start starts the command on the best rung that the host gives. It returns once the command has been executed: an error
// means that nothing of it runs. By errors.As and errors.Is: a command that cannot be executed is an *os.PathError with its
// errno, and so is a folder that cannot be entered; a level or a rung that cannot be had is a *LevelError, with each rung's
// reason; a descriptor that is closed is os.ErrClosed. ctx bounds the start alone: when it ends before that, the error is
// its cause.
func Start(ctx context.Context, spec Spec) (*Tree, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Path, context.Cause(ctx))
	}
	if spec.Args == nil {
		spec.Args = []string{spec.Path}
	}
	if spec.Env == nil {
		spec.Env = []string{}
	}
	var tried []Tried
	before := hostOOM()
	for _, r := range ladder() {
		if spec.Rung != "" && r.name != spec.Rung {
			continue
		}
		if best := max(r.held.level, r.loose.level); best < spec.Level {
			tried = append(tried, Tried{r.name, fmt.Sprintf("its level is %s only", best), nil})
			continue
		}
		h, err := r.start(ctx, &spec)
		if err == nil {
			return newTree(h, r, tried, before), nil
		}
		var no *refusal
		if !errors.As(err, &no) {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("start %s: %w", spec.Path, context.Cause(ctx))
		}
		tried = append(tried, Tried{r.name, err.Error(), err})
	}
	wanted := spec.Level
	if spec.Rung == "" {
		wanted = max(wanted, Direct)
	}
	return nil, fmt.Errorf("start %s: %w", spec.Path, &LevelError{Wanted: wanted, Rung: spec.Rung, Tried: tried})
}

// Rungs lists the names of the rungs that this system has, best first.
func Rungs() []string {
	var out []string
	for _, r := range ladder() {
		out = append(out, r.name)
	}
	return out
}

func newTree(h holder, r rung, tried []Tried, before oomCount) *Tree {
	stands := r.held
	if err := h.guard(); err != nil {
		stands = r.loose
		stands.facts.Unguarded = err.Error()
	} else {
		stands.facts.Guarded = true
	}
	stands.facts.Rung, stands.facts.Tried = r.name, tried
	if l, ok := h.(interface{ limited() bool }); ok {
		stands.facts.Limited = l.limited() // it depends on what was asked for
	}
	t := &Tree{hold: h, level: stands.level, facts: stands.facts,
		stops: make(chan os.Signal, 1), exited: make(chan struct{}), ended: make(chan struct{}), cut: make(chan struct{})}
	go func() {
		status := h.wait(t.stopped)
		if !t.cutBegun() {
			status.OOM = starved(h, status, before)
		}
		t.mu.Lock()
		t.status = status
		t.mu.Unlock()
		close(t.exited)
		t.beginCut("exit")
	}()
	go func() {
		<-t.cut
		err := h.empty()
		<-t.exited
		t.mu.Lock()
		t.err = err
		if t.hold.alone() {
			t.report.Unseen = ""
		}
		t.report.Took = time.Since(t.begun)
		t.mu.Unlock()
		close(t.ended)
	}()
	return t
}

// Level is what the host enforces for this tree.
func (t *Tree) Level() Level { return t.level }

// Facts are what is known besides the level.
func (t *Tree) Facts() Facts { return t.facts }

// Exited is closed when the command itself has ended. What it left behind is being cut then, unasked.
func (t *Tree) Exited() <-chan struct{} { return t.exited }

// Stopped carries a signal each time that one has stopped the command itself, as the terminal's ^Z does. At most one
// waits there unread, the last. It is never closed. Unix alone; with Spec.NewSession it may carry none.
func (t *Tree) Stopped() <-chan os.Signal { return t.stops }

func (t *Tree) stopped(sig os.Signal) {
	for {
		select {
		case t.stops <- sig:
			return
		default:
		}
		select {
		case <-t.stops:
		default:
		}
	}
}

// Cut begins to kill every process of the tree, unasked, and does not wait: Kill and Wait tell when it is over. The
// cause is for the report; the first one stands.
func (t *Tree) Cut(cause string) { t.beginCut(cause) }

// beginCut looks once at the tree and begins to kill it. Only the first call does anything.
func (t *Tree) beginCut(cause string) {
	t.cutting.Do(func() {
		seen, some := t.hold.seen()
		t.mu.Lock()
		t.report = Report{Cause: cause, Level: t.level, Rung: t.facts.Rung, Seen: seen, Named: some[:min(len(some), named)]}
		if err := unlisted(); err != nil && seen == 0 {
			t.report.Unseen = err.Error()
		}
		t.begun = time.Now()
		t.mu.Unlock()
		t.hold.kill()
		close(t.cut)
	})
}

// cutBegun says whether a kill may have been sent by now.
func (t *Tree) cutBegun() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.begun.IsZero()
}

// Kill ends every process of the tree, unasked, and waits until the tree has been observed empty: only then it returns
// a nil error. When ctx ends before that, or emptiness cannot be proved on this rung, it returns a *SurvivorsError with
// what was last seen; the killing goes on. The cause is for the report; the first one stands. Kill may be called from
// any number of goroutines and at any time, also after the end, when it returns what the first one saw.
func (t *Tree) Kill(ctx context.Context, cause string) (Report, error) {
	t.beginCut(cause)
	<-t.cut
	return t.await(ctx)
}

// Wait waits for the command's own end, and until what it left behind has been cut and proved gone. It kills nothing that
// is not ended by the command's exit; when ctx ends first, it returns ctx's error and the tree lives on. The error is a
// *SurvivorsError when emptiness cannot be proved.
func (t *Tree) Wait(ctx context.Context) (Status, Report, error) {
	select {
	case <-t.exited:
	case <-ctx.Done():
		return Status{}, Report{}, context.Cause(ctx)
	}
	r, err := t.await(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.status, r, err
}

// Status is how the command ended; the zero Status before Exited is closed.
func (t *Tree) Status() Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.status
}

func (t *Tree) await(ctx context.Context) (Report, error) {
	select {
	case <-t.ended:
	case <-ctx.Done():
		select {
		case <-t.ended:
		default:
			return t.survivors(context.Cause(ctx).Error())
		}
	}
	t.mu.Lock()
	err, r := t.err, t.report
	t.mu.Unlock()
	if err != nil {
		return t.survivors(err.Error())
	}
	return r, nil
}

func (t *Tree) survivors(reason string) (Report, error) {
	left, _ := t.hold.members()
	t.mu.Lock()
	r := t.report
	t.mu.Unlock()
	r.Survivors = left
	return r, &SurvivorsError{Report: r, Reason: reason}
}

// Signal asks: it sends a signal to the command's process group, which may ignore it. After the command's end it returns
// os.ErrProcessDone. On Windows only os.Kill can be sent, and ends the tree.
func (t *Tree) Signal(sig os.Signal) error {
	select {
	case <-t.exited:
		return os.ErrProcessDone
	default:
		return t.hold.signal(sig)
	}
}

// Members reads the tree once: its living processes, without the shim. A tree that changes meanwhile may be shown torn.
func (t *Tree) Members() ([]Member, error) {
	select {
	case <-t.ended:
		return nil, nil
	default:
		return t.hold.members()
	}
}

// files are the command's descriptors in order; null has to be closed after the start.
func (s *Spec) files() (files []*os.File, null *os.File, err error) {
	if null, err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
		return nil, nil, err
	}
	for i, f := range append([]*os.File{s.Stdin, s.Stdout, s.Stderr}, s.Extra...) {
		if f == nil {
			f = null
		}
		if f.Fd() == ^uintptr(0) {
			null.Close()
			return nil, nil, fmt.Errorf("start %s: descriptor %d: %w", s.Path, i, os.ErrClosed)
		}
		files = append(files, f)
	}
	return files, null, nil
}
