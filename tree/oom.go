package tree

import "syscall"

// OOM says whether the kernel has killed a command for want of memory. Nobody is told that of a process: all that there is are
// counts, of the host and of each cgroup, so that only a cgroup of the tree's own makes it certain.
//
// It is looked for when a command has died of a SIGKILL that this package did not send, or unseen with its whole tree. It tells
// nothing of the other processes of the tree, nor of a command that outlives the one that was killed, as a shell does; and a
// command that finds no memory by itself (malloc's NULL, MemoryError, "runtime: out of memory") has not been killed.
type OOM string

const (
	// OOMNone: nothing speaks for it: the count has not risen; or the system keeps none, as all but Linux (4.13).
	OOMNone OOM = ""
	// OOMPerhaps: since the command's start the kernel has killed some process of the host for want of memory, and, as far as the
	// engine's own cgroup is accounted for, one of that cgroup since it was made. Nobody can tell whether it was this one.
	OOMPerhaps OOM = "perhaps"
	// OOMCertain: it has killed a process in the tree's own cgroup for that (rung "cgroup", where that has the memory controller).
	OOMCertain OOM = "yes"
)

// starved judges how a command ended that this package has not cut. before is the host's count at its start.
func starved(h holder, s Status, before oomCount) OOM {
	if s.Known && s.Signal != syscall.SIGKILL {
		return OOMNone
	}
	if l, ok := h.(interface{ starved() (OOM, bool) }); ok {
		if oom, told := l.starved(); told {
			return oom
		}
	}
	if before.rose() {
		return OOMPerhaps
	}
	return OOMNone
}
