package tree

import (
	"coppice.dev/coppice/internal/shim"
	"golang.org/x/sys/unix"
)

// maxRSSUnit is what ru_maxrss counts in (getrusage(2)).
const maxRSSUnit = 1 << 10

// awaitExit waits until the child has ended, and leaves it to be reaped.
func awaitExit(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return err
		}
	}
}

// groupMembers are the living processes of a group and, while its leader's pid is certain, the leader's descendants
// wherever they went: the escapees that can still be seen.
func groupMembers(group int, leader bool) []Member {
	var out []Member
	seen := map[int]bool{}
	add := func(list []shim.Process) {
		for _, p := range list {
			if p.State != 'Z' && !seen[p.Pid] {
				seen[p.Pid] = true
				out = append(out, Member{Pid: p.Pid, Parent: p.Parent, Name: p.Name, Start: p.Start})
			}
		}
	}
	add(shim.InGroup(group))
	if leader {
		add(shim.Descendants(group))
	}
	return out
}

// allDead says whether the group has members and every one of them is a zombie.
func allDead(group int) bool {
	members := shim.InGroup(group)
	for _, p := range members {
		if p.State != 'Z' {
			return false
		}
	}
	return len(members) > 0
}

// sweep kills the leader's descendants that are in other groups, as one read of /proc shows them. Members of the group
// itself are left to the kill of the group.
func sweep(group int) []Member {
	var out []Member
	for _, p := range shim.Descendants(group) {
		if p.Group != group && p.State != 'Z' {
			p.Kill()
			out = append(out, Member{Pid: p.Pid, Parent: p.Parent, Name: p.Name, Start: p.Start})
		}
	}
	return out
}

func anyAlive(members []Member) bool {
	for _, m := range members {
		if p, ok := shim.Read(m.Pid); ok && p.Start == m.Start && p.State != 'Z' {
			return true
		}
	}
	return false
}
