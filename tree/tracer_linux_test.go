package tree

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tracer follows an engine and, if it is told to, all that the engine's start gives birth to, from boundary to boundary of
// their system calls: the stop before the kernel acts and the one after. At one of them it kills whoever stands there.
//
// ptrace(2) belongs to a thread. This one waits for its own tracees alone (__WNOTHREAD), and PTRACE_O_EXITKILL leaves
// nobody stopped should it die.
type tracer struct {
	t      *testing.T
	engine int
	births bool // the shim and its child are followed, and hit in the place of the engine
	at     int  // the boundary to kill at
	passed int  // boundaries so far
	hit    string
	over   bool           // hit, or the engine has said that its start has ended: from here on nobody is held up
	calls  map[int]uint64 // thread -> the call that it is in
	owner  map[int]int    // thread -> its process
	reaped bool
}

// private are the calls that change nothing which outlives the process: its own memory and handlers of signals, and those
// with which Go's runtime waits and wakes, at random. To be killed there is to be killed at the boundary before.
func private(call uint64) bool {
	switch call {
	case unix.SYS_GETPPID, unix.SYS_RT_SIGACTION, unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MPROTECT, unix.SYS_BRK,
		unix.SYS_SCHED_GETAFFINITY, unix.SYS_GETTID:
		return true
	case unix.SYS_NANOSLEEP, unix.SYS_FUTEX, unix.SYS_SCHED_YIELD, unix.SYS_TGKILL, unix.SYS_RT_SIGRETURN,
		unix.SYS_EPOLL_PWAIT, unix.SYS_RT_SIGPROCMASK, unix.SYS_SIGALTSTACK, unix.SYS_MADVISE, unix.SYS_GETPID:
		return true
	}
	return false
}

const (
	seizeOptions = unix.PTRACE_O_EXITKILL | unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE
	birthOptions = seizeOptions | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACEEXEC
)

// attach seizes all threads of the engine; those that are made meanwhile are followed from their birth. The error is
// that of a host that does not permit it.
func (r *tracer) attach() error {
	options := seizeOptions
	if r.births {
		options = birthOptions
	}
	r.calls, r.owner = map[int]uint64{}, map[int]int{}
	for more := true; more; {
		more = false
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", r.engine))
		if err != nil {
			return err
		}
		for _, task := range tasks {
			tid, _ := strconv.Atoi(task.Name())
			if r.owner[tid] != 0 {
				continue
			}
			_, _, errno := syscall.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(tid), 0, uintptr(options), 0, 0)
			if errno != 0 && errno != syscall.ESRCH && errno != syscall.EPERM {
				return errno
			}
			if errno == syscall.EPERM && tid == r.engine {
				return errno
			}
			r.owner[tid], more = r.engine, true // refused: the kernel follows it already
			if errno == 0 {
				unix.PtraceInterrupt(tid) // into a stop, from which on it goes by system calls
			}
		}
	}
	return nil
}

// run lets them go until none is left to follow: the engine has ended, whether it was killed or not.
func (r *tracer) run() {
	watchdog := time.AfterFunc(tracedLifetime, func() { unix.Kill(r.engine, unix.SIGKILL) })
	defer watchdog.Stop()
	for {
		var status unix.WaitStatus
		tid, err := unix.Wait4(-1, &status, unix.WALL|unix.WNOTHREAD, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return // ECHILD
		case !status.Stopped():
			if tid == r.engine {
				r.reaped = true
			}
			delete(r.owner, tid)
		default:
			r.stop(tid, status)
		}
	}
}

// stop deals with one stop and lets the thread go on.
func (r *tracer) stop(tid int, status unix.WaitStatus) {
	signal := 0
	switch event := uint32(status) >> 16; {
	case status.StopSignal() == syscall.SIGTRAP|0x80:
		if r.boundary(tid) {
			return
		}
	case event == unix.PTRACE_EVENT_EXEC && !isShim(r.process(tid)):
		syscall.Syscall6(unix.SYS_PTRACE, unix.PTRACE_DETACH, uintptr(tid), 0, 0, 0, 0)
		return // the command: the start is over
	case event == unix.PTRACE_EVENT_STOP && status.StopSignal() != syscall.SIGTRAP:
		syscall.Syscall6(unix.SYS_PTRACE, unix.PTRACE_LISTEN, uintptr(tid), 0, 0, 0, 0)
		return // a group's stop
	case event == 0:
		signal = int(status.StopSignal())
	}
	if r.over {
		unix.PtraceCont(tid, signal)
		return
	}
	unix.PtraceSyscall(tid, signal)
}

// startOver tells the tracer that the start has ended, by a call that nobody else makes.
func startOver() { unix.Getppid() }

func isShim(pid int) bool {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return bytes.HasPrefix(b, []byte("coppice-shim\x00"))
}

// process is whose thread it is.
func (r *tracer) process(tid int) int {
	if r.owner[tid] == 0 {
		r.owner[tid] = tid
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
		for line := range bytes.Lines(b) {
			if field, ok := bytes.CutPrefix(line, []byte("Tgid:\t")); ok {
				r.owner[tid], _ = strconv.Atoi(string(bytes.TrimSpace(field)))
			}
		}
	}
	return r.owner[tid]
}

// boundary counts one, and says whether it was the one to kill at.
func (r *tracer) boundary(tid int) bool {
	const entry, exit = 1, 2 // PTRACE_SYSCALL_INFO_ENTRY and _EXIT of ptrace(2)
	var info struct {
		op     byte
		_      [3]byte
		arch   uint32
		ip, sp uint64
		call   uint64
		_      [8]uint64
	}
	_, _, errno := syscall.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid), unsafe.Sizeof(info),
		uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 {
		return false // killed by somebody else
	}
	if info.op == entry {
		r.calls[tid] = info.call
	}
	call, known := r.calls[tid]
	r.over = r.over || call == unix.SYS_GETPPID && r.process(tid) == r.engine
	if r.over || !known || private(call) || (r.process(tid) == r.engine) == r.births {
		return false
	}
	if r.passed++; r.passed != r.at {
		return false
	}
	side := map[byte]string{entry: "before", exit: "after"}[info.op]
	r.hit = fmt.Sprintf("%s call %d", side, call)
	r.over = true
	unix.Kill(r.process(tid), unix.SIGKILL)
	return true
}

// traced starts an engine under a tracer and lets it start its tree once all of it is followed.
func traced(t *testing.T, e watched, births bool, at int) (hit string, passed int) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := &tracer{t: t, engine: e.cmd.Process.Pid, births: births, at: at}
	if err := r.attach(); err != nil {
		t.Skipf("missing: ptrace of a child: %v", err)
	}
	e.ask.WriteString("go\n")
	r.run()
	if !r.reaped {
		t.Fatal("the engine was lost by its tracer")
	}
	return r.hit, r.passed
}
