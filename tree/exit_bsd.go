//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package tree

import (
	"errors"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// maxRSSUnit is what ru_maxrss counts in (getrusage(2)): bytes on macOS, kibibytes on the others.
var maxRSSUnit = func() int64 {
	if runtime.GOOS == "darwin" {
		return 1
	}
	return 1 << 10
}()

// awaitExit waits until the child has ended, and leaves it to be reaped (kqueue(2), EVFILT_PROC with NOTE_EXIT).
func awaitExit(p *os.Process, _ chan<- os.Signal) error {
	queue, err := unix.Kqueue()
	if err != nil {
		return err
	}
	defer unix.Close(queue)
	unix.CloseOnExec(queue)
	var change unix.Kevent_t
	unix.SetKevent(&change, p.Pid, unix.EVFILT_PROC, unix.EV_ADD|unix.EV_ONESHOT)
	change.Fflags = unix.NOTE_EXIT
	var got [1]unix.Kevent_t
	for {
		n, err := unix.Kevent(queue, []unix.Kevent_t{change}, got[:], nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ESRCH):
			return nil // it has ended already
		case err != nil:
			return err
		case n == 1:
			return nil
		}
	}
}
