//go:build unix

package tty

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// The signals of job control.
const (
	Suspend  = syscall.SIGTSTP  // the key that stops, ^Z
	Halt     = syscall.SIGSTOP  // stops whoever it is sent to
	Continue = syscall.SIGCONT  // goes on
	Input    = syscall.SIGTTIN  // a background group has read
	Output   = syscall.SIGTTOU  // a background group has changed the terminal, or written while tostop is set
	Resize   = syscall.SIGWINCH // the window has another size
)

// open goes around os.Open, which would make a terminal non-blocking.
func open() (*Terminal, error) {
	const path = "/dev/tty"
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return &Terminal{os.NewFile(uintptr(fd), path)}, nil
}

func (t *Terminal) owner() (int, error) {
	group, err := unix.IoctlGetInt(int(t.file.Fd()), unix.TIOCGPGRP)
	return group, os.NewSyscallError("tcgetpgrp", err)
}

func (t *Terminal) setOwner(group int) error {
	return os.NewSyscallError("tcsetpgrp", unix.IoctlSetPointerInt(int(t.file.Fd()), unix.TIOCSPGRP, group))
}

func ownGroup() int { return unix.Getpgrp() }

func shellGroup() int {
	leader, err := unix.Getsid(0)
	if err != nil {
		return 0
	}
	return groupOf(leader)
}

func groupOf(pid int) int {
	group, err := unix.Getpgid(pid)
	if err != nil || pid <= 1 {
		return 0
	}
	return group
}

func alive(group int) bool { return unix.Kill(-group, 0) != unix.ESRCH }

func signalGroup(sig syscall.Signal) error { return os.NewSyscallError("kill", unix.Kill(0, sig)) }
