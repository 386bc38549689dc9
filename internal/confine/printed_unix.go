//go:build unix

package confine

import (
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// ReadPrinted reads from the pipe that a worker prints into, as f.Read does. read is called with their number right after bytes have left
// the pipe, under the same lock: whoever holds the lock and finds the pipe empty (tree.Link.Look) knows that read was called for
// everything that had been printed by then.
func ReadPrinted(f *os.File, b []byte, lock sync.Locker, read func(n int)) (n int, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		lock.Lock()
		defer lock.Unlock()
		for {
			n, failed = unix.Read(int(fd), b)
			switch failed {
			case unix.EINTR:
				continue
			case unix.EAGAIN:
				return false
			}
			read(max(n, 0))
			return true
		}
	})
	switch {
	case err != nil:
		return 0, err
	case failed != nil:
		return 0, os.NewSyscallError("read", failed)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}
