package victim

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// rename changes the name that /proc shows of the main thread, and so of the process.
func rename(name string) {
	os.WriteFile("/proc/self/comm", []byte(name), 0)
}

// fork makes a copy of this process with this one thread. The child runs act and ends. It may use nothing of Go's runtime:
// whatever another thread held is held for ever.
func fork(act func(*orders), o *orders) int {
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		fail("fork", errno)
	}
	if pid == 0 {
		act(o)
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	return int(pid)
}

// orders are what a forked child needs, allocated before the fork.
type orders struct {
	depth int
	pause unix.Timespec
	ready [6]byte
}

func newOrders() *orders { return &orders{ready: [6]byte([]byte(Ready + "\n"))} }

// dieAtOnce is what becomes a zombie.
//
//go:nosplit
//go:norace
func dieAtOnce(*orders) {}

// stay says that it is ready and sleeps for the lifetime; before that it forks a chain, as deep as it is told.
//
//go:nosplit
//go:norace
func stay(o *orders) {
	for i := 1; i < o.depth; i++ {
		if pid, _, _ := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0); pid != 0 {
			break
		}
	}
	syscall.RawSyscall(unix.SYS_WRITE, Witness, uintptr(unsafe.Pointer(&o.ready)), unsafe.Sizeof(o.ready))
	syscall.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&o.pause)), 0, 0)
}

// wide has many children: as many as its argument says.
func wide(args []string) int {
	o := newOrders()
	o.pause.Sec = int64(Lifetime / time.Second)
	for range number(args) {
		fork(stay, o)
	}
	say(Ready)
	return untilTold()
}

// deep is a chain, as deep as its argument says.
func deep(args []string) int {
	o := newOrders()
	o.pause.Sec = int64(Lifetime / time.Second)
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

// hops bounds a forker: so many times it forks, a fifth of a millisecond apart, and it is over.
const hops = 20000

// forker hops for ever: a process forks and ends, the child forks and ends, four times at once, each in a session of its
// own. Whoever kills what it has seen is always late.
func forker([]string) int {
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
	for i := 0; i < hops; i++ {
		syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
		syscall.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&o.pause)), 0, 0)
		pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if pid != 0 || errno != 0 {
			return
		}
	}
}

// killer sends its parent all signals in turn, three times. args[0] is the PID namespace of the test: in another one the
// parent is PID 1, and gets KILL and STOP too; a subreaper cannot be safe from those.
func killer(args []string) int {
	parent, inside := shimAbove(args[0])
	for range 3 {
		for sig := syscall.Signal(1); sig <= 64; sig++ {
			if inside || sig != syscall.SIGKILL && sig != syscall.SIGSTOP {
				syscall.Kill(parent, sig)
			}
		}
	}
	say(Ready)
	return untilTold()
}

// starver takes from its parent the right to any descriptor, which prlimit(2) permits to the same user: poll(2) fails when
// it is asked to watch more than the limit. Then a signal makes the parent poll again.
func starver(args []string) int {
	parent, _ := shimAbove(args[0])
	say(Ready)
	unix.Prlimit(parent, unix.RLIMIT_NOFILE, &unix.Rlimit{}, nil)
	for {
		syscall.Kill(parent, syscall.SIGCHLD)
		time.Sleep(time.Millisecond)
	}
}

// shimAbove is the parent, which is certainly a shim, or else the victim ends. namespace is the test's PID namespace; in
// another one the parent is PID 1.
func shimAbove(namespace string) (parent int, inside bool) {
	own, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		fail("look", err)
	}
	inside, parent = own != namespace, os.Getppid()
	if inside && parent != 1 || !inside && !isShim(parent) {
		fail("attack", fmt.Errorf("parent %d is no shim", parent))
	}
	return parent, inside
}

func isShim(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && bytes.HasPrefix(b, []byte("coppice-shim\x00"))
}

// inspect prints what it was born with, one line a fact: Descriptors, Environment, Limit-..., Session, Group, Terminal,
// Dir.
func inspect([]string) int {
	var fds []int
	for fd := range 256 {
		// The runtime's own are close-on-exec; what came through an exec cannot be.
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			fds = append(fds, fd)
		}
	}
	fmt.Printf("Descriptors: %v\nEnvironment: %q\n", fds, os.Environ())
	for name, resource := range map[string]int{"core": unix.RLIMIT_CORE, "files": unix.RLIMIT_NOFILE,
		"data": unix.RLIMIT_DATA, "file": unix.RLIMIT_FSIZE, "tasks": unix.RLIMIT_NPROC} {
		var r unix.Rlimit
		unix.Getrlimit(resource, &r)
		fmt.Printf("Limit-%s: %d\n", name, r.Max)
	}
	session, _ := unix.Getsid(0)
	_, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_CLOEXEC, 0)
	dir, _ := os.Getwd()
	fmt.Printf("Session: %v\nGroup: %v\nTerminal: %v\nDir: %s\n",
		session == os.Getpid(), unix.Getpgrp() == os.Getpid(), err, dir)
	return 0
}
