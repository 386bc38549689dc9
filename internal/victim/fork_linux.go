package victim

import (
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fork makes a copy of this process with this one thread. The child runs act and ends. It may use nothing of Go's runtime:
// whatever another thread held is held for ever.
func fork(act func(*orders), o *orders) int {
	pid, errno := clone(act, o, 0)
	if errno != 0 {
		fail("fork", errno)
	}
	return pid
}

// clone is fork with namespaces to make, and tells of a refusal.
func clone(act func(*orders), o *orders, flags uintptr) (int, syscall.Errno) {
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD)|flags, 0, 0, 0, 0, 0)
	if pid == 0 && errno == 0 {
		act(o)
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	return int(pid), errno
}

// orders are what a forked child needs, allocated before the fork.
type orders struct {
	depth int           // of the chain that it forks
	flags uintptr       // the namespaces that each of the chain makes
	width int           // of the children that it forks
	life  unix.Timespec // how long it sleeps
	pause unix.Timespec // between two forks, or until the next one
	maps  [3]entry      // what a user namespace is told
	ready [6]byte
}

// entry is a file of /proc and what to write there.
type entry struct {
	path   [24]byte
	line   [40]byte
	length uintptr
}

func (e *entry) set(path, line string) {
	copy(e.path[:len(e.path)-1], path)
	e.length = uintptr(copy(e.line[:], line))
}

func newOrders() *orders {
	return &orders{ready: [6]byte([]byte(Ready + "\n")), life: unix.NsecToTimespec(int64(Lifetime))}
}

// dieAtOnce is what becomes a zombie.
//
//go:nosplit
//go:norace
func dieAtOnce(*orders) {}

// rest sleeps for the lifetime and says nothing.
//
//go:nosplit
//go:norace
func rest(o *orders) {
	syscall.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&o.life)), 0, 0)
}

// stay says that it is ready and sleeps for the lifetime; before that it forks a chain, as deep as it is told.
//
//go:nosplit
//go:norace
func stay(o *orders) {
	if o.flags != 0 {
		mapSelf(o)
	}
	for i := 1; i < o.depth; i++ {
		pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD)|o.flags, 0, 0, 0, 0, 0)
		if errno != 0 {
			pid, _, _ = syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		}
		if pid != 0 {
			break
		}
		if o.flags != 0 {
			mapSelf(o)
		}
	}
	syscall.RawSyscall(unix.SYS_WRITE, Witness, uintptr(unsafe.Pointer(&o.ready)), unsafe.Sizeof(o.ready))
	rest(o)
}

// mapSelf gives the user namespace its one user and group: who has none may make no other (user_namespaces(7)).
//
//go:nosplit
//go:norace
func mapSelf(o *orders) {
	for i := 0; i < len(o.maps); i++ {
		m := &o.maps[i]
		fd, _, errno := syscall.RawSyscall6(unix.SYS_OPENAT, ^uintptr(99), uintptr(unsafe.Pointer(&m.path)), unix.O_WRONLY, 0, 0, 0)
		if errno != 0 {
			return
		}
		syscall.RawSyscall(unix.SYS_WRITE, fd, uintptr(unsafe.Pointer(&m.line)), m.length)
		syscall.RawSyscall(unix.SYS_CLOSE, fd, 0, 0)
	}
}

// wide has many children: as many as its argument says.
func wide(args []string) int {
	o := newOrders()
	for range number(args) {
		fork(stay, o)
	}
	say(Ready)
	return untilTold()
}

// deep is a chain, as deep as its argument says.
func deep(args []string) int {
	o := newOrders()
	o.depth = number(args) - 1
	fork(stay, o)
	say(Ready)
	return untilTold()
}

// zombies leaves twenty dead children uncollected.
func zombies([]string) int {
	for range 20 {
		pid := fork(dieAtOnce, nil)
		// Until it is dead, and no further: it is left to be collected.
		for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
		}
	}
	say(Ready)
	return untilTold()
}

// births bounds a forker and a hopper: so many times it forks, and it is over.
const births = 20000

// forker forks without end, a thousand times a second as far as the host keeps up: each child dies at once, and the
// parent, in a session of its own, lives.
func forker([]string) int {
	o := newOrders()
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &o.pause); err != nil {
		fail("look at the clock", err)
	}
	fork(beat, o)
	say(Ready)
	return untilTold()
}

//go:nosplit
//go:norace
func beat(o *orders) {
	syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
	syscall.RawSyscall(unix.SYS_WRITE, Witness, uintptr(unsafe.Pointer(&o.ready)), unsafe.Sizeof(o.ready))
	for i := 0; i < births; i++ {
		if o.pause.Nsec += 1e6; o.pause.Nsec >= 1e9 {
			o.pause.Sec, o.pause.Nsec = o.pause.Sec+1, o.pause.Nsec-1e9
		}
		syscall.RawSyscall6(unix.SYS_CLOCK_NANOSLEEP, unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, uintptr(unsafe.Pointer(&o.pause)), 0, 0, 0)
		pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if errno == 0 && pid == 0 {
			return
		}
		syscall.RawSyscall6(unix.SYS_WAIT4, pid, 0, 0, 0, 0, 0)
	}
}

// hopper hops without end: a process forks and ends, the child forks and ends, a fifth of a millisecond later, four at
// once, each in a session of its own. Whoever kills what it has seen is always late.
func hopper([]string) int {
	o := newOrders()
	o.pause.Nsec = 200e3
	for range 4 {
		fork(hop, o)
	}
	say(Ready)
	return untilTold()
}

//go:nosplit
//go:norace
func hop(o *orders) {
	for i := 0; i < births; i++ {
		syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
		syscall.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&o.pause)), 0, 0)
		pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if pid != 0 || errno != 0 {
			return
		}
	}
}

// filler forks sleepers until the limit of tasks refuses one more, or 200 are there. They are silent: only the one that
// forked them says when it is over.
func filler([]string) int {
	o := newOrders()
	o.width = 200
	fork(fill, o)
	say(Ready)
	return untilTold()
}

//go:nosplit
//go:norace
func fill(o *orders) {
	for i := 0; i < o.width; i++ {
		pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if errno != 0 {
			break
		}
		if pid == 0 {
			rest(o)
			return
		}
	}
	syscall.RawSyscall(unix.SYS_WRITE, Witness, uintptr(unsafe.Pointer(&o.ready)), unsafe.Sizeof(o.ready))
	rest(o)
}

// nested makes a user and PID namespace of its own, in that another, and so on, four deep. Where it may not, the chain is
// there without them: without capabilities, uid 0 cannot be mapped again.
func nested([]string) int {
	const own = unix.CLONE_NEWUSER | unix.CLONE_NEWPID
	o := newOrders()
	o.depth, o.flags = 4, own
	o.maps[0].set("/proc/self/setgroups", "deny")
	o.maps[1].set("/proc/self/uid_map", fmt.Sprintf("%d %d 1", os.Geteuid(), os.Geteuid()))
	o.maps[2].set("/proc/self/gid_map", fmt.Sprintf("%d %d 1", os.Getegid(), os.Getegid()))
	_, errno := clone(stay, o, own)
	if tell("nest", "the kernel", errnoOrNil(errno)); errno != 0 {
		o.flags = 0
		fork(stay, o)
	}
	say(Ready)
	return untilTold()
}

func errnoOrNil(errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

// leaderless ends its main thread and lives on in others: /proc shows a zombie.
func leaderless([]string) int {
	go func() {
		for limit := time.Now().Add(Lifetime / 4); stateOf("self") != 'Z'; time.Sleep(time.Millisecond) {
			if time.Now().After(limit) {
				fail("end the main thread", os.ErrDeadlineExceeded)
			}
		}
		say(Ready)
		os.Exit(untilTold())
	}()
	syscall.Syscall(unix.SYS_EXIT, 0, 0, 0) // not RawSyscall, or the runtime would wait for this thread for ever
	return 0                                // never
}

// scribbler leaves a daemon that writes on the witness each half millisecond, and so shows when it still lived.
func scribbler([]string) int {
	spawn("daemon-middle", &syscall.SysProcAttr{Setsid: true}, "scribbler-last")
	say(Ready)
	return untilTold()
}

func scribblerLast([]string) int {
	rename("kworker/0:0")
	say(Ready)
	for range int(Lifetime / (500 * time.Microsecond)) {
		var now unix.Timespec
		unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
		say(Count, formatNano(now.Nano()))
		time.Sleep(500 * time.Microsecond)
	}
	return 94
}
