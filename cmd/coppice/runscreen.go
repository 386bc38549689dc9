package main

import (
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"

	"coppice.dev/coppice/internal/tty"
	"coppice.dev/coppice/tree"
)

// screen is the terminal as run and its command share it.
//
// The command has a process group of its own, and a terminal signals one group alone: so it is lent to the command's group,
// and a key is delivered once. Others in run's group may need it, too, as the pager of `coppice run -- CMD | less`; and
// who is in the background stops as soon as he asks. Who asks gets it: a stop of the command by SIGTTIN or SIGTTOU while
// run's group has the terminal lends it; these signals at run while the command's has it take it back.
//
// When the command is stopped, run takes the terminal back and stops its own group by the same signal, pager and script
// included: that is what the shell waits for, and what the key would have done without run between.
type screen struct {
	tty      *tty.Terminal // nil without a controlling terminal, or one that is not shared
	watch    *signalWatch
	tree     *tree.Tree
	isolated bool

	before *term.State // the modes to put back at the end; nil while they were never the command's
	during *term.State // the command's, from when it was stopped
	group  int         // of the command or one of its own jobs, which last had the terminal; 0 if not known
	isLent bool        // to the best of our knowledge the tree has the terminal

	stopping  bool             // the command was told to stop, and has not yet
	suspended syscall.Signal   // what stopped the command, and then run, or so it has tried
	resume    func()           // ends that
	unstopped <-chan time.Time // that it was not stopped
}

// stopTimeout is how long after its own stop run must have been stopped: the kernel stops no group in whose session nobody
// could let it go on (an orphaned one, setpgid(2)), and tells nobody.
const stopTimeout = 300 * time.Millisecond

func openScreen(isolated bool, watch *signalWatch) *screen {
	s := &screen{watch: watch, isolated: isolated}
	if !isolated {
		s.tty, _ = tty.Open() // without one there is nothing to share
	}
	return s
}

// lend lets the command start with the terminal, if it is run's to lend and both ends of run are there. Of several runs in
// a script's background, which read nothing, none may take it from the script; and a pager behind a pipe may be setting the
// terminal's modes right now, which would be lost between the look at them and the lending. What is at a pipe asks.
func (s *screen) lend(spec *tree.Spec) {
	if s.foreground() && isTerminal(spec.Stdin) && isTerminal(spec.Stdout) {
		s.before, _ = s.tty.Modes()
		spec.Foreground, s.isLent = s.tty.File(), true
	}
}

// lent is for after the start; t is nil if nothing was started, and yet the terminal may have been given away.
func (s *screen) lent(t *tree.Tree) {
	s.tree = t
	if s.tty == nil || t == nil {
		return
	}
	if owner, err := s.tty.Owner(); err == nil && owner != tty.OwnGroup() && s.isLent {
		s.group = owner
	}
}

func isTerminal(f *os.File) bool { return f != nil && term.IsTerminal(int(f.Fd())) }

func (s *screen) foreground() bool {
	if s.tty == nil {
		return false
	}
	owner, err := s.tty.Owner()
	return err == nil && owner == tty.OwnGroup()
}

// leader is the command's process group: that of the tree's oldest process.
func (s *screen) leader() int {
	members, _ := s.tree.Members()
	var oldest tree.Member
	for i, m := range members {
		if i == 0 || m.Start < oldest.Start || m.Start == oldest.Start && m.Pid < oldest.Pid {
			oldest = m
		}
	}
	return tty.GroupOf(oldest.Pid)
}

// setOwner moves the terminal. From the background that would stop run's group, unless run ignores it meanwhile.
func (s *screen) setOwner(group int) error {
	signal.Ignore(tty.Output)
	if tty.CatchStops {
		defer signal.Notify(s.watch.moves, tty.Output)
	}
	return s.tty.SetOwner(group)
}

// give lends the terminal to a group of the tree, with the modes in which it was left there.
func (s *screen) give(group int) {
	if group == 0 || !s.foreground() {
		return
	}
	if modes, err := s.tty.Modes(); err == nil {
		s.before = modes
	}
	if s.during != nil {
		s.tty.SetModes(s.during) // an error leaves it in modes that a shell can live with
		s.during = nil
	}
	if s.setOwner(group) == nil {
		s.group, s.isLent = group, true
	}
}

// take takes the terminal back, with the modes that it had before.
func (s *screen) take() {
	s.during, _ = s.tty.Modes()
	if s.reclaim() == nil && s.before != nil {
		s.tty.SetModes(s.before) // an error means that there is no terminal any more
	}
}

// reclaim takes the terminal back as it is: who asked for it has set the modes, or is about to.
func (s *screen) reclaim() error {
	if owner, err := s.tty.Owner(); err == nil && owner != tty.OwnGroup() {
		s.group = owner
	}
	s.isLent = false
	return s.setOwner(tty.OwnGroup())
}

// stopped follows the command, which a signal has stopped.
func (s *screen) stopped(sig os.Signal) {
	n, _ := sig.(syscall.Signal)
	if s.tty == nil {
		return // no key did that, and perhaps nobody could let run go on: the deadline holds
	}
	if s.stopping {
		n = tty.Suspend // it may have stopped to ask for the terminal first, and letting it go on would undo the other stop
	}
	if n == tty.Input || n == tty.Output {
		if s.foreground() {
			s.give(s.leader())
			s.tree.Signal(tty.Continue) // an error means that it has ended
			return
		}
	}
	if s.isLent {
		s.take()
	}
	s.stop(n)
}

// stop stops run and its group.
func (s *screen) stop(n syscall.Signal) {
	s.resumed()
	s.suspended, s.unstopped = n, time.After(stopTimeout)
	if n == tty.Halt || n == tty.Output && !tty.CatchStops {
		n = tty.Suspend // SIGSTOP would stop a group that nobody can let go on, and the other is ignored now
	}
	s.resume = tty.StopGroup(n) // run is stopped about here, and goes on by SIGCONT
}

// moved is what run itself was told by a signal of job control.
func (s *screen) moved(sig os.Signal) {
	switch sig {
	case tty.Continue:
		s.continued()
	case tty.Suspend:
		s.stopToo()
	case tty.Resize:
		s.tree.Signal(tty.Resize)
	case tty.Input, tty.Output:
		if !s.isLent {
			s.stopToo() // all of run's group is in the background
			return
		}
		s.reclaim() // an error means that there is no terminal any more
		tty.SignalGroup(tty.Continue)
	}
}

// stopToo stops the command, and run as soon as that has happened. A session without a terminal is an orphaned group:
// only SIGSTOP stops it, and run has nothing to wait for.
func (s *screen) stopToo() {
	if !s.isolated {
		s.stopping = true
		s.tree.Signal(tty.Suspend) // an error means that it has ended
		return
	}
	s.tree.Signal(tty.Halt)
	s.stop(tty.Suspend)
}

// continued lets the command go on, in the foreground if that is where run is.
func (s *screen) continued() {
	was := s.resumed()
	if s.tty != nil {
		owner, err := s.tty.Owner()
		switch {
		case err != nil:
		case owner != tty.OwnGroup() && owner == tty.ShellGroup():
			s.isLent = false // whoever stopped run from outside made the shell take it
		case owner == tty.OwnGroup() && (was != 0 || s.isLent):
			s.giveBack()
		}
	}
	s.tree.Signal(tty.Continue) // an error means that it has ended
}

// goOn is for a run that has tried to stop and was not stopped. Where no key can stop anything the key does nothing; who
// stopped otherwise waits for the deadline.
func (s *screen) goOn() {
	s.unstopped = nil
	if s.suspended != tty.Suspend {
		return // and if it was stopped after all, the terminal is still to be given back
	}
	s.resumed()
	s.giveBack()
	s.tree.Signal(tty.Continue) // an error means that it has ended
}

// giveBack lends the terminal to whoever of the tree had it last, or else to the command.
func (s *screen) giveBack() {
	group := s.group
	if group == 0 || !tty.Alive(group) {
		group = s.leader()
	}
	s.give(group)
}

// resumed ends a suspension and tells by which signal it was.
func (s *screen) resumed() syscall.Signal {
	was := s.suspended
	s.stopping, s.suspended, s.unstopped = false, 0, nil
	if was != 0 {
		s.resume()
	}
	return was
}

// keyed says whether a command that died of a signal may have got it from a key: then run's own group has not, and it is
// handed on, so that one ^C ends a script's loop as it would without run.
func (s *screen) keyed(sig syscall.Signal) bool {
	return s.isLent && (sig == syscall.SIGINT || sig == syscall.SIGQUIT)
}

// restore leaves the terminal as it was found, whatever the command made of it. It is for after the tree's end: a
// foreground group without a process was certainly the tree's.
func (s *screen) restore() {
	if s.tty == nil {
		return
	}
	owner, err := s.tty.Owner()
	switch {
	case err != nil || owner == tty.OwnGroup(): // a pager that has it, has it as it wants it
	case s.isLent || s.before != nil && !tty.Alive(owner):
		s.take()
		tty.SignalGroup(tty.Continue) // a pager may have asked for it when the end was near
	}
	s.tty.Close() // only closes a descriptor
}
