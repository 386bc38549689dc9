package tree

import (
	"bytes"
	"crypto/rand"
	"os"

	"golang.org/x/sys/unix"
)

// Nothing in this file has been run yet: it was built and vetted for macOS, on another system. See docs/PLATFORMS.md.

// zombie is SZOMB of sys/proc.h.
const zombie = 5

// entry is one process as one read of the process table showed it.
type entry struct {
	Member
	group int
	state int8
}

func toEntry(p *unix.KinfoProc) entry {
	name := p.Proc.P_comm[:]
	if n := bytes.IndexByte(name, 0); n >= 0 {
		name = name[:n]
	}
	return entry{group: int(p.Eproc.Pgid), state: p.Proc.P_stat, Member: Member{Pid: int(p.Proc.P_pid), Parent: int(p.Eproc.Ppid),
		Name: string(name), Start: uint64(p.Proc.P_starttime.Sec)*1e6 + uint64(p.Proc.P_starttime.Usec)}}
}

// table reads the living processes of the system. What cannot be read is not there: the sweep is a best effort.
func table() (out []entry) {
	list, err := unix.SysctlKinfoProcSlice("kern.proc.all")
	if err != nil {
		return nil
	}
	for i := range list {
		if e := toEntry(&list[i]); e.state != zombie {
			out = append(out, e)
		}
	}
	return out
}

func lives(m Member) bool {
	p, err := unix.SysctlKinfoProc("kern.proc.pid", m.Pid)
	if err != nil {
		return false
	}
	now := toEntry(p)
	return now.Start == m.Start && now.Pid == m.Pid && now.state != zombie
}

// descendants are those of the root whose parents lead back to it.
func descendants(all []entry, root int) (out []entry) {
	inside := map[int]bool{root: true}
	for grown := true; grown; {
		grown = false
		for _, e := range all {
			if inside[e.Parent] && !inside[e.Pid] {
				inside[e.Pid], grown = true, true
				out = append(out, e)
			}
		}
	}
	return out
}

// unlisted says that processes can be listed here.
func unlisted() error { return nil }

// groupMembers are the living processes of a group and, while its leader's pid is certain, the leader's descendants
// wherever they went.
func groupMembers(group int, leader bool) (out []Member) {
	all := table()
	for _, e := range all {
		if e.group == group {
			out = append(out, e.Member)
		}
	}
	if leader {
		for _, e := range descendants(all, group) {
			if e.group != group {
				out = append(out, e.Member)
			}
		}
	}
	return out
}

// allDead says whether nobody in the group lives; who is left of it are zombies.
func allDead(group int) bool {
	list, err := unix.SysctlKinfoProcSlice("kern.proc.pgrp", group)
	for i := range list {
		if toEntry(&list[i]).state != zombie {
			return false
		}
	}
	return err == nil && len(list) > 0
}

// sweep kills the leader's descendants that are in other groups.
func sweep(group int) (out []Member) {
	for _, e := range descendants(table(), group) {
		if e.group != group && end(e.Member) {
			out = append(out, e.Member)
		}
	}
	return out
}

// end kills one process. Without a pidfd there is an instant between the look and the signal in which the id could come
// to another; ids are not given again soon.
func end(m Member) bool {
	return m.Pid > 1 && m.Pid != os.Getpid() && lives(m) && unix.Kill(m.Pid, unix.SIGKILL) == nil
}

// markEnv is the name in a command's environment by which its descendants are found again wherever they went. One that
// empties its environment before an exec is not.
const markEnv = "COPPICE_TREE"

// newMark makes an entry that no other tree has.
func newMark() string { return markEnv + "=" + rand.Text() }

// sweepMarked kills the processes whose environment has the mark, as it was when they were executed
// (KERN_PROCARGS2). That of another user's process cannot be read.
func sweepMarked(mark string) (out []Member) {
	for _, e := range table() {
		args, err := unix.SysctlRaw("kern.procargs2", e.Pid)
		if err == nil && bytes.Contains(args, []byte("\x00"+mark+"\x00")) && end(e.Member) {
			out = append(out, e.Member)
		}
	}
	return out
}

// sampled is not there: the table's account of CPU time and memory is not kept by this system any more.
func sampled(int, bool) Usage { return Usage{} }
