//go:build unix

package tree

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// linkPipe makes one pipe; the runtime's poller takes both ends.
func linkPipe(bool) (r, w *os.File, err error) { return os.Pipe() }

func (l *Link) look(others []*os.File) (pending Pending, unread bool) {
	raw, err := l.from.SyscallConn()
	if err != nil {
		return Unknown, false
	}
	pending = Unknown
	err = raw.Control(func(fd uintptr) {
		p := append(make([]unix.PollFd, 0, 3), unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		for _, f := range others {
			if raw, err := f.SyscallConn(); err == nil {
				raw.Control(func(fd uintptr) { p = append(p, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}) })
			}
		}
		_, err := unix.Poll(p, 0)
		for err == unix.EINTR {
			_, err = unix.Poll(p, 0)
		}
		if err != nil {
			return
		}
		switch {
		case p[0].Revents == 0:
			pending = Nothing
		case p[0].Revents&unix.POLLIN != 0:
			pending = Bytes
		default:
			pending = HungUp
		}
		unread = slices.ContainsFunc(p[1:], func(p unix.PollFd) bool { return p.Revents&unix.POLLIN != 0 })
	})
	if err != nil {
		pending = HungUp // closed here
	}
	return pending, unread
}
