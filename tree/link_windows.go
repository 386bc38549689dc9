package tree

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/windows"
)

func (l *Link) workerEnds() (read, write uint64) {
	return uint64(l.worker[0].Fd()), uint64(l.worker[1].Fd())
}

var peekNamedPipe = windows.NewLazySystemDLL("kernel32.dll").NewProc("PeekNamedPipe")

func (l *Link) pending() Pending {
	raw, err := l.from.SyscallConn()
	if err != nil {
		return Unknown
	}
	answer := Unknown
	err = raw.Control(func(fd uintptr) {
		var left uint32
		ok, _, err := peekNamedPipe.Call(fd, 0, 0, 0, uintptr(unsafe.Pointer(&left)), 0)
		switch {
		case ok != 0 && left > 0:
			answer = Bytes
		case ok != 0:
			answer = Nothing
		case errors.Is(err, windows.ERROR_BROKEN_PIPE):
			answer = HungUp
		}
	})
	if err != nil {
		return HungUp
	}
	return answer
}
