package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"

	"coppice.dev/coppice/internal/tty"
	"coppice.dev/coppice/tree"
)

// proofTimeout bounds the wait between a cut and the proof that nothing is left.
const proofTimeout = 10 * time.Second

// commandRun is one command under coppice run, from the flags to the end. One goroutine has it.
type commandRun struct {
	io      stdio
	options *runOptions
	argv    []string
	spec    tree.Spec
	report  *reportFile

	watch  *signalWatch
	screen *screen
	tree   *tree.Tree // nil if it was not started
	path   string     // the file that was executed, or the last that was tried
	began  time.Time

	ending ending
}

// ending is how the command's end came about, as far as run has to do with it.
type ending struct {
	deadline bool           // its deadline passed first
	asked    syscall.Signal // run was told to end it by this signal, before anything else
	cut      bool
	cutAt    <-chan time.Time // the grace is over; nil until the command has been asked to end
	giveUp   <-chan time.Time // the proof is not to be had; nil until the cut

	usage  tree.Usage
	status tree.Status
	report tree.Report
	took   time.Duration
	err    error // not proved empty
}

// begun says whether the command has been asked to end.
func (e *ending) begun() bool { return e.deadline || e.asked != 0 }

// cause is for the report, in the words of tree.Report.
func (e *ending) cause() string {
	switch {
	case e.deadline:
		return "deadline"
	case e.asked != 0:
		return "signal"
	}
	return "exit"
}

// runEnd is how run ends.
type runEnd struct {
	code  int
	die   syscall.Signal // die of it, having cleaned up; code is for where that cannot be done
	whole bool           // the signal is for the whole of run's process group
	err   error          // to be printed
}

// signalWatch is what run is told by signals.
type signalWatch struct {
	ends  chan os.Signal // those that ask a program to end
	moves chan os.Signal // those of job control
}

// watchSignals takes the signals that ask to end, and those of job control. What the caller had ignored stays so, for run
// and for its command, which would get the default of a signal that is handled at its start: HUP under nohup, INT and QUIT
// in a script's background. (Of QUIT and TERM the Go runtime does not tell; a shell ignores INT and QUIT together.)
func watchSignals() *signalWatch {
	w := &signalWatch{ends: make(chan os.Signal, 8), moves: make(chan os.Signal, 8)}
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGTERM} {
		if !signal.Ignored(sig) {
			signal.Notify(w.ends, sig)
		}
	}
	if signal.Ignored(syscall.SIGINT) {
		signal.Ignore(syscall.SIGQUIT)
	} else {
		signal.Notify(w.ends, syscall.SIGINT, syscall.SIGQUIT)
	}
	signal.Notify(w.moves, tty.Continue, tty.Resize) // which nothing stops or ends by default
	for _, sig := range []syscall.Signal{tty.Suspend, tty.Input, tty.Output} {
		if tty.CatchStops && !tty.Ignored(sig) {
			signal.Notify(w.moves, sig)
		}
	}
	return w
}

func (w *signalWatch) stop() {
	signal.Stop(w.ends)
	signal.Stop(w.moves)
}

// supervise sees the command to its end.
func (r *commandRun) supervise() runEnd {
	if r.confined() && !r.tree.Facts().Limited {
		r.cut("unlimited")
		r.conclude()
		return runEnd{code: exitOwn, err: errors.New("rung " + r.tree.Facts().Rung + " sets no limits and no --no-new-privs")}
	}
	var deadline <-chan time.Time
	if d := time.Duration(r.options.deadline); d > 0 {
		deadline = time.After(d)
	}
	for {
		select {
		case <-r.tree.Exited():
			r.conclude()
			return r.runEnd()
		case <-r.ending.giveUp:
			r.conclude()
			return r.runEnd()
		case <-deadline:
			r.ask(syscall.SIGTERM, true)
		case <-r.ending.cutAt:
			r.cut(r.ending.cause())
		case sig := <-r.watch.ends:
			r.ask(sig.(syscall.Signal), false)
		case sig := <-r.tree.Stopped():
			r.screen.stopped(sig)
		case sig := <-r.watch.moves:
			r.screen.moved(sig)
		case <-r.screen.unstopped:
			r.screen.goOn()
		}
	}
}

// ask asks the command to end, with a signal to its process group, and lets go on what is stopped, so that it can. Asked
// for the second time, or where one cannot ask, it cuts.
func (r *commandRun) ask(sig syscall.Signal, deadline bool) {
	e := &r.ending
	switch {
	case e.begun() && deadline:
		return // the cut comes with the grace anyway
	case e.begun():
		r.cut(e.cause())
		return
	case deadline:
		e.deadline = true
	default:
		e.asked = sig
	}
	e.usage, _ = r.tree.Usage() // where there is none, the report has the command's own
	grace := time.Duration(r.options.grace)
	if grace == 0 || errors.Is(r.tree.Signal(sig), errors.ErrUnsupported) {
		r.cut(e.cause())
		return
	}
	r.tree.Signal(tty.Continue) // an error means that it has ended
	e.cutAt = time.After(grace)
}

func (r *commandRun) cut(cause string) {
	if !r.ending.cut {
		r.ending.cut, r.ending.giveUp = true, time.After(proofTimeout)
		r.tree.Cut(cause)
	}
}

// conclude waits for the proof, at most for a while.
func (r *commandRun) conclude() {
	e := &r.ending
	if !e.begun() {
		e.usage, _ = r.tree.Usage()
	}
	ctx, cancel := context.WithTimeout(context.Background(), proofTimeout)
	defer cancel()
	select {
	case <-e.giveUp:
		cancel()
	default:
	}
	e.report, e.err = r.tree.Kill(ctx, "exit")
	e.status = r.tree.Status()
	e.took = time.Since(r.began)
	e.usage.User, e.usage.System = max(e.usage.User, e.status.User), max(e.usage.System, e.status.System)
}

// runEnd is what timeout(1) would make of it, and 125 for a tree that was not proved gone.
func (r *commandRun) runEnd() runEnd {
	e := &r.ending
	died := e.status.Signal
	switch {
	case e.err != nil:
		return runEnd{code: exitOwn, err: e.err}
	case e.deadline:
		return runEnd{code: exitDeadline}
	case e.status.Known && died == 0:
		return runEnd{code: e.status.Code}
	case e.asked != 0 && (!e.status.Known || e.cut):
		died = e.asked // and not of the cut
	case !e.status.Known:
		died = syscall.SIGKILL // somebody else has killed the whole tree
	}
	return runEnd{code: exitSignal + int(died), die: died, whole: r.screen.keyed(died) && e.asked == 0}
}
