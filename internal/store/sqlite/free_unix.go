//go:build linux || darwin || freebsd

package sqlite

import (
	"os"

	"golang.org/x/sys/unix"
)

func freeSpace(path string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, os.NewSyscallError("statfs", err)
	}
	return inBytes(int64(st.Bavail), int64(st.Bsize)), nil
}
