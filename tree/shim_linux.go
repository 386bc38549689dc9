package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"coppice.dev/coppice/internal/shim"
	"golang.org/x/sys/unix"
)

// errStuck is the cause of a start that took startTimeout.
var errStuck = fmt.Errorf("no word from the shim in %v", startTimeout)

// startTimeout bounds the handshake with a shim where the caller's context does not: a shim that is stuck before it has
// executed the command is killed.
const startTimeout = 20 * time.Second

// pidNamespace holds the tree in a PID namespace whose init is the shim; only root may make one without a user
// namespace. When an init dies, the kernel kills all of its namespace and lets the init's own parent collect it only
// after that (pid_namespaces(7); zap_pid_ns_processes in kernel/pid_namespace.c): Wait on it is the proof.
//
// The shim cannot be signalled from inside, but /proc shows the host's processes: root with all its capabilities could
// write to the shim's memory, so it is guarded unless the capabilities are dropped.
func pidNamespace() rung {
	return rung{
		name:  "pidns",
		held:  standing{Atomic, Facts{HostDeathSafe: true, BornInside: true, Limited: true}},
		loose: standing{Atomic, Facts{BornInside: true, Limited: true}},
		start: func(ctx context.Context, s *Spec) (holder, error) {
			if os.Geteuid() != 0 {
				return nil, &refusal{errors.New("needs root")}
			}
			st := stage{mode: shim.InPIDNamespace, clone: unix.CLONE_NEWPID, guards: shim.GuardLimits}
			if !s.DropCapabilities {
				st.guards |= shim.GuardShim
			}
			return startShim(ctx, s, st)
		},
	}
}

// pidNamespaceUser is the same for everybody, with a user namespace that maps the user to itself. Mapped to 0, a worker
// could trace and rewrite the init; as it is, the init holds a capability that the worker does not, whose own are all
// taken.
func pidNamespaceUser() rung {
	return rung{
		name:  "pidns-user",
		held:  standing{Atomic, Facts{HostDeathSafe: true, BornInside: true, Limited: true}},
		loose: standing{Atomic, Facts{HostDeathSafe: true, BornInside: true, Limited: true}}, // who starves the shim ends with it
		start: func(ctx context.Context, s *Spec) (holder, error) {
			bare := *s
			bare.DropCapabilities = true
			return startShim(ctx, &bare, stage{mode: shim.InPIDNamespace, users: true, guards: shim.GuardLimits})
		},
	}
}

// subreaper holds the tree by a shim to which every orphan comes back (PR_SET_CHILD_SUBREAPER), and which kills in a loop
// until it has no child left. Without its guard a worker of the same user can kill this shim; then it is not safe against
// the engine's death, and a shim that died without its last word is an error.
func subreaper() rung {
	return rung{
		name:  "subreaper",
		held:  standing{Tracked, Facts{HostDeathSafe: true, BornInside: true, Limited: true}},
		loose: standing{Tracked, Facts{BornInside: true, Transparent: true, Limited: true}},
		start: func(ctx context.Context, s *Spec) (holder, error) {
			return startShim(ctx, s, stage{mode: shim.AsSubreaper, guards: shim.GuardShim | shim.GuardLimits})
		},
	}
}

// stage is how a rung starts its shim.
type stage struct {
	mode   shim.Mode
	clone  uintptr // namespaces for the shim
	users  bool    // a user namespace too
	guards shim.Guards
	must   bool     // the guards have to be had
	carved []string // where shim.GuardCgroup forbids to write
	leaf   *leaf    // with shim.InCgroup
}

// shimmed is a tree behind a shim.
type shimmed struct {
	stage
	process *os.Process
	control *os.File
	stops   chan os.Signal
	first   chan struct{} // closed when status is set
	status  Status
	last    chan struct{} // closed when the shim has been collected
	proved  bool          // set before last is closed
	emptied bool          // the shim has said so; the same
	bare    error         // why the guard is not set

	mu   sync.Mutex
	dead bool // the shim has been collected: its pid may be another's
}

// startShim executes the shim, hands it the spec and waits until it has executed the command.
func startShim(ctx context.Context, s *Spec, st stage) (holder, error) {
	exe, err := shimPath(s)
	if err != nil {
		return nil, &refusal{err}
	}
	spec, ok := (&shim.Spec{
		Mode: st.mode, Path: s.Path, Args: s.Args, Env: s.Env, Dir: s.Dir, Files: 3 + len(s.Extra), Terminal: s.Foreground != nil,
		NewSession: s.NewSession, NoNewPrivileges: s.NoNewPrivileges, DropCapabilities: s.DropCapabilities,
		Guards: st.guards, Must: st.must, Carved: st.carved, Limits: rlimits(s.Limits, st.users),
	}).Encode()
	if !ok {
		return nil, &os.PathError{Op: "start", Path: s.Path, Err: syscall.E2BIG}
	}
	files, null, err := s.files()
	if err != nil {
		return nil, err
	}
	defer null.Close()
	if s.Foreground != nil {
		files = append(files, s.Foreground)
	}
	h, err := launch(files, st, exe)
	if err != nil {
		return nil, &refusal{err} // the command has not been looked at
	}
	if err := h.handshake(ctx, s, spec); err != nil {
		return nil, errors.Join(err, h.abandon())
	}
	go h.listen()
	return h, nil
}

// abandonTimeout is how long a start that failed waits for its shim to undo it, and then for a shim that was killed.
const abandonTimeout = 2 * time.Second

// abandon undoes a start that failed. The command may have been executed already, without its shim having been able to
// say so: a subreaper is therefore asked, by the socket's end, to cut its tree, for killed it would set the command free.
// One that has not done so in time goes on with it, and the error says so.
func (h *shimmed) abandon() error {
	gone := make(chan struct{})
	go func() {
		h.process.Wait()
		close(gone)
	}()
	defer h.control.Close()
	if h.mode != shim.InPIDNamespace {
		h.shutdown()
		h.process.Signal(syscall.SIGCONT)
		select {
		case <-gone:
			return nil
		case <-time.After(abandonTimeout):
		}
		if len(shim.Descendants(h.process.Pid)) > 0 {
			return fmt.Errorf("shim %d is still ending what it had started", h.process.Pid)
		}
	}
	h.process.Kill()
	select {
	case <-gone:
		return nil
	case <-time.After(abandonTimeout):
		return fmt.Errorf("shim %d does not end", h.process.Pid)
	}
}

// shutdown ends the direction to the shim.
func (h *shimmed) shutdown() {
	if raw, err := h.control.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { unix.Shutdown(int(fd), unix.SHUT_WR) })
	}
}

// shimPath is the file to execute. /proc/self/exe is this very program, also when its file has been replaced or removed
// since, as after go run.
func shimPath(s *Spec) (string, error) {
	if s.Shim != "" {
		return s.Shim, nil
	}
	if !shim.Marked() {
		return "", ErrNoShim
	}
	if _, err := os.Stat("/proc/self/exe"); err == nil {
		return "/proc/self/exe", nil
	}
	return os.Executable()
}

// launch executes the shim with the command's descriptors and its own.
func launch(files []*os.File, st stage, exe string) (*shimmed, error) {
	trigger, err := newTrigger()
	if err != nil {
		return nil, fmt.Errorf("make trigger: %w", err)
	}
	own := []*os.File{os.NewFile(uintptr(trigger), "trigger")}
	defer func() {
		for _, f := range own {
			f.Close()
		}
	}()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	control := os.NewFile(uintptr(pair[0]), "shim")
	own = append(own, os.NewFile(uintptr(pair[1]), "shim"))
	// The shim watches this descriptor, which names the engine and nobody else, from before its own birth.
	engine, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		control.Close()
		return nil, fmt.Errorf("open pidfd: %w", err)
	}
	own = append(own, os.NewFile(uintptr(engine), "engine"))
	all := append(files, own...)
	if st.leaf != nil {
		all = append(all, st.leaf.folder, st.leaf.kill)
	}

	// GOMAXPROCS keeps the shim's own runtime small; the command does not inherit it. A process group of its own keeps a
	// subreaper alive when the engine's whole group is killed, and any shim from the terminal's keys.
	args := []string{"coppice-shim"}
	env := []string{shim.Env + "=" + strconv.Itoa(len(files)), "GOMAXPROCS=1"}
	var process *os.Process
	if st.users {
		process, err = inNamespaces(exe, args, env, all)
	} else {
		process, err = os.StartProcess(exe, args, &os.ProcAttr{Env: env, Files: all,
			Sys: &syscall.SysProcAttr{Setpgid: true, Cloneflags: st.clone}})
	}
	if err != nil {
		control.Close()
		return nil, err
	}
	return &shimmed{stage: st, process: process, control: control,
		stops: make(chan os.Signal, 1), first: make(chan struct{}), last: make(chan struct{})}, nil
}

// newTrigger makes the sealed file that says "be a shim". The caller closes it.
func newTrigger() (int, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	// A host may refuse memory files that could be executed (sysctl vm.memfd_noexec, Linux 6.3); older kernels do not
	// know the flag.
	fd, err := unix.MemfdCreate("coppice-shim", flags|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL {
		fd, err = unix.MemfdCreate("coppice-shim", flags)
	}
	if err != nil {
		return -1, err
	}
	if _, err = unix.Write(fd, []byte(shim.Magic)); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, shim.Seals)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func inNamespaces(exe string, args, env []string, files []*os.File) (*os.Process, error) {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	pid, err := shim.InNamespaces(exe, args, env, fds)
	runtime.KeepAlive(files)
	if err != nil {
		return nil, err
	}
	return os.FindProcess(pid) // never an error on Unix: our child, and not collected, so the pid is its own
}

// handshake sends the spec and takes the shim's first word.
func (h *shimmed) handshake(ctx context.Context, s *Spec, spec []byte) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errStuck)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { h.control.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := h.control.Write(spec); err != nil {
		return &refusal{fmt.Errorf("shim died at once: %w", err)}
	}
	e, err := readEvent(h.control)
	switch {
	case err != nil && ctx.Err() != nil && context.Cause(ctx) != errStuck:
		return fmt.Errorf("start %s: %w", s.Path, context.Cause(ctx))
	case err != nil:
		return &refusal{fmt.Errorf("shim does not answer: %w", err)}
	case e.Kind == shim.Failed && shim.Step(e.B) == shim.StepExec:
		return &os.PathError{Op: "exec", Path: s.Path, Err: syscall.Errno(e.A)}
	case e.Kind == shim.Failed && shim.Step(e.B) == shim.StepDir:
		return &os.PathError{Op: "chdir", Path: s.Dir, Err: syscall.Errno(e.A)}
	case e.Kind == shim.Failed && shim.Step(e.B) == shim.StepLimits:
		return fmt.Errorf("start %s: %w", s.Path, os.NewSyscallError("setrlimit", syscall.Errno(e.A)))
	case e.Kind == shim.Failed:
		return &refusal{fmt.Errorf("%s: %w", shim.Step(e.B), syscall.Errno(e.A))}
	case e.Kind != shim.Started:
		return &refusal{fmt.Errorf("shim says %q first", e.Kind)}
	}
	if !stop() {
		return fmt.Errorf("start %s: %w", s.Path, context.Cause(ctx))
	}
	if e.B != 0 {
		h.bare = unset(shim.Step(e.B), syscall.Errno(e.C))
	}
	return nil // no deadline has been set: only the function just stopped sets one
}

// unset says why a guard is not set, and what would help.
func unset(step shim.Step, errno syscall.Errno) error {
	hint := ""
	switch errno {
	case syscall.EPERM:
		hint = " (it takes NoNewPrivileges or CAP_SYS_ADMIN)"
	case syscall.ENOSYS:
		hint = " (not in this kernel)"
	case syscall.EOPNOTSUPP:
		hint = " (not enabled, or a kernel before 6.12)"
	case syscall.E2BIG:
		hint = " (16 domains are nested already)"
	}
	return fmt.Errorf("%s: %w%s", step, errno, hint)
}

func (h *shimmed) guard() error { return h.bare }

// alone: an init that is killed says no more, so one that has said that it has no child left had none.
func (h *shimmed) alone() bool { return h.mode == shim.InPIDNamespace && h.emptied }

func readEvent(control *os.File) (shim.Event, error) {
	var b [shim.EventSize]byte
	if _, err := io.ReadFull(control, b[:]); err != nil {
		return shim.Event{}, err
	}
	return shim.ParseEvent(b[:]), nil
}

// listen takes the shim's words until its end, and collects it.
func (h *shimmed) listen() {
	exited, empty := false, false
	for {
		e, err := readEvent(h.control)
		if err != nil {
			break
		}
		switch e.Kind {
		case shim.Exited:
			if !exited {
				h.status, exited = status(e), true
				close(h.first)
			}
		case shim.Stopped:
			select {
			case h.stops <- syscall.Signal(e.A):
			default: // nobody has taken the one before
			}
		case shim.Empty:
			empty = true
		}
	}
	// The pid is set free under the lock, so that members never reads below another's; the lock is not held while this
	// blocks.
	awaitExit(h.process, nil)
	h.mu.Lock()
	_, err := h.process.Wait()
	h.dead = true
	h.mu.Unlock()
	h.control.Close()
	if !exited {
		close(h.first)
	}
	// ECHILD: the host has collected it in our place, which the kernel let it do only then.
	h.emptied = empty
	h.proved = empty || h.mode == shim.InPIDNamespace && (err == nil || errors.Is(err, syscall.ECHILD))
	close(h.last)
}

func status(e shim.Event) Status {
	ws := syscall.WaitStatus(e.A)
	s := Status{Known: true, User: time.Duration(e.B) * time.Microsecond, System: time.Duration(e.C) * time.Microsecond,
		MaxRSS: int64(e.D) << 10}
	if ws.Signaled() {
		s.Signal = ws.Signal()
	} else {
		s.Code = ws.ExitStatus()
	}
	return s
}

func (h *shimmed) wait(stopped func(os.Signal)) Status {
	for {
		select {
		case <-h.first:
			return h.status
		case sig := <-h.stops:
			stopped(sig)
		}
	}
}

func (h *shimmed) kill() {
	if h.mode == shim.InPIDNamespace {
		h.process.Kill()
		return
	}
	if h.leaf != nil {
		h.leaf.end()
	}
	h.process.Signal(syscall.SIGCONT) // a worker of the same user may have stopped the shim
	h.order(shim.OrderKill)           // an error means that the shim is gone, which listen sees
}

// orderTimeout bounds the write of an order: only a shim that is stopped lets its socket fill.
const orderTimeout = time.Second

func (h *shimmed) order(b ...byte) error {
	h.control.SetWriteDeadline(time.Now().Add(orderTimeout))
	_, err := h.control.Write(b)
	return err
}

func (h *shimmed) empty() error {
	<-h.last
	if h.leaf != nil {
		h.leaf.end() // should the shim have been killed by somebody
		if err := h.leaf.empty(context.Background()); err != nil {
			return err
		}
		// With the guard, nobody has left it.
		if err := h.leaf.remove(); h.proved || h.bare == nil {
			return err
		}
	}
	if !h.proved {
		return errors.New("the shim was killed, so that orphans may have escaped")
	}
	return nil
}

func (h *shimmed) signal(sig os.Signal) error {
	n, ok := sig.(syscall.Signal)
	if !ok || n <= 0 || n > 64 {
		return fmt.Errorf("signal %v: %w", sig, errors.ErrUnsupported)
	}
	switch err := h.order(shim.OrderSignal, byte(n)); {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("signal %v: the shim is stuck: %w", sig, err)
	case err != nil:
		return os.ErrProcessDone
	}
	return nil
}

func (h *shimmed) members() ([]Member, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dead {
		return nil, nil
	}
	if err := unlisted(); err != nil {
		return nil, err
	}
	return descendants(h.process.Pid), nil
}

// seen asks the cgroup where nobody can have left it, which spares a read of every process of the host.
func (h *shimmed) seen() (int, []Member) {
	if h.leaf != nil && h.bare == nil {
		return h.leaf.seen()
	}
	all, _ := h.members()
	return len(all), all
}

// errNoProc is the reason why nobody can be seen.
var errNoProc = errors.New("/proc is not there, or is that of another PID namespace")

func (h *shimmed) usage() (Usage, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dead {
		return Usage{}, nil
	}
	if err := unlisted(); err != nil {
		return Usage{}, err
	}
	u := sampled(h.process.Pid, false)
	if h.leaf != nil {
		h.leaf.usage(&u)
	}
	return u, nil
}

// descendants are the living processes below root; zombies are not counted.
func descendants(root int) []Member {
	var out []Member
	for _, p := range shim.Descendants(root) {
		if !p.Dead() {
			out = append(out, member(p))
		}
	}
	return out
}

// shimTasks is what the shim's own threads take of a limit on tasks.
const shimTasks = 16

func rlimits(l Limits, ownUsers bool) []shim.Limit {
	var out []shim.Limit
	add := func(resource int, value uint64) {
		if value > 0 {
			out = append(out, shim.Limit{Resource: uint32(resource), Value: value})
		}
	}
	if l.NoCore {
		out = append(out, shim.Limit{Resource: unix.RLIMIT_CORE})
	}
	add(unix.RLIMIT_NOFILE, l.Files)
	add(unix.RLIMIT_DATA, l.Data)
	add(unix.RLIMIT_FSIZE, l.File)
	if ownUsers && l.Tasks > 0 {
		// Elsewhere the kernel counts all that the user runs on the whole host.
		add(unix.RLIMIT_NPROC, l.Tasks+shimTasks)
	}
	return out
}
