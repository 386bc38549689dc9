package victim

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
)

// Narrow is how many bytes of memory a cgroup of NarrowCgroup has.
const Narrow = 32 << 20

// NarrowCgroup makes a cgroup in which whoever needs more memory than Narrow is killed by the kernel for it. Who starts a victim
// moves it there by NarrowCgroup's cgroup.procs, and removes the folder when it has ended. An error says that this host lets
// nobody like us make one.
func NarrowCgroup() (dir string, err error) {
	for _, version := range []struct {
		mount, most, swap string
		swapped           int
	}{
		{"/sys/fs/cgroup", "memory.max", "memory.swap.max", 0},
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", Narrow}, // with the memory in it
	} {
		// No folder is made but in a hierarchy that has the controller: /sys/fs/cgroup may be a file system of another kind.
		if _, bad := os.Stat(filepath.Join(version.mount, "cgroup.procs")); bad != nil {
			err = errors.Join(err, bad)
			continue
		}
		dir, bad := os.MkdirTemp(version.mount, "coppice-narrow-")
		if bad == nil {
			bad = write(filepath.Join(dir, version.most), Narrow)
		}
		if bad == nil {
			write(filepath.Join(dir, version.swap), version.swapped) // an error: the host has no swap
			return dir, nil
		}
		os.Remove(dir)
		err = errors.Join(err, bad)
	}
	return "", err
}

func write(file string, n int) error { return os.WriteFile(file, []byte(strconv.Itoa(n)), 0o644) }
