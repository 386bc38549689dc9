package tree

import (
	"bytes"
	"path/filepath"
	"strconv"

	"coppice.dev/coppice/internal/cgroup"
	"golang.org/x/sys/unix"
)

// oomCount is how many processes the kernel had killed for want of memory since the host's start; negative if it does not tell.
type oomCount int64

// hostKills is where the host tells.
const hostKills = "/proc/vmstat"

// hostOOM reads it. It costs each start some ten microseconds; what else there is to know is looked up at a death alone.
func hostOOM() oomCount { return oomCount(oomKills(hostKills)) }

// rose says whether the kernel has since killed one that may have been ours.
func (before oomCount) rose() bool {
	own, err := cgroup.Own()
	if err != nil {
		own.Dir = ""
	}
	return before.roseIn(hostKills, own.Dir)
}

// roseIn reads the host's count again. It has all containers of the host in it: where the engine's own cgroup, if its folder is
// known, keeps the account and has never had one killed, it was another's.
func (before oomCount) roseIn(host, own string) bool {
	if before < 0 || oomKills(host) <= int64(before) {
		return false
	}
	return own == "" || oomKills(filepath.Join(own, "memory.events")) != 0
}

// starved asks the tree's own cgroup. It is not told where there is none, where that has no memory controller, or where the
// command may have left it.
func (h *shimmed) starved() (oom OOM, told bool) {
	if h.leaf == nil {
		return OOMNone, false
	}
	switch n := oomKills(filepath.Join(h.leaf.path, "memory.events")); {
	case n > 0:
		return OOMCertain, true
	case n == 0 && h.bare == nil:
		return OOMNone, true
	}
	return OOMNone, false
}

// oomKills reads the line oom_kill of vmstat (Linux 4.13) or of a cgroup's memory.events, where it counts whoever killed for
// want of memory, be it the cgroup's limit or the host's end; a group that is killed as one (memory.oom.group) counts by its
// processes. It is raised before the kill is sent. Negative if it cannot be read.
func oomKills(file string) int64 {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	defer unix.Close(fd)
	var room [16 << 10]byte // vmstat has 4 KiB; in the small pieces of os.ReadFile, each of which counts anew, it takes three times as long
	text := room[:0]
	for len(text) < len(room) {
		n, err := unix.Read(fd, room[len(text):])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			break
		}
		text = room[:len(text)+n]
	}
	_, after, found := bytes.Cut(text, []byte("\noom_kill "))
	line, _, whole := bytes.Cut(after, []byte("\n"))
	if n, err := strconv.ParseInt(string(line), 10, 64); found && whole && err == nil {
		return n
	}
	return -1
}
