package sqlite

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/windows"
)

func freeSpace(path string) (int64, error) {
	dir, err := windows.UTF16PtrFromString(filepath.Dir(path)) // a folder is asked for
	if err != nil {
		return 0, err
	}
	var free uint64
	if err := windows.GetDiskFreeSpaceEx(dir, &free, nil, nil); err != nil {
		return 0, os.NewSyscallError("GetDiskFreeSpaceEx", err)
	}
	return inBytes(int64(free), 1), nil
}
