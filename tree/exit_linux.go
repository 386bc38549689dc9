package tree

import (
	"os"
	"slices"
	"syscall"
	"time"
	"unsafe"

	"coppice.dev/coppice/internal/shim"
	"golang.org/x/sys/unix"
)

// maxRSSUnit is what ru_maxrss counts in (getrusage(2)).
const maxRSSUnit = 1 << 10

// awaitExit waits until the child has ended, and leaves it to be reaped. Meanwhile it tells of each stop, if stops is not
// nil and has room.
//
// It waits for the child's pidfd through the runtime's poller, so that a thousand trees block no thread. Stops are not to
// be had that way: they cost one, and so does a host without pidfds.
func awaitExit(p *os.Process, stops chan<- os.Signal) error {
	if stops != nil {
		return awaitStops(p.Pid, stops)
	}
	var f *os.File
	err := p.WithHandle(func(uintptr) {
		// One of our own: a duplicate of the handle would share its O_NONBLOCK, with which waitid(2) does not wait, and a
		// child that somebody traces stays uncollected until its tracer lets go of it.
		fd, err := unix.PidfdOpen(p.Pid, 0)
		if err == nil && unix.SetNonblock(fd, true) == nil {
			f = os.NewFile(uintptr(fd), "pidfd")
		}
	})
	if err != nil || f == nil {
		return awaitStops(p.Pid, nil)
	}
	defer f.Close()
	raw, err := f.SyscallConn()
	if err == nil {
		err = raw.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return err == nil && n > 0
		})
	}
	if err != nil {
		return awaitStops(p.Pid, nil)
	}
	return nil
}

func awaitStops(pid int, stops chan<- os.Signal) error {
	for {
		var info childInfo
		options := unix.WEXITED | unix.WNOWAIT
		if stops != nil {
			options |= unix.WSTOPPED
		}
		err := unix.Waitid(unix.P_PID, pid, (*unix.Siginfo)(unsafe.Pointer(&info)), options, nil)
		switch {
		case err == unix.EINTR:
		case err == nil && info.code == cldStopped:
			// Collect the stop, or it would be told for ever; the child's end stays to be reaped.
			unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WNOHANG, nil)
			select {
			case stops <- syscall.Signal(info.status):
			default:
			}
		default:
			return err
		}
	}
}

// childInfo is the part of siginfo_t that waitid(2) fills in (the layout of 64-bit systems).
type childInfo struct {
	signo, errno, code, _ int32
	pid, uid, status      int32
	_                     [100]byte
}

// cldStopped is CLD_STOPPED of siginfo(7).
const cldStopped = 5

// groupMembers are the living processes of a group and, while its leader's pid is certain, the leader's descendants
// wherever they went: the escapees that can still be seen.
func groupMembers(group int, leader bool) []Member {
	var out []Member
	seen := map[int]bool{}
	add := func(list []shim.Process) {
		for _, p := range list {
			if !p.Dead() && !seen[p.Pid] {
				seen[p.Pid] = true
				out = append(out, member(p))
			}
		}
	}
	members := shim.InGroup(group)
	if !leader && another(group, members) {
		return nil
	}
	add(members)
	if leader {
		add(shim.Descendants(group))
	}
	return out
}

// allDead says whether the group, whose leader has been collected, is over: its members are zombies, or its number is
// another's.
func allDead(group int) bool {
	members := shim.InGroup(group)
	if another(group, members) {
		return true
	}
	for _, p := range members {
		if !p.Dead() {
			return false
		}
	}
	return len(members) > 0
}

// another says whether the number of a group whose leader has been collected has been given away again. It has if there is a
// leader: the kernel keeps a number for as long as it is that of any process, group or session.
func another(group int, members []shim.Process) bool {
	return slices.ContainsFunc(members, func(p shim.Process) bool { return p.Pid == group })
}

// sweep kills the leader's descendants that are in other groups, as one read of /proc shows them. Members of the group
// itself are left to the kill of the group.
func sweep(group int) []Member {
	var out []Member
	for _, p := range shim.Descendants(group) {
		if p.Group != group && !p.Dead() {
			p.Kill()
			out = append(out, member(p))
		}
	}
	return out
}

// unlisted says why no process can be seen, or nil.
func unlisted() error {
	if !shim.OwnProc() {
		return errNoProc
	}
	return nil
}

func member(p shim.Process) Member {
	return Member{Pid: p.Pid, Parent: p.Parent, Name: p.Name, Start: p.Start}
}

// lives says whether it is that process still, and not dead.
func lives(m Member) bool { return shim.Process{Pid: m.Pid, Start: m.Start}.Alive() }

// tick is what /proc counts CPU time in: USER_HZ is 100 on every architecture that Go knows (time(7), sysconf(3)).
const tick = 10 * time.Millisecond

// sampled sums up what a root and its descendants use. What a root that is no member has reaped is the tree's.
func sampled(root int, member bool) Usage {
	var u Usage
	add := func(user, system uint64) {
		u.User += time.Duration(user) * tick
		u.System += time.Duration(system) * tick
	}
	list := shim.Descendants(root)
	if p, ok := shim.Read(root); ok {
		if member {
			list = append(list, p)
		} else {
			add(p.ReapedUser, p.ReapedSystem)
		}
	}
	for _, p := range list {
		add(p.User+p.ReapedUser, p.System+p.ReapedSystem)
		if !p.Dead() {
			u.Processes++
			u.Tasks += p.Threads
			u.Memory += p.Resident * int64(os.Getpagesize())
		}
	}
	return u
}
