package shim

import (
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// birth is all that a new process does between its fork and its first instruction of its own, made ready before the fork.
// The child is one thread of Go's without Go's runtime, and shares its memory with the parent (CLONE_VM), which sleeps until
// the child has executed or ended (CLONE_VFORK): so a fork costs the same however large the parent is. The child may call
// nothing but the system, allocate nothing and grow no stack; hence nosplit, and norace, since the race detector would
// call.
//
// Package syscall's own fork cannot do the half of it: limits, a Landlock domain and capabilities of the command alone; a user
// namespace without a copy of the parent's page tables.
type birth struct {
	flags  uintptr // of clone(2), without the signal
	cgroup int     // a cgroup's folder to be born in, or -1
	parent int     // who has to be the parent still, or 0
	files  []int   // what becomes the descriptors from 0 on; nil leaves all as they are
	spare  int     // from here on no descriptor is in use

	maps     [3]mapping // files of /proc to write, for a user namespace
	raise    []uintptr  // capabilities to keep over the execution, as ambient ones
	session  bool
	group    bool
	terminal int    // whose foreground the new group becomes, or -1
	deaf     uint64 // signals that stay ignored
	reset    bool   // all that are ignored stay so, and deaf does not count
	orphan   bool   // die with the thread that forked

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
	have  sigaction
	mask  uint64 // the parent's, from before the fork
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

// fork makes the process and says how that went; the child never returns. What the child does in this frame and below it is
// gone when the parent wakes up.
//
//go:norace
//go:nosplit
//go:noinline
func (c *birth) fork(args *cloneArgs) (pid, errno uintptr) {
	if args != nil {
		pid, errno = rawFork(unix.SYS_CLONE3, uintptr(unsafe.Pointer(args)), unsafe.Sizeof(*args))
	} else {
		pid, errno = rawFork(unix.SYS_CLONE, c.flags|uintptr(unix.SIGCHLD), 0)
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
	c.settle()
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
	c.hear()
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

// settle moves the descriptors to their places: first out of each other's way, then home. A duplicate made by dup2(2) is not
// close-on-exec.
//
//go:norace
//go:nosplit
func (c *birth) settle() {
	for i := range c.files {
		c.do(StepFork, unix.SYS_DUP3, uintptr(c.files[i]), uintptr(c.spare+i), unix.O_CLOEXEC)
	}
	for i := range c.files {
		c.do(StepFork, unix.SYS_DUP3, uintptr(c.spare+i), uintptr(i), 0)
	}
}

// hear sets signals back to their default and lets them in again. Until then they are blocked or ignored: none may run a
// handler of Go's here.
//
//go:norace
//go:nosplit
func (c *birth) hear() {
	for sig := uintptr(1); sig <= 64; sig++ {
		if c.reset {
			syscall.RawSyscall6(unix.SYS_RT_SIGACTION, sig, 0, uintptr(unsafe.Pointer(&c.have)), 8, 0, 0)
			if c.have.handler <= 1 {
				continue
			}
		} else if c.deaf&(1<<(sig-1)) != 0 {
			continue
		}
		syscall.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&c.act)), 0, 8, 0, 0)
	}
	syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&c.mask)), 0, 8, 0, 0)
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
	c.report, c.spare = pipe[1], max(c.spare, pipe[1]+1)
	child, errno := c.part()
	runtime.KeepAlive(argv)
	runtime.KeepAlive(envv)
	unix.Close(pipe[1])
	defer unix.Close(pipe[0])
	if errno != 0 {
		return 0, nil, &failure{StepFork, syscall.Errno(errno)}
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

// part forks with all signals blocked, and keeps other forks of the process away: they would inherit descriptors that are not
// theirs.
func (c *birth) part() (pid, errno uintptr) {
	c.flags |= sharing
	var clone *cloneArgs
	if c.cgroup >= 0 {
		clone = &cloneArgs{flags: uint64(c.flags) | unix.CLONE_INTO_CGROUP, exitSignal: uint64(unix.SIGCHLD), cgroup: uint64(c.cgroup)}
	}
	syscall.ForkLock.Lock()
	defer syscall.ForkLock.Unlock()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	all := ^uint64(0)
	syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&c.mask)), 8, 0, 0)
	pid, errno = c.fork(clone)
	syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&c.mask)), 0, 8, 0, 0)
	return pid, errno
}

// InNamespaces executes a shim as the init of a new user and PID namespace, in a process group of its own, and returns its
// pid. files become its descriptors. The user is mapped to itself: one that was mapped to 0 could trace the shim and
// rewrite it. It is for the engine; the caller owns the child.
func InNamespaces(path string, args, env []string, files []int) (int, error) {
	uid, gid := strconv.Itoa(unix.Geteuid()), strconv.Itoa(unix.Getegid())
	c := &birth{flags: unix.CLONE_NEWUSER | unix.CLONE_NEWPID, cgroup: -1, terminal: -1, ruleset: -1, group: true, reset: true,
		files: files, spare: len(files),
		// CAP_SETPCAP to empty the worker's bounding set, CAP_KILL for a worker that changes its user.
		raise: []uintptr{unix.CAP_SETPCAP, unix.CAP_KILL}}
	for _, fd := range files {
		c.spare = max(c.spare, fd+1)
	}
	for i, m := range [...][2]string{
		{"/proc/self/setgroups", "deny"}, // before gid_map, see user_namespaces(7)
		{"/proc/self/uid_map", uid + " " + uid + " 1\n"},
		{"/proc/self/gid_map", gid + " " + gid + " 1\n"},
	} {
		path, _ := syscall.BytePtrFromString(m[0])
		c.maps[i] = mapping{path, []byte(m[1])}
	}
	pid, _, failed := c.bear(path, args, env)
	if failed == nil {
		return pid, nil
	}
	if pid > 0 {
		for _, err := unix.Wait4(pid, nil, 0, nil); err == unix.EINTR; _, err = unix.Wait4(pid, nil, 0, nil) {
		}
	}
	if failed.step == StepFork {
		failed.step = StepNamespace
	}
	return 0, failed
}

// failure is a step of a birth that went wrong.
type failure struct {
	step  Step
	errno syscall.Errno
}

func (f *failure) Error() string { return f.step.String() + ": " + f.errno.Error() }
func (f *failure) Unwrap() error { return f.errno }

func (f *failure) fatal(must bool) bool {
	return must || f.step != StepLandlock && f.step != StepSeccomp
}
