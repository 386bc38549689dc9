//go:build unix

package tree

import (
	"os"

	"golang.org/x/sys/unix"
)

// linkPipe makes one pipe; the runtime's poller takes both ends.
func linkPipe(bool) (r, w *os.File, err error) { return os.Pipe() }

func (l *Link) pending() Pending {
	raw, err := l.from.SyscallConn()
	if err != nil {
		return Unknown
	}
	answer := Unknown
	err = raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		for err == unix.EINTR {
			n, err = unix.Poll(p, 0)
		}
		switch {
		case err != nil:
		case n == 0:
			answer = Nothing
		case p[0].Revents&unix.POLLIN != 0:
			answer = Bytes
		default:
			answer = HungUp
		}
	})
	if err != nil {
		return HungUp // closed here
	}
	return answer
}
