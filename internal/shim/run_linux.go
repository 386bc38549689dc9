package shim

import (
	"math"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// grace is how long after the command's own end the shim waits for the engine to have a look at what is left, before
// it cuts the tree by itself.
const grace = 100 // milliseconds

// run is the shim. trigger, trigger+1 and trigger+2 are its descriptors.
func run(trigger int) {
	// What follows is per thread: no_new_privs, capabilities, and the fork that inherits them.
	runtime.LockOSThread()
	control, engine := trigger+1, trigger+2
	for fd := trigger; fd <= engine; fd++ {
		unix.CloseOnExec(fd)
	}
	unix.Close(trigger)
	// What the engine holds without close-on-exec (it may have inherited it so) is not the command's. Closing it here
	// could close what the runtime has opened.
	unix.CloseRange(uint(engine)+1, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	ignore(handled)
	// A worker of the same uid could otherwise trace or rewrite the shim (ptrace(2), PTRACE_MODE_ATTACH: the target
	// must be dumpable). Packages of the host read /proc/<pid>/stat alone, which stays readable.
	unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)

	spec, ok := readSpec(control)
	if !ok {
		exit() // the engine died, or is no engine: nothing was executed
	}
	if readable(engine) {
		exit()
	}
	s := &shim{spec: spec, control: control, engine: engine, wake: -1}
	s.start()
	go s.reap()
	s.watch()
}

type shim struct {
	spec    Spec
	control int
	engine  int
	wake    int // an eventfd: the command has ended
	leader  int

	mu    sync.Mutex
	ended bool // the command has been reaped: its pid may be another's
}

func exit() { unix.Exit(0) }

// handled and unhandled are the signals that the Go runtime handles, and those that have their default.
const (
	handled   = true
	unhandled = false
)

// ignore makes the shim deaf. The Go runtime handles nearly every signal, and dies of most of them; as PID 1 the shim would
// be safe from a worker's signals only if it handled none.
//
// The command does not inherit what the runtime handled: after a fork it sets these back to the default, not knowing that
// it handles them no longer (clearSignalHandlers in runtime/signal_unix.go). It does not know of the others, those that
// stop a process and 34: they are ignored only after the fork. What the engine itself was started with ignored, as
// SIGHUP under nohup, stays so for the command, as it does for any.
func ignore(which bool) {
	type sigaction struct {
		handler, flags, restorer uintptr
		mask                     uint64
	}
	deaf := sigaction{handler: 1}
	for sig := uintptr(1); sig <= 64; sig++ {
		switch syscall.Signal(sig) {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCONT:
			continue
		case syscall.SIGCHLD:
			continue // or wait4 would find nothing
		}
		var have sigaction
		syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, sig, 0, uintptr(unsafe.Pointer(&have)), 8, 0, 0)
		// 32 to 34 are the C library's in a program that is linked with it (nptl(7)), and not the runtime's to reset.
		libc := sig >= 32 && sig <= 34
		if (have.handler > 1 && !libc) == which {
			syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&deaf)), 0, 8, 0, 0)
		}
	}
}

// readSpec reads the whole spec; false at end of stream before that.
func readSpec(fd int) (Spec, bool) {
	var length [8]byte
	if !readFull(fd, length[:]) || get64(length[:]) > maxSpec {
		return Spec{}, false
	}
	b := make([]byte, get64(length[:]))
	if !readFull(fd, b) {
		return Spec{}, false
	}
	return decodeSpec(b)
}

func readFull(fd int, b []byte) bool {
	for len(b) > 0 {
		n, err := unix.Read(fd, b)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			wait(fd)
		case err != nil || n <= 0:
			return false
		default:
			b = b[n:]
		}
	}
	return true
}

func wait(fd int) {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	unix.Poll(p, -1)
}

// readable looks without waiting. A pidfd is readable once its process has ended.
func readable(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0
}

func (s *shim) tell(e Event) {
	b := e.Append(nil)
	for len(b) > 0 {
		n, err := unix.Write(s.control, b)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN: // 33 bytes into an empty socket: only a stopped engine lets it fill
			p := []unix.PollFd{{Fd: int32(s.control), Events: unix.POLLOUT}}
			unix.Poll(p, -1)
		case err != nil:
			return // the engine is gone; watch sees it too
		default:
			b = b[n:]
		}
	}
}

func (s *shim) fail(step Step, err error) {
	errno, _ := err.(syscall.Errno)
	s.tell(Event{Kind: Failed, A: uint64(errno), B: uint64(step)})
	exit()
}

// start executes the command, or tells why not and exits.
func (s *shim) start() {
	var err error
	if s.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		s.fail(StepConfine, err)
	}
	if s.spec.Mode == AsSubreaper {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			s.fail(StepConfine, err)
		}
	}
	if s.spec.Dir != "" {
		if err := unix.Chdir(s.spec.Dir); err != nil {
			s.fail(StepDir, err)
		}
	}
	for _, l := range s.spec.Limits {
		if err := s.limit(l); err != nil {
			s.fail(StepLimits, err)
		}
	}
	if err := s.renounce(); err != nil {
		s.fail(StepConfine, err)
	}
	files := make([]uintptr, s.spec.Files)
	for fd := range files {
		files[fd] = uintptr(fd)
	}
	attr := &syscall.SysProcAttr{Setsid: s.spec.NewSession, Setpgid: !s.spec.NewSession}
	if s.spec.Terminal {
		unix.CloseOnExec(s.spec.Files)
		attr.Foreground, attr.Ctty = true, s.spec.Files
	}
	if s.spec.Mode == AsSubreaper {
		// One more ring: who kills this shim, kills the command at least. This thread lives as long as the shim.
		attr.Pdeathsig = syscall.SIGKILL
	}
	pid, err := syscall.ForkExec(s.spec.Path, s.spec.Args, &syscall.ProcAttr{Env: s.spec.Env, Files: files, Sys: attr})
	if err != nil {
		s.fail(StepExec, err)
	}
	s.leader = pid
	ignore(unhandled)
	s.letGo()
	s.tell(Event{Kind: Started, A: uint64(pid)})
}

// letGo closes the shim's copies of the command's descriptors, so that their pipes end when the tree does.
func (s *shim) letGo() {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	for fd := range s.spec.Files {
		if fd <= 2 && err == nil {
			unix.Dup3(null, fd, unix.O_CLOEXEC)
			continue
		}
		unix.Close(fd)
	}
	if err == nil && null > 2 {
		unix.Close(null)
	}
	if s.spec.Terminal {
		unix.Close(s.spec.Files)
	}
}

// ownFiles is how many descriptors the shim needs besides the command's.
const ownFiles = 16

// ownData is what the shim needs: the Go runtime maps about 70 MiB at once (VmData of /proc/<pid>/status), and dies,
// now and then already of a thread more, when it cannot map what it needs.
const ownData = 128 << 20

// limit sets a limit on the shim itself, and the command inherits it: there is no moment in which the command has none.
// One that the shim itself could not live with is refused. A hard limit that is lower stays, since only root could raise
// it.
func (s *shim) limit(l Limit) error {
	switch {
	case l.Resource == unix.RLIMIT_NOFILE && l.Value < uint64(s.spec.Files+ownFiles):
		return unix.EINVAL
	case l.Resource == unix.RLIMIT_DATA && l.Value < ownData:
		return unix.EINVAL
	}
	var have unix.Rlimit
	if err := unix.Getrlimit(int(l.Resource), &have); err != nil {
		return err
	}
	value := min(l.Value, have.Max)
	return unix.Setrlimit(int(l.Resource), &unix.Rlimit{Cur: value, Max: value})
}

// renounce gives up, on this thread, what the command shall not have. The shim's permitted set stays: a process that
// holds a capability which another lacks cannot be traced by it (capabilities(7), ptrace(2)).
func (s *shim) renounce() error {
	still := s.spec.NoNewPrivileges
	if s.spec.DropCapabilities {
		bounded, err := clearBounding()
		if err != nil {
			return err
		}
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
			return err
		}
		if err := clearInheritable(); err != nil {
			return err
		}
		// With a bounding set left, a set-user-id program would give back what has been dropped.
		still = still || !bounded
	}
	if still {
		return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	return nil
}

// clearBounding empties the bounding set; false if that is not allowed to a shim that has no capability to lose either.
func clearBounding() (bool, error) {
	for c := uintptr(0); ; c++ {
		switch err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); {
		case err == unix.EINVAL && c > unix.CAP_CHOWN:
			return true, nil // beyond the last one that this kernel knows
		case err == unix.EPERM && noCapabilities():
			return false, nil
		case err != nil:
			return false, err
		}
	}
}

func noCapabilities() bool {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	err := unix.Capget(&head, &data[0])
	return err == nil && data[0].Permitted == 0 && data[1].Permitted == 0
}

func clearInheritable() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		return err
	}
	data[0].Inheritable, data[1].Inheritable = 0, 0
	return unix.Capset(&head, &data[0])
}

// reap collects whatever dies, orphans included: unreaped dead would use up the host's pids. No child left means no
// descendant left, since every orphan of the tree is handed to the shim.
func (s *shim) reap() {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WSTOPPED|unix.WNOWAIT, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || !s.collect() {
			if s.spec.Mode == AsSubreaper {
				s.tell(Event{Kind: Empty})
			}
			exit()
		}
	}
}

// collect reaps all that is dead now; false if there is no child at all. The lock keeps signal from a pid that has
// just been set free.
func (s *shim) collect() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		var status unix.WaitStatus
		var usage unix.Rusage
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG|unix.WUNTRACED, &usage)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return false
		case pid == 0:
			return true
		case status.Stopped():
			if pid == s.leader {
				s.tell(Event{Kind: Stopped, A: uint64(status.StopSignal())})
			}
		case pid == s.leader:
			s.ended = true
			s.tell(Event{Kind: Exited, A: uint64(status), B: micros(usage.Utime), C: micros(usage.Stime), D: uint64(usage.Maxrss)})
			unix.Write(s.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		}
	}
}

func micros(t unix.Timeval) uint64 { return uint64(t.Sec)*1e6 + uint64(t.Usec) }

// watch waits for an order, for the engine's end and for the command's, and does what follows from each. After the
// command's end the engine has a moment to look at what is left before it orders the cut; then the cut comes anyway.
func (s *shim) watch() {
	p := []unix.PollFd{{Fd: int32(s.engine), Events: unix.POLLIN}, {Fd: int32(s.control), Events: unix.POLLIN},
		{Fd: int32(s.wake), Events: unix.POLLIN}}
	timeout := -1
	for {
		n, err := unix.Poll(p, timeout)
		switch {
		case err == unix.EINTR:
		case err != nil:
			// A worker of the same user may lower this process's limit of descriptors by prlimit(2), and then poll(2)
			// fails: a shim that cannot see its engine any more must not go on.
			s.cut()
		case n == 0 || p[0].Revents != 0:
			s.cut()
		case p[1].Revents != 0:
			s.order()
		case p[2].Revents != 0:
			p[2].Fd, timeout = -1, grace
		}
	}
}

// order reads one order and obeys. End of stream is the engine's end.
func (s *shim) order() {
	var b [2]byte
	if !readFull(s.control, b[:1]) || b[0] != OrderSignal || !readFull(s.control, b[1:]) {
		s.cut()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		unix.Kill(-s.leader, syscall.Signal(b[1]))
	}
}

// cut ends the tree and the shim with it.
func (s *shim) cut() {
	if s.spec.Mode == InPIDNamespace {
		exit() // the kernel kills all that PID 1 leaves behind
	}
	pause := unix.Timespec{Nsec: 200e3}
	for {
		if blind() {
			// A worker of the same user has taken our descriptors away (prlimit(2)). This exit takes the command along,
			// and the engine learns that nothing is proved.
			exit()
		}
		// reap exits when nothing is left.
		for _, p := range Descendants(unix.Getpid()) {
			p.Kill()
		}
		unix.Nanosleep(&pause, nil)
		pause.Nsec = min(pause.Nsec*2, 20e6)
	}
}

// blind says whether the limit of descriptors forbids a look at /proc.
func blind() bool {
	fd, err := unix.Open("/proc", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err == unix.EMFILE
}
