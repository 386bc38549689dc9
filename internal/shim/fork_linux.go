package shim

import (
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"coppice.dev/coppice/internal/shim/early"
	"coppice.dev/coppice/internal/shim/sys"
)

// birth is all that a new process does between its fork and its first instruction of its own: a list of system calls, made
// ready before the fork. The child is one thread of Go's without Go's runtime, and shares its memory with the parent
// (CLONE_VM), which sleeps until the child has executed or ended (CLONE_VFORK): so a fork costs the same however large the
// parent is. The child may call nothing but the system, allocate nothing and grow no stack.
//
// Package syscall's own fork cannot do the half of it: limits, a Landlock domain and capabilities of the command alone; a user
// namespace without a copy of the parent's page tables.
type birth struct {
	flags  uintptr // of clone(2), without the signal
	cgroup int     // a cgroup's folder to be born in, or -1
	parent int     // who has to be the parent still, or 0
	files  []int   // what becomes the descriptors from 0 on; nil leaves all as they are

	maps     []mapping // files of /proc to write, for a user namespace
	raise    []uint    // the capabilities to keep over the execution, as ambient ones
	session  bool
	group    bool
	terminal int    // whose foreground the new group becomes, or -1
	deaf     uint64 // signals that stay ignored
	orphan   bool   // die with the thread that forked

	noNewPrivileges bool
	ruleset         int // a Landlock ruleset to enforce, or -1
	filter          *syscall.SockFprog
	must            bool // a guard that fails ends the start
	drop            bool // all capabilities
	limits          []rlimit

	path       *byte
	argv, envv []*byte

	// The child works with what follows, by its address: hence self, which keeps a birth off the stack, where it could move.
	self   *birth
	calls  []call
	report int32 // where a failure is told, close-on-exec
	opened int32
	pgrp   int32
	words  record
	act    sigaction
	mask   uint64 // the parent's, from before the fork
	caps   sys.CapHeader
	some   [2]sys.CapData
	none   [2]sys.CapData
}

// call is one system call of a birth. A failure ends the child, but for the two that are pardoned.
type call struct {
	step   Step
	trap   uintptr
	args   [5]uintptr
	pardon [2]syscall.Errno
	guard  bool    // a failure is told and lived through, unless the birth must have its guards
	expect uintptr // if not 0, any other result is a failure
	keep   *int32  // where the result goes
	from   *int32  // where args[0] comes from, if not nil
}

// record is what a child tells of a call that failed.
type record struct {
	step  Step
	errno syscall.Errno
	fatal bool // the child has ended of it
}

// here is AT_FDCWD as a register holds it.
const here = ^uintptr(-sys.AT_FDCWD - 1)

type mapping struct {
	path *byte
	text []byte
}

type rlimit struct {
	resource uintptr
	value    syscall.Rlimit
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
// gone when the parent wakes up. The few words of stack that nosplit leaves have to do also where nothing is optimised, as
// under a debugger; norace, since the race detector would call.
//
//go:norace
//go:nosplit
//go:noinline
func (c *birth) fork(args *cloneArgs) (pid, errno uintptr) {
	if args != nil {
		pid, errno = rawFork(sys.SYS_CLONE3, uintptr(unsafe.Pointer(args)), unsafe.Sizeof(*args))
	} else {
		pid, errno = rawFork(syscall.SYS_CLONE, c.flags|uintptr(syscall.SIGCHLD), 0)
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
//go:noinline
func (c *birth) live() {
	for i := range c.calls {
		k := &c.calls[i]
		if k.from != nil {
			k.args[0] = uintptr(*k.from)
		}
		r, _, errno := syscall.RawSyscall6(k.trap, k.args[0], k.args[1], k.args[2], k.args[3], k.args[4], 0)
		switch {
		case errno != 0 && (errno == k.pardon[0] || errno == k.pardon[1]):
			continue
		case errno == 0 && k.expect != 0 && r != k.expect:
			errno = syscall.ESRCH
		}
		if errno == 0 {
			if k.keep != nil {
				*k.keep = int32(r)
			}
			continue
		}
		lives := k.guard && !c.must
		c.words.step, c.words.errno, c.words.fatal = k.step, errno, !lives
		syscall.RawSyscall6(syscall.SYS_WRITE, uintptr(c.report), uintptr(unsafe.Pointer(&c.words)), unsafe.Sizeof(c.words), 0, 0, 0)
		if !lives {
			break
		}
	}
	for {
		syscall.RawSyscall6(syscall.SYS_EXIT_GROUP, 253, 0, 0, 0, 0, 0)
	}
}

func (c *birth) add(step Step, trap uintptr, args ...uintptr) *call {
	k := call{step: step, trap: trap}
	copy(k.args[:], args)
	c.calls = append(c.calls, k)
	return &c.calls[len(c.calls)-1]
}

func address[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }

// plan makes the list. Signals are blocked or ignored until near its end: none may run a handler of Go's in the child.
func (c *birth) plan() {
	c.caps.Version = sys.CAPABILITY_VERSION_3
	if c.orphan {
		c.add(StepFork, syscall.SYS_PRCTL, sys.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL))
	}
	if c.parent != 0 { // or the shim's end has come before the request to be told of it
		c.add(StepFork, syscall.SYS_GETPPID).expect = uintptr(c.parent)
	}
	c.planFiles()
	c.planNamespace()
	switch {
	case c.session:
		c.add(StepFork, syscall.SYS_SETSID)
	case c.group:
		c.add(StepFork, syscall.SYS_SETPGID, 0, 0)
	}
	if c.terminal >= 0 { // with SIGTTOU ignored or blocked, one who is not in the foreground may do this
		c.add(StepTerminal, syscall.SYS_GETPID).keep = &c.pgrp
		c.add(StepTerminal, syscall.SYS_IOCTL, uintptr(c.terminal), syscall.TIOCSPGRP, address(&c.pgrp))
	}
	for sig := uintptr(1); sig <= 64; sig++ {
		if c.deaf&(1<<(sig-1)) == 0 {
			// EINVAL for those two that have nothing but a default.
			c.add(StepFork, syscall.SYS_RT_SIGACTION, sig, address(&c.act), 0, 8).pardon[0] = syscall.EINVAL
		}
	}
	c.add(StepFork, syscall.SYS_RT_SIGPROCMASK, sys.SIG_SETMASK, address(&c.mask), 0, 8)
	c.planPrivileges()
	for i := range c.limits {
		l := &c.limits[i]
		c.add(StepLimits, syscall.SYS_PRLIMIT64, 0, l.resource, address(&l.value), 0)
	}
	c.add(StepExec, syscall.SYS_EXECVE, address(c.path), address(&c.argv[0]), address(&c.envv[0]))
}

// planFiles moves the descriptors to their places: first out of each other's way, then home. A duplicate made by dup3(2)
// without a flag is not close-on-exec.
func (c *birth) planFiles() {
	spare := int(c.report) + 1
	for _, fd := range c.files {
		spare = max(spare, fd+1, len(c.files))
	}
	for i, fd := range c.files {
		c.add(StepFork, syscall.SYS_DUP3, uintptr(fd), uintptr(spare+i), syscall.O_CLOEXEC)
	}
	if int(c.report) < len(c.files) { // its place is another's
		c.add(StepFork, syscall.SYS_DUP3, uintptr(c.report), uintptr(spare+len(c.files)), syscall.O_CLOEXEC).keep = &c.report
	}
	for i := range c.files {
		c.add(StepFork, syscall.SYS_DUP3, uintptr(spare+i), uintptr(i), 0)
	}
}

// planNamespace fills in a new user namespace, and carries capabilities over the execution, which takes them from all
// but root (capabilities(7)): in the inheritable set, then in the ambient one.
func (c *birth) planNamespace() {
	for _, m := range c.maps {
		c.add(StepNamespace, syscall.SYS_OPENAT, here, address(m.path), syscall.O_WRONLY|syscall.O_CLOEXEC).keep = &c.opened
		c.add(StepNamespace, syscall.SYS_WRITE, 0, address(&m.text[0]), uintptr(len(m.text))).from = &c.opened
		c.add(StepNamespace, syscall.SYS_CLOSE).from = &c.opened
	}
	if len(c.raise) == 0 {
		return
	}
	for _, b := range c.raise {
		set := &c.some[b/32]
		set.Permitted |= 1 << (b % 32)
		set.Effective, set.Inheritable = set.Permitted, set.Permitted
	}
	c.add(StepNamespace, syscall.SYS_CAPSET, address(&c.caps), address(&c.some[0]))
	for _, b := range c.raise {
		c.add(StepNamespace, syscall.SYS_PRCTL, sys.PR_CAP_AMBIENT, sys.PR_CAP_AMBIENT_RAISE, uintptr(b))
	}
}

// planPrivileges gives up what the command shall not have, and sets the guards. Landlock and seccomp want no_new_privs or
// CAP_SYS_ADMIN (landlock_restrict_self(2), seccomp(2)), so the capabilities go last.
func (c *birth) planPrivileges() {
	if c.noNewPrivileges {
		c.add(StepConfine, syscall.SYS_PRCTL, sys.PR_SET_NO_NEW_PRIVS, 1)
	}
	if c.ruleset >= 0 {
		c.add(StepLandlock, sys.SYS_LANDLOCK_RESTRICT_SELF, uintptr(c.ruleset), 0).guard = true
	}
	if c.filter != nil {
		c.add(StepSeccomp, syscall.SYS_PRCTL, sys.PR_SET_SECCOMP, sys.SECCOMP_MODE_FILTER, address(c.filter)).guard = true
	}
	if !c.drop {
		return
	}
	for b := uintptr(0); b < 64; b++ {
		k := c.add(StepConfine, syscall.SYS_PRCTL, sys.PR_CAPBSET_DROP, b)
		if b > 0 {
			k.pardon[0] = syscall.EINVAL // beyond the last one that this kernel knows
		}
		if c.noNewPrivileges {
			k.pardon[1] = syscall.EPERM // without CAP_SETPCAP the set stays, and what it bounds cannot be gained any more
		}
	}
	c.add(StepConfine, syscall.SYS_PRCTL, sys.PR_CAP_AMBIENT, sys.PR_CAP_AMBIENT_CLEAR_ALL)
	c.add(StepConfine, syscall.SYS_CAPSET, address(&c.caps), address(&c.none[0]))
}

// bear forks the child and waits until it has been executed or has failed. The failures that it lived through are given
// back too: each is a guard that could not be set.
func (c *birth) bear(path string, args, env []string) (pid int, unset []failure, err *failure) {
	var bad [3]error
	c.path, bad[0] = syscall.BytePtrFromString(path)
	c.argv, bad[1] = syscall.SlicePtrFromStrings(args)
	c.envv, bad[2] = syscall.SlicePtrFromStrings(env)
	for _, e := range bad {
		if e != nil {
			return 0, nil, &failure{StepExec, syscall.EINVAL} // a NUL
		}
	}
	var pipe [2]int
	if e := syscall.Pipe2(pipe[:], syscall.O_CLOEXEC); e != nil {
		return 0, nil, &failure{StepFork, e.(syscall.Errno)}
	}
	c.keepFiles()
	c.report, c.self = int32(pipe[1]), c
	c.plan()
	child, errno := c.part()
	runtime.KeepAlive(c)
	syscall.Close(pipe[1])
	defer syscall.Close(pipe[0])
	if errno != 0 {
		return 0, nil, &failure{StepFork, syscall.Errno(errno)}
	}
	for {
		var r record
		if !readFull(pipe[0], (*[unsafe.Sizeof(r)]byte)(unsafe.Pointer(&r))[:]) {
			return int(child), unset, nil
		}
		f := failure{r.step, r.errno}
		if f.step == StepFork && f.errno == syscall.EBADF {
			f.errno = syscall.EMFILE // dup3(2) says so of a number beyond the limit
		}
		if r.fatal {
			return int(child), unset, &f
		}
		unset = append(unset, f)
	}
}

// keepFiles gives the child the limit of descriptors that this process was started with, where package syscall has raised it
// since: a program that uses select(2), or closes all it might have, is not made for hundreds of thousands.
func (c *birth) keepFiles() {
	soft, hard, ok := early.Files()
	var now syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &now); err != nil || !ok || now.Max != hard || now.Cur != hard-1 {
		return // as it was, or as the program has set it
	}
	first := []rlimit{{syscall.RLIMIT_NOFILE, syscall.Rlimit{Cur: soft, Max: hard}}}
	c.limits = append(first, c.limits...) // one that is asked for goes behind it
}

// part forks with all signals blocked, and keeps other forks of the process away: they would inherit descriptors that are not
// theirs.
func (c *birth) part() (pid, errno uintptr) {
	c.flags |= sharing
	var clone *cloneArgs
	if c.cgroup >= 0 {
		clone = &cloneArgs{flags: uint64(c.flags) | sys.CLONE_INTO_CGROUP, exitSignal: uint64(syscall.SIGCHLD), cgroup: uint64(c.cgroup)}
	}
	syscall.ForkLock.Lock()
	defer syscall.ForkLock.Unlock()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	all := ^uint64(0)
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, sys.SIG_SETMASK, uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&c.mask)), 8, 0, 0)
	pid, errno = c.fork(clone)
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, sys.SIG_SETMASK, uintptr(unsafe.Pointer(&c.mask)), 0, 8, 0, 0)
	return pid, errno
}

// ignored are the signals that this process ignores now.
func ignored() (set uint64) {
	for sig := uintptr(1); sig <= 64; sig++ {
		var have sigaction
		syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, sig, 0, uintptr(unsafe.Pointer(&have)), 8, 0, 0)
		if have.handler == 1 {
			set |= 1 << (sig - 1)
		}
	}
	return set
}

// InNamespaces executes a shim as the init of a new user and PID namespace, in a process group of its own, and returns its
// pid. files become its descriptors. The user is mapped to itself: one that was mapped to 0 could trace the shim and
// rewrite it. It is for the engine; the caller owns the child.
func InNamespaces(path string, args, env []string, files []int) (int, error) {
	uid, gid := strconv.Itoa(syscall.Geteuid()), strconv.Itoa(syscall.Getegid())
	c := &birth{flags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID, cgroup: -1, terminal: -1, ruleset: -1, group: true,
		files: files, deaf: ignored(),
		// CAP_SETPCAP to empty the worker's bounding set, CAP_KILL for a worker that changes its user, CAP_SYS_ADMIN to guard
		// one that has not been asked to do without new privileges. The worker gets none of them.
		raise: []uint{sys.CAP_SETPCAP, sys.CAP_KILL, sys.CAP_SYS_ADMIN}}
	for _, m := range [...][2]string{
		{"/proc/self/setgroups", "deny"}, // before gid_map, see user_namespaces(7)
		{"/proc/self/uid_map", uid + " " + uid + " 1\n"},
		{"/proc/self/gid_map", gid + " " + gid + " 1\n"},
	} {
		path, _ := syscall.BytePtrFromString(m[0])
		c.maps = append(c.maps, mapping{path, []byte(m[1])})
	}
	pid, _, failed := c.bear(path, args, env)
	if failed == nil {
		return pid, nil
	}
	if pid > 0 {
		for _, err := syscall.Wait4(pid, nil, 0, nil); err == syscall.EINTR; _, err = syscall.Wait4(pid, nil, 0, nil) {
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
