package tree

import (
	"os"

	"golang.org/x/sys/unix"
)

// widenPipe makes a pipe hold wideBytes, and says whether it does.
func widenPipe(f *os.File) bool {
	raw, err := f.SyscallConn()
	if err != nil {
		return false
	}
	var refused error
	err = raw.Control(func(fd uintptr) { _, refused = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, wideBytes) })
	return err == nil && refused == nil
}
