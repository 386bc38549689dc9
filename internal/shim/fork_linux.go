package shim

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// birth is all that a new process does between its fork and its first instruction of its own, made ready before the fork.
// The child is a copy of the shim with this one thread: whatever lock of Go's runtime another thread held is held for
// ever. So it may call nothing but the system, allocate nothing and grow no stack; hence nosplit, and norace, since the
// race detector would call.
//
// Package syscall's own fork cannot do the half of it: limits that the shim itself does not live under, a Landlock domain
// and capabilities of the command alone, birth in a cgroup. A plain fork (no CLONE_VM, no CLONE_VFORK) is cheap here,
// because the shim is small.
type birth struct {
	flags  uintptr // of clone(2), without the signal
	cgroup int     // a cgroup's folder to be born in, or -1
	parent int     // who has to be the parent still, or 0

	maps     [3]mapping // files of /proc to write, for a user namespace
	raise    []uintptr  // capabilities to keep over the execution, as ambient ones
	session  bool
	group    bool
	terminal int // whose foreground the new group becomes, or -1
	deaf     uint64
	orphan   bool // die with the thread that forked

	noNewPrivileges bool
	ruleset         int // a Landlock ruleset to enforce, or -1
	filter          *unix.SockFprog
	must            bool // a guard that fails ends the start
	drop            bool // all capabilities
	limits          []rlimit

	report     int // where a failure is told, close-on-exec
	path       *byte
	argv, envv **byte

	// What follows is written by the child.
	words [2]uint64 // Step, errno
	pgrp  int32
	act   sigaction
	caps  unix.CapUserHeader
	none  [2]unix.CapUserData
}

// here is AT_FDCWD as a register holds it.
const here = ^uintptr(-unix.AT_FDCWD - 1)

type mapping struct {
	path *byte
	text []byte
}

type rlimit struct {
	resource uintptr
	value    unix.Rlimit
}

type sigaction struct {
	handler, flags, restorer uintptr
	mask                     uint64
}

// cloneArgs is struct clone_args of clone(2), of its third version.
type cloneArgs struct {
	flags, pidfd, childTid, parentTid, exitSignal, stack, stackSize, tls, setTid, setTidSize, cgroup uint64
}

// fork makes the process and says how that went; the child never returns.
//
//go:norace
//go:nosplit
func (c *birth) fork(args *cloneArgs) (pid uintptr, errno syscall.Errno) {
	switch {
	case args != nil:
		pid, _, errno = syscall.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(args)), unsafe.Sizeof(*args), 0)
	case runtime.GOARCH == "s390x": // the one with the arguments in another order
		pid, _, errno = syscall.RawSyscall6(unix.SYS_CLONE, 0, c.flags|uintptr(unix.SIGCHLD), 0, 0, 0, 0)
	default:
		pid, _, errno = syscall.RawSyscall6(unix.SYS_CLONE, c.flags|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	}
	if pid != 0 || errno != 0 {
		return pid, errno
	}
	c.live()
	return 0, 0 // never
}

// live is the child's part.
//
//go:norace
//go:nosplit
func (c *birth) live() {
	if c.orphan {
		c.do(StepFork, unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0)
	}
	if c.parent != 0 {
		if now, _, _ := syscall.RawSyscall(unix.SYS_GETPPID, 0, 0, 0); int(now) != c.parent {
			c.end(StepFork, syscall.ESRCH) // the shim has died: its end has come before our request to be told
		}
	}
	for i := range c.maps {
		if m := &c.maps[i]; m.path != nil {
			fd := c.do(StepNamespace, unix.SYS_OPENAT, here, uintptr(unsafe.Pointer(m.path)), unix.O_WRONLY|unix.O_CLOEXEC)
			c.do(StepNamespace, unix.SYS_WRITE, fd, uintptr(unsafe.Pointer(&m.text[0])), uintptr(len(m.text)))
			syscall.RawSyscall(unix.SYS_CLOSE, fd, 0, 0)
		}
	}
	if len(c.raise) > 0 {
		c.keep()
	}
	switch {
	case c.session:
		c.do(StepFork, unix.SYS_SETSID, 0, 0, 0)
	case c.group:
		c.do(StepFork, unix.SYS_SETPGID, 0, 0, 0)
	}
	if c.terminal >= 0 {
		// Signals are still ignored, so that one who is not in the foreground may do this.
		pid, _, _ := syscall.RawSyscall(unix.SYS_GETPID, 0, 0, 0)
		c.pgrp = int32(pid)
		c.do(StepTerminal, unix.SYS_IOCTL, uintptr(c.terminal), unix.TIOCSPGRP, uintptr(unsafe.Pointer(&c.pgrp)))
	}
	for sig := uintptr(1); sig <= 64; sig++ {
		if c.deaf&(1<<(sig-1)) == 0 {
			syscall.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&c.act)), 0, 8, 0, 0)
		}
	}
	c.renounce()
	for i := range c.limits {
		l := &c.limits[i]
		if _, _, errno := syscall.RawSyscall6(unix.SYS_PRLIMIT64, 0, l.resource, uintptr(unsafe.Pointer(&l.value)), 0, 0, 0); errno != 0 {
			c.end(StepLimits, errno)
		}
	}
	_, _, errno := syscall.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(c.path)),
		uintptr(unsafe.Pointer(c.argv)), uintptr(unsafe.Pointer(c.envv)))
	c.end(StepExec, errno)
}

// keep carries capabilities over the execution, which takes them from all but root (capabilities(7)): in the inheritable
// set, then in the ambient one.
//
//go:norace
//go:nosplit
func (c *birth) keep() {
	c.do(StepNamespace, unix.SYS_CAPGET, uintptr(unsafe.Pointer(&c.caps)), uintptr(unsafe.Pointer(&c.none[0])), 0)
	for _, cap := range c.raise {
		c.none[cap/32].Inheritable |= 1 << (cap % 32)
	}
	c.do(StepNamespace, unix.SYS_CAPSET, uintptr(unsafe.Pointer(&c.caps)), uintptr(unsafe.Pointer(&c.none[0])), 0)
	for _, cap := range c.raise {
		c.do(StepNamespace, unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, cap)
	}
}

// renounce gives up what the command shall not have, and sets the guards. Landlock and seccomp want no_new_privs or
// CAP_SYS_ADMIN (landlock_restrict_self(2), seccomp(2)), so the capabilities go last.
//
//go:norace
//go:nosplit
func (c *birth) renounce() {
	if c.noNewPrivileges {
		c.do(StepConfine, unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0)
	}
	if c.ruleset >= 0 {
		_, _, errno := syscall.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(c.ruleset), 0, 0)
		c.guard(StepLandlock, errno)
	}
	if c.filter != nil {
		_, _, errno := syscall.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(c.filter)))
		c.guard(StepSeccomp, errno)
	}
	if !c.drop {
		return
	}
	for cap := uintptr(0); cap < 64; cap++ {
		_, _, errno := syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, cap, 0, 0, 0, 0)
		if errno == syscall.EINVAL && cap > 0 {
			break // beyond the last one that this kernel knows
		}
		if errno == syscall.EPERM && c.noNewPrivileges {
			break // without CAP_SETPCAP the set stays, and what it bounds cannot be gained any more
		}
		if errno != 0 {
			c.end(StepConfine, errno)
		}
	}
	c.do(StepConfine, unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0)
	c.do(StepConfine, unix.SYS_CAPSET, uintptr(unsafe.Pointer(&c.caps)), uintptr(unsafe.Pointer(&c.none[0])), 0)
}

// do calls the system; a failure ends the child.
//
//go:norace
//go:nosplit
func (c *birth) do(step Step, call, a, b, d uintptr) uintptr {
	r, _, errno := syscall.RawSyscall6(call, a, b, d, 0, 0, 0)
	if errno != 0 {
		c.end(step, errno)
	}
	return r
}

// guard tells of a guard that could not be set, and ends the child if it must be.
//
//go:norace
//go:nosplit
func (c *birth) guard(step Step, errno syscall.Errno) {
	if errno == 0 {
		return
	}
	if c.must {
		c.end(step, errno)
	}
	c.tell(step, errno)
}

//go:norace
//go:nosplit
func (c *birth) tell(step Step, errno syscall.Errno) {
	c.words[0], c.words[1] = uint64(step), uint64(errno)
	syscall.RawSyscall(unix.SYS_WRITE, uintptr(c.report), uintptr(unsafe.Pointer(&c.words)), unsafe.Sizeof(c.words))
}

//go:norace
//go:nosplit
func (c *birth) end(step Step, errno syscall.Errno) {
	c.tell(step, errno)
	for {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, 253, 0, 0)
	}
}

// bear forks the child and waits until it has been executed or has failed. The failures that it lived through are given
// back too: each is a guard that could not be set.
func (c *birth) bear(path string, args, env []string) (pid int, unset []failure, err *failure) {
	c.caps.Version = unix.LINUX_CAPABILITY_VERSION_3
	pointers := [3]error{}
	c.path, pointers[0] = syscall.BytePtrFromString(path)
	argv, e := syscall.SlicePtrFromStrings(args)
	pointers[1] = e
	envv, e := syscall.SlicePtrFromStrings(env)
	pointers[2] = e
	for _, e := range pointers {
		if e != nil {
			return 0, nil, &failure{StepExec, syscall.EINVAL} // a NUL
		}
	}
	c.argv, c.envv = &argv[0], &envv[0]
	var pipe [2]int
	if e := unix.Pipe2(pipe[:], unix.O_CLOEXEC); e != nil {
		return 0, nil, &failure{StepFork, e.(syscall.Errno)}
	}
	c.report = pipe[1]
	var clone *cloneArgs
	if c.cgroup >= 0 {
		clone = &cloneArgs{flags: uint64(c.flags) | unix.CLONE_INTO_CGROUP, exitSignal: uint64(unix.SIGCHLD), cgroup: uint64(c.cgroup)}
	}
	child, errno := c.fork(clone)
	runtime.KeepAlive(argv)
	runtime.KeepAlive(envv)
	unix.Close(pipe[1])
	defer unix.Close(pipe[0])
	if errno != 0 {
		return 0, nil, &failure{StepFork, errno}
	}
	for {
		var words [2]uint64
		if !readFull(pipe[0], (*[unsafe.Sizeof(words)]byte)(unsafe.Pointer(&words))[:]) {
			return int(child), unset, nil
		}
		f := failure{Step(words[0]), syscall.Errno(words[1])}
		if f.fatal(c.must) {
			return int(child), unset, &f
		}
		unset = append(unset, f)
	}
}

// failure is a step of a birth that went wrong.
type failure struct {
	step  Step
	errno syscall.Errno
}

func (f *failure) fatal(must bool) bool {
	return must || f.step != StepLandlock && f.step != StepSeccomp
}
