package shim

import (
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
	ignoreSignals()
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

// ignoreSignals makes the shim deaf. The Go runtime handles every signal, and dies of most of them; as PID 1 it would
// be safe from a worker's signals only if it handled none. SIG_IGN is not passed on to the command: the runtime resets
// in the child what it believes to handle. SIGCHLD must not be ignored, or wait4 finds nothing.
func ignoreSignals() {
	type sigaction struct {
		handler, flags, restorer uintptr
		mask                     uint64
	}
	ignore := sigaction{handler: 1}
	for sig := uintptr(1); sig < 32; sig++ {
		switch syscall.Signal(sig) {
		case syscall.SIGCHLD, syscall.SIGKILL, syscall.SIGSTOP:
			continue
		}
		syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&ignore)), 0, 8, 0, 0)
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
	for _, l := range s.spec.Limits {
		// On the shim itself, which the command then inherits: there is no moment in which the command has none. The shim
		// stays below all of them.
		if err := unix.Setrlimit(int(l.Resource), &unix.Rlimit{Cur: l.Value, Max: l.Value}); err != nil {
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
	pid, err := syscall.ForkExec(s.spec.Path, s.spec.Args, &syscall.ProcAttr{
		Dir: s.spec.Dir, Env: s.spec.Env, Files: files,
		Sys: &syscall.SysProcAttr{Setsid: s.spec.NewSession, Setpgid: !s.spec.NewSession},
	})
	if err != nil {
		s.fail(StepExec, err)
	}
	s.leader = pid
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
}

// renounce gives up, on this thread, what the command shall not have. The shim's permitted set stays: a process that
// holds a capability which another lacks cannot be traced by it (capabilities(7), ptrace(2)).
func (s *shim) renounce() error {
	if s.spec.DropCapabilities {
		for c := uintptr(0); ; c++ {
			err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
			if err == unix.EINVAL && c > unix.CAP_CHOWN {
				break // beyond the last one that this kernel knows
			}
			if err == unix.EPERM && noCapabilities() {
				break // there is nothing to give up, nor a way to gain it with no_new_privs
			}
			if err != nil {
				return err
			}
		}
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
			return err
		}
		if err := clearInheritable(); err != nil {
			return err
		}
	}
	if s.spec.NoNewPrivileges {
		return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	return nil
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
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOWAIT, nil)
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
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, &usage)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return false
		case pid == 0:
			return true
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
		case err != nil:
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
		// reap exits when nothing is left.
		for _, p := range Descendants(unix.Getpid()) {
			p.Kill()
		}
		unix.Nanosleep(&pause, nil)
		pause.Nsec = min(pause.Nsec*2, 20e6)
	}
}
