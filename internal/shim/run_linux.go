package shim

import (
	"math"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"coppice.dev/coppice/internal/shim/sys"
)

// grace is how long after the command's own end the shim waits for the engine to have a look at what is left, before
// it cuts the tree by itself.
const grace = 100 // milliseconds

// run is the shim. trigger and those that follow it are its descriptors.
func run(trigger int) {
	// The fork, and the wish to be told of its parent's end, are this thread's, which lives as long as the shim.
	runtime.LockOSThread()
	control, engine := trigger+1, trigger+2
	// What the engine holds without close-on-exec (it may have inherited it so) is not the command's either. Closing it
	// here could close what the runtime has opened.
	for fd := trigger; fd <= engine; fd++ {
		syscall.CloseOnExec(fd)
	}
	sys.CloseRange(uint(engine)+1, math.MaxUint32, sys.CLOSE_RANGE_CLOEXEC)
	syscall.Close(trigger)
	deaf := ignored() // since the engine's own start, as SIGHUP under nohup: they stay so for the command, as for any
	ignore()
	// A worker of the same uid could otherwise trace or rewrite the shim (ptrace(2), PTRACE_MODE_ATTACH: the target
	// must be dumpable). Packages of the host read /proc/<pid>/stat alone, which stays readable.
	sys.Prctl(sys.PR_SET_DUMPABLE, 0)

	spec, ok := readSpec(control)
	if !ok {
		exit() // the engine died, or is no engine: nothing was executed
	}
	if ready(engine, sys.POLLIN, 0) { // a pidfd is readable once its process has ended
		exit()
	}
	s := &shim{spec: spec, control: control, engine: engine, cgroup: -1, cgroupKill: -1, wake: -1, children: -1}
	if spec.Mode == InCgroup {
		s.cgroup, s.cgroupKill = engine+1, engine+2
	}
	s.start(deaf)
	stock()
	go s.reap()
	s.watch()
}

// spares is how many threads the shim keeps in stock: reap needs one, and the runtime one to hand over to.
const spares = 4

// stock makes the threads that Go's runtime will want, while they can be had: it keeps them. Where the worker has used up all
// the tasks of a cgroup that the shim is in too, the runtime would end the shim for want of one (newosproc in
// runtime/os_linux.go). The command is executed already: its start does not wait for them.
func stock() {
	release := make(chan struct{})
	var there sync.WaitGroup
	for range spares {
		there.Add(1)
		go func() {
			runtime.LockOSThread() // waiting, it keeps its thread, and the next one needs another
			there.Done()
			<-release
			runtime.UnlockOSThread()
		}()
	}
	there.Wait()
	close(release)
}

type shim struct {
	spec    Spec
	control int
	engine  int
	wake    int // an eventfd: the command has ended
	leader  int

	cgroup, cgroupKill int // the command's cgroup and its file cgroup.kill, or -1
	children           int // a file of /proc that lists this thread's children, or -1

	mu    sync.Mutex
	ended bool // the command has been reaped: its pid may be another's
}

func exit() { syscall.Exit(0) }

// ignore makes the shim deaf. The Go runtime handles nearly every signal, and dies of most of them; as PID 1 the shim
// would be safe from a worker's signals only if it handled none.
func ignore() {
	deaf := sigaction{handler: 1}
	for sig := uintptr(1); sig <= 64; sig++ {
		switch syscall.Signal(sig) {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCONT:
			continue
		case syscall.SIGCHLD:
			continue // or wait4 would find nothing
		}
		syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&deaf)), 0, 8, 0, 0)
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
		n, err := syscall.Read(fd, b)
		switch {
		case err == syscall.EINTR:
		case err == syscall.EAGAIN:
			ready(fd, sys.POLLIN, -1)
		case err != nil || n <= 0:
			return false
		default:
			b = b[n:]
		}
	}
	return true
}

// ready waits for what is wanted of a descriptor: timeout milliseconds, 0 for a look alone, -1 for ever.
func ready(fd int, wanted int16, timeout int) bool {
	p := []sys.PollFd{{Fd: int32(fd), Events: wanted}}
	n, err := sys.Poll(p, timeout)
	return err == nil && n > 0
}

// tell sends the events in one write.
func (s *shim) tell(events ...Event) {
	var b []byte
	for _, e := range events {
		b = e.Append(b)
	}
	for len(b) > 0 {
		n, err := syscall.Write(s.control, b)
		switch {
		case err == syscall.EINTR:
		case err == syscall.EAGAIN: // 33 bytes into an empty socket: only a stopped engine lets it fill
			ready(s.control, sys.POLLOUT, -1)
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
func (s *shim) start(deaf uint64) {
	var err error
	if s.wake, err = sys.Eventfd(0, sys.EFD_CLOEXEC); err != nil {
		s.fail(StepFork, err)
	}
	if s.spec.Mode != InPIDNamespace {
		if err := sys.Prctl(sys.PR_SET_CHILD_SUBREAPER, 1); err != nil {
			s.fail(StepReap, err)
		}
		if !OwnProc() {
			s.fail(StepLook, syscall.ENOENT)
		}
		s.openChildren()
	}
	if s.spec.Dir != "" {
		if err := syscall.Chdir(s.spec.Dir); err != nil {
			s.fail(StepDir, err)
		}
	}
	c := &birth{cgroup: s.cgroup, session: s.spec.NewSession, group: !s.spec.NewSession, terminal: -1, ruleset: -1, deaf: deaf,
		noNewPrivileges: s.spec.NoNewPrivileges, drop: s.spec.DropCapabilities, must: s.spec.Must}
	if s.spec.Terminal {
		syscall.CloseOnExec(s.spec.Files)
		c.terminal = s.spec.Files
	}
	if s.spec.Mode != InPIDNamespace {
		// One more ring: who kills this shim, kills the command at least.
		c.orphan, c.parent = true, syscall.Getpid()
	}
	if c.drop && !capable(sys.CAP_SETPCAP) {
		// With a bounding set left, a set-user-id program would give back what has been dropped.
		c.noNewPrivileges = true
	}
	for _, l := range s.spec.Limits {
		if err := c.limit(l); err != nil {
			s.fail(StepLimits, err)
		}
	}
	guard := c.guards(s.spec.Guards, s.spec.Carved)
	if guard != nil && s.spec.Must {
		s.fail(guard.step, guard.errno)
	}
	pid, unset, failed := c.bear(s.spec.Path, s.spec.Args, s.spec.Env)
	if failed != nil {
		s.fail(failed.step, failed.errno)
	}
	s.leader = pid
	if c.ruleset >= 0 {
		syscall.Close(c.ruleset)
	}
	s.letGo()
	started := Event{Kind: Started, A: uint64(pid)}
	if guard == nil && len(unset) > 0 {
		guard = &unset[0]
	}
	if guard != nil {
		started.B, started.C = uint64(guard.step), uint64(guard.errno)
	}
	s.tell(started)
}

// letGo closes the shim's copies of the command's descriptors, so that their pipes end when the tree does.
func (s *shim) letGo() {
	null, err := syscall.Open("/dev/null", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	for fd := range s.spec.Files {
		if fd <= 2 && err == nil {
			syscall.Dup3(null, fd, syscall.O_CLOEXEC)
			continue
		}
		syscall.Close(fd)
	}
	if err == nil && null > 2 {
		syscall.Close(null)
	}
	if s.spec.Terminal {
		syscall.Close(s.spec.Files)
	}
}

// limit adds a limit for the command. A hard limit that is lower stays, since only root could raise it.
func (c *birth) limit(l Limit) error {
	var have syscall.Rlimit
	if err := syscall.Getrlimit(int(l.Resource), &have); err != nil {
		return err
	}
	value := min(l.Value, have.Max)
	c.limits = append(c.limits, rlimit{uintptr(l.Resource), syscall.Rlimit{Cur: value, Max: value}})
	return nil
}

// capable says whether this thread has the capability.
func capable(c uint) bool {
	head := sys.CapHeader{Version: sys.CAPABILITY_VERSION_3}
	var data [2]sys.CapData
	err := sys.Capget(&head, &data)
	return err == nil && data[c/32].Effective&(1<<(c%32)) != 0
}

// reap collects whatever dies, orphans included: unreaped dead would use up the host's pids. No child left means no
// descendant left, since every orphan of the tree is handed to the shim.
func (s *shim) reap() {
	for {
		err := sys.Waitid(sys.P_ALL, 0, syscall.WEXITED|syscall.WSTOPPED|syscall.WNOWAIT)
		if err == syscall.EINTR {
			continue
		}
		var news []Event
		more := err == nil
		if more {
			news, more = s.collect()
		}
		if !more {
			// With the news of the command's end, so that the engine knows at once that nobody was left behind.
			s.tell(append(news, Event{Kind: Empty})...)
			exit()
		}
		s.tell(news...)
		if over(news) {
			syscall.Write(s.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		}
	}
}

// over says whether it is news that the command has ended.
func over(news []Event) bool { return len(news) > 0 && news[len(news)-1].Kind == Exited }

// collect reaps all that is dead now, and returns what there is to tell of the command; more is false if there is no child at
// all. After the command's end it looks once more and no further: others may die without end. The lock keeps signal from
// a pid that has just been set free.
func (s *shim) collect() (news []Event, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		var status syscall.WaitStatus
		var usage syscall.Rusage
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG|syscall.WUNTRACED, &usage)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return news, false
		case pid == 0, over(news):
			return news, true
		case status.Stopped():
			if pid == s.leader {
				news = append(news, Event{Kind: Stopped, A: uint64(status.StopSignal())})
			}
		case pid == s.leader:
			s.ended = true
			news = append(news, Event{Kind: Exited, A: uint64(status), B: micros(usage.Utime), C: micros(usage.Stime), D: uint64(usage.Maxrss)})
		}
	}
}

func micros(t syscall.Timeval) uint64 { return uint64(t.Sec)*1e6 + uint64(t.Usec) }

// watch waits for an order, for the engine's end and for the command's, and does what follows from each. After the
// command's end the engine has a moment to look at what is left before it orders the cut; then the cut comes anyway.
func (s *shim) watch() {
	p := []sys.PollFd{{Fd: int32(s.engine), Events: sys.POLLIN}, {Fd: int32(s.control), Events: sys.POLLIN},
		{Fd: int32(s.wake), Events: sys.POLLIN}}
	timeout := -1
	for {
		n, err := sys.Poll(p, timeout)
		switch {
		case err == syscall.EINTR:
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
		syscall.Kill(-s.leader, syscall.Signal(b[1]))
	}
}

// cut ends the tree and the shim with it.
func (s *shim) cut() {
	if s.spec.Mode == InPIDNamespace {
		exit() // the kernel kills all that PID 1 leaves behind
	}
	pause := syscall.Timespec{Nsec: 200e3}
	for {
		// reap exits when nothing is left.
		if s.cgroupKill >= 0 {
			syscall.Write(s.cgroupKill, []byte("1"))
		}
		found := Descendants(syscall.Getpid())
		for _, p := range found {
			p.Kill()
		}
		if len(found) == 0 && (s.children >= 0 || blind()) {
			s.killChildren()
		}
		syscall.Nanosleep(&pause, nil)
		pause.Nsec = min(pause.Nsec*2, 20e6)
	}
}

// blind says whether the limit of descriptors forbids a look at /proc: a worker of the same user can set it to nothing
// by prlimit(2), where no guard forbids that.
func blind() bool {
	fd, err := syscall.Open("/proc", syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err == nil {
		syscall.Close(fd)
	}
	return err == syscall.EMFILE
}

// openChildren opens the list of this thread's children (proc_pid_task_tid_children(5), which needs a kernel with
// CONFIG_PROC_CHILDREN). It is the thread that forks; and orphans are given to the first living thread of a subreaper
// (find_new_reaper in kernel/exit.c), which the main one is.
func (s *shim) openChildren() {
	fd, err := syscall.Open("/proc/thread-self/children", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err == nil {
		s.children = fd
	}
}

// killChildren kills what the shim still has when /proc shows it nobody: its own children. It can be that it may open
// nothing any more, or that /proc hides from it who is not dumpable (hidepid of proc(5)). The children of those come up
// to it when they die. No child's pid is set free meanwhile, since only collect does that.
func (s *shim) killChildren() {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list [4096]byte
	n, err := syscall.Pread(s.children, list[:], 0)
	if err != nil {
		// This exit takes the command along, and the engine learns that nothing is proved.
		exit()
	}
	pid := 0
	for _, c := range list[:n] {
		if c >= '0' && c <= '9' {
			pid = pid*10 + int(c-'0')
			continue
		}
		if pid > 1 {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		pid = 0
	}
}
