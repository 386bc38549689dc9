// Package tty is how the program stands to the terminal and to the shell that it was started from: whose group has
// the terminal, in which modes it is, and how to stop and to die so that a shell sees it.
//
// The words are those of job control (termios(4), credentials(7)): of all process groups of a session, one is the
// terminal's foreground group; keys signal that one, and any other that reads stops. Where a system has none of that
// (Windows), Open says so with errors.ErrUnsupported and the signals below are none.
//
// CatchStops says whether a program that takes Suspend, Input and Output by os/signal can still be stopped by them
// afterwards: the Go runtime keeps their handlers for ever (sigInstallGoHandler in runtime/signal_unix.go), and only on Linux
// StopGroup goes around it. Elsewhere leave them alone.
//
// Nothing here handles a signal. A call that changes the terminal from the background raises Output in the whole of
// the caller's group, unless the caller ignores that signal meanwhile.
package tty

import (
	"os"
	"syscall"

	"golang.org/x/term"
)

// Terminal is the controlling terminal of this process's session. Its methods may be called from any goroutine.
type Terminal struct{ file *os.File }

// Open opens the controlling terminal, wherever the standard streams lead. The error is ENXIO where there is none, as
// under cron. The caller closes it.
func Open() (*Terminal, error) { return open() }

// File is the terminal itself, which stays the Terminal's.
func (t *Terminal) File() *os.File { return t.file }

// Close closes this descriptor of the terminal and changes nothing else.
func (t *Terminal) Close() error { return t.file.Close() }

// Owner is the foreground process group. There may be no process left in it.
func (t *Terminal) Owner() (int, error) { return t.owner() }

// SetOwner makes a process group of this session the foreground one.
func (t *Terminal) SetOwner(group int) error { return t.setOwner(group) }

// Modes are what stty(1) shows: echo, line editing, which keys signal.
func (t *Terminal) Modes() (*term.State, error) { return term.GetState(int(t.file.Fd())) }

// SetModes sets them at once, without waiting for output that nobody may be reading.
func (t *Terminal) SetModes(m *term.State) error { return term.Restore(int(t.file.Fd()), m) }

// OwnGroup is the process group of this process.
func OwnGroup() int { return ownGroup() }

// ShellGroup is the process group of the session's leader, which as a rule is the shell; 0 if it is not known.
func ShellGroup() int { return shellGroup() }

// GroupOf is the process group of a process of this session; 0 if there is none.
func GroupOf(pid int) int { return groupOf(pid) }

// Alive says whether a process group has a process, be it a dead one that was not collected yet.
func Alive(group int) bool { return alive(group) }

// Ignored says whether a signal of job control is ignored now. os/signal knows that only of HUP and INT. Where it cannot
// be found out, the answer is no.
func Ignored(sig syscall.Signal) bool { return ignored(sig) }

// SignalGroup sends a signal to every process of the own process group, this one included: what the terminal would have
// done had the group been its foreground one.
func SignalGroup(sig syscall.Signal) error { return signalGroup(sig) }

// StopGroup stops the own process group, this process included, by Suspend, Input or Output, with the signal's default
// action whatever os/signal made of it. Call the function that it returns once the process goes on: it puts the action
// back. The process may be stopped a moment later than this returns, and is not stopped at all where nobody of its session
// could let it go on (an orphaned group, setpgid(2)).
func StopGroup(sig syscall.Signal) (resume func()) { return stopGroup(sig) }

// Die ends this process by a signal, so that whoever waits for it sees that signal, and leaves no core file. With whole,
// the signal goes to the whole of the own process group, as one of the terminal's keys would. It returns only where that
// cannot be done.
func Die(sig syscall.Signal, whole bool) { die(sig, whole) }
