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
	return inBytes(st.F_bavail, int64(st.F_bsize)), nil
}
