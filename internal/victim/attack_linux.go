package victim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tell says on the witness what came of an attack; nil is that it was let through.
func tell(what, whom string, err error) {
	if err == nil {
		say(Attack, what, whom, Through)
		return
	}
	say(Attack, what, whom, Refused, err.Error())
}

// target is a process above the victim that it may attack: who holds the tree, and who started that one.
type target struct {
	pid  int    // in the victim's own PID namespace
	fd   int    // its pidfd: a pid alone could be another's by now
	proc string // its folder in the /proc that is mounted, which may count in another namespace
	name string
}

var errNobody = errors.New("nobody above is to be seen")

// above lists the processes between the victim's leader and the one that watches the test, nearest first. In the
// namespace of that one it is nobody unless the way up ends there: an orphan's leads to the host's own init.
func above(spared []string) []target {
	own, err := os.Readlink("/proc/self/ns/pid")
	if err != nil || len(spared) != 2 {
		fail("look", os.ErrInvalid)
	}
	inside := own != spared[0]
	var out []target
	depth := len(pids("self"))
	for at := parentOf("self"); ; at = parentOf(at) {
		switch {
		case !inside && at == spared[1]:
			return out
		case !inside && (at == "0" || at == "1" || at == ""):
			return nil
		}
		have := pids(at)
		if len(have) != depth || depth == 0 { // out of this namespace
			if inside {
				return out
			}
			return nil
		}
		if isVictim(at) {
			continue
		}
		pid := have[depth-1]
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			out = append(out, target{pid, fd, at, nameOf(at)})
		}
	}
}

func parentOf(pid string) string {
	if fields := statOf(pid); len(fields) > 1 {
		return fields[1]
	}
	return ""
}

// pids are a process's pids, from the namespace of the mounted /proc down to its own.
func pids(pid string) []int {
	b, _ := os.ReadFile("/proc/" + pid + "/status")
	_, rest, _ := strings.Cut(string(b), "\nNSpid:")
	line, _, _ := strings.Cut(rest, "\n")
	var out []int
	for _, s := range strings.Fields(line) {
		n, _ := strconv.Atoi(s)
		out = append(out, n)
	}
	return out
}

func arguments(pid string) []string {
	b, _ := os.ReadFile("/proc/" + pid + "/cmdline")
	return strings.Split(string(b), "\x00")
}

// isVictim: a tool that starts one has the word among its own arguments, but never as the first.
func isVictim(pid string) bool {
	args := arguments(pid)
	return len(args) > 1 && args[1] == word
}

func nameOf(pid string) string {
	if args := arguments(pid); len(args) > 1 && args[1] == "coppice-engine" {
		return "engine"
	}
	return strings.ReplaceAll(filepath.Base(arguments(pid)[0]), " ", "-")
}

// comesTo waits a moment for a state of the target; 0 is that it has gone.
func (t target) comesTo(states ...byte) bool {
	for limit := time.Now().Add(50 * time.Millisecond); time.Now().Before(limit); time.Sleep(time.Millisecond) {
		if slices.Contains(states, stateOf(t.proc)) {
			return true
		}
	}
	return false
}

func (t target) signal(sig syscall.Signal) error { return unix.PidfdSendSignal(t.fd, sig, nil, 0) }

// alive is asked before what goes by the pid alone.
func (t target) alive() bool { return t.signal(0) == nil || errors.Is(t.signal(0), unix.EPERM) }

// attacker is a leader whose child, in a session of its own, attacks those above: so it outlives what its success does to
// the leader.
func attacker(name string) program {
	return func(args []string) int {
		say(Ready)
		spawn(name+"-inner", &syscall.SysProcAttr{Setsid: true}, args...)
		return untilTold()
	}
}

// attack does it to each target, tells what came of it, and waits.
func attack(what string, spared []string, f func(target) error) []target {
	targets := above(spared)
	if len(targets) == 0 {
		tell(what, "nobody", errNobody)
	}
	for _, t := range targets {
		if !t.alive() {
			continue // it went with the one before
		}
		tell(what, t.name, f(t))
	}
	return targets
}

var errUnmoved = errors.New("it had no effect")

// killer sends those above it all signals in turn, three times, and then the one that cannot be ignored.
func killer(args []string) int {
	attack("kill", args, func(t target) error {
		for range 3 {
			for sig := syscall.Signal(1); sig <= 64; sig++ {
				if sig != syscall.SIGKILL && sig != syscall.SIGSTOP {
					t.signal(sig)
				}
			}
		}
		err := t.signal(syscall.SIGKILL)
		if err == nil && !t.comesTo(0, 'Z', 'X') {
			err = errUnmoved // an init is deaf to its own namespace
		}
		return err
	})
	say(Ready)
	return forEver()
}

// stopper stops those above it.
func stopper(args []string) int {
	attack("stop", args, func(t target) error {
		err := t.signal(syscall.SIGSTOP)
		if err == nil && !t.comesTo('T') {
			err = errUnmoved
		}
		return err
	})
	say(Ready)
	return forEver()
}

// tracer traces every thread of those above it, and never lets them go on.
func tracer(args []string) int {
	runtime.LockOSThread() // a tracer is a thread
	attack("trace", args, func(t target) error {
		err := error(os.ErrNotExist)
		for _, tid := range t.threads() {
			id := pids(t.proc + "/task/" + tid)
			if len(id) == 0 {
				continue
			}
			if e := unix.PtraceSeize(id[len(id)-1]); e != nil {
				err = e
				continue
			}
			err = unix.PtraceInterrupt(id[len(id)-1])
		}
		return err
	})
	say(Ready)
	return forEver()
}

func (t target) threads() []string {
	tasks, _ := filepath.Glob("/proc/" + t.proc + "/task/*")
	for i, dir := range tasks {
		tasks[i] = filepath.Base(dir)
	}
	return tasks
}

// rewriter puts an endless loop where each thread of those above it will go on, by /proc/<pid>/mem, which writes to code
// as well; and, by process_vm_writev(2), the same on their stacks.
func rewriter(args []string) int {
	attack("rewrite", args, func(t target) error {
		mem, err := os.OpenFile("/proc/"+t.proc+"/mem", os.O_RDWR, 0)
		if err == nil {
			defer mem.Close()
			err = errUnmoved
		}
		for _, tid := range t.threads() {
			sp, pc, ok := whereIs(t.proc + "/task/" + tid)
			if ok && mem != nil {
				_, err = mem.WriteAt(endless(), pc)
			}
			if t.writeTo(sp) {
				err = nil
			}
		}
		return err
	})
	say(Ready)
	return forEver()
}

func (t target) writeTo(address int64) bool {
	b := endless()
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(len(b))
	n, err := unix.ProcessVMWritev(t.pid, local, []unix.RemoteIovec{{Base: uintptr(address), Len: len(b)}}, 0)
	return err == nil && n > 0
}

// whereIs reads stack pointer and program counter of a thread that is in a system call (proc_pid_syscall(5)).
func whereIs(task string) (sp, pc int64, ok bool) {
	b, err := os.ReadFile("/proc/" + task + "/syscall")
	fields := strings.Fields(string(b))
	if err != nil || len(fields) != 9 {
		return 0, 0, false
	}
	sp, err = strconv.ParseInt(fields[7], 0, 64)
	if err != nil {
		return 0, 0, false
	}
	pc, err = strconv.ParseInt(fields[8], 0, 64)
	return sp, pc, err == nil && pc > 0
}

// endless is a jump to itself; on other machines it is no instruction at all, which ends the process.
func endless() []byte {
	switch runtime.GOARCH {
	case "amd64":
		return []byte{0xeb, 0xfe}
	case "arm64":
		return binary.LittleEndian.AppendUint32(nil, 0x14000000)
	}
	return make([]byte, 8)
}

// starver takes from those above it the right to any descriptor, which prlimit(2) permits to the same user: poll(2) fails
// when it is asked to watch more than the limit. Then a signal makes them poll again.
func starver(args []string) int {
	targets := attack("starve", args, func(t target) error {
		return unix.Prlimit(t.pid, unix.RLIMIT_NOFILE, &unix.Rlimit{}, nil)
	})
	say(Ready)
	return wake(targets)
}

// choker takes from those above it the right to memory, threads and time.
func choker(args []string) int {
	targets := attack("choke", args, func(t target) error {
		var first error
		for _, resource := range []int{unix.RLIMIT_AS, unix.RLIMIT_DATA, unix.RLIMIT_STACK, unix.RLIMIT_NPROC, unix.RLIMIT_CPU} {
			if err := unix.Prlimit(t.pid, resource, &unix.Rlimit{}, nil); err != nil && first == nil {
				first = err
			}
		}
		return first
	})
	say(Ready)
	return wake(targets)
}

// wake makes the targets do something, again and again.
func wake(targets []target) int {
	for range int(Lifetime / time.Millisecond) {
		for _, t := range targets {
			t.signal(syscall.SIGCHLD)
		}
		time.Sleep(time.Millisecond)
	}
	return 94
}

// captor traces a sibling and never lets it go.
func captor([]string) int {
	sibling := fork(rest, newOrders()) // which says nothing: it may be captured before it could
	spawn("captor-inner", &syscall.SysProcAttr{Setsid: true}, strconv.Itoa(sibling))
	say(Ready)
	return untilTold()
}

func captorInner(args []string) int {
	runtime.LockOSThread()
	pid, err := strconv.Atoi(args[0])
	if err != nil {
		fail("read the sibling", err)
	}
	err = unix.PtraceAttach(pid)
	if err == nil {
		_, err = unix.Wait4(pid, nil, unix.WALL, nil)
	}
	if err == nil {
		// Who is killed would stop once more, for its tracer to look.
		err = unix.PtraceSetOptions(pid, unix.PTRACE_O_TRACEEXIT)
	}
	tell("capture", "its-sibling", err)
	say(Ready)
	return forEver()
}

// mover has a child that moves itself to other cgroups.
func mover([]string) int {
	say(Ready)
	spawn("mover-inner", &syscall.SysProcAttr{Setsid: true})
	return untilTold()
}

// moverInner moves itself to the root of every hierarchy that is mounted; mounts one that nobody has thought of; and has a
// child that is born at the root.
func moverInner([]string) int {
	born := errors.New("there is no second version")
	for _, mount := range cgroupMounts() {
		tell("move", mount.dir, moveTo(mount.dir))
		if mount.v2 {
			born = bearIn(mount.dir)
		}
	}
	tell("bear", "in-cgroup2", born)
	tell("mount", "cgroup2", mountAndMove())
	if born != nil {
		spawn("member", nil)
	}
	say(Ready)
	return forEver()
}

type cgroupMount struct {
	dir string
	v2  bool
}

func cgroupMounts() []cgroupMount {
	b, _ := os.ReadFile("/proc/self/mountinfo")
	var out []cgroupMount
	for line := range strings.Lines(string(b)) {
		head, tail, _ := strings.Cut(line, " - ")
		fields := strings.Fields(head)
		if kind, _, _ := strings.Cut(tail, " "); strings.HasPrefix(kind, "cgroup") && len(fields) > 4 {
			out = append(out, cgroupMount{fields[4], kind == "cgroup2"})
		}
	}
	return out
}

func moveTo(dir string) error {
	f, err := os.OpenFile(dir+"/cgroup.procs", os.O_WRONLY, 0)
	if err != nil {
		return err.(*os.PathError).Err
	}
	defer f.Close()
	_, err = f.WriteString("0")
	return err
}

// bearIn has a child that clone3(2) itself puts into a cgroup. The folder is opened for its name alone (O_PATH), which
// asks for no right on it.
func bearIn(dir string) error {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = spawnAs(Args("member"), os.Environ(), &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd})
	return err
}

// mountAndMove mounts the hierarchy where only this thread can see it.
func mountAndMove() error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("coppice-victim", "/mnt", "cgroup2", 0, ""); err != nil {
		return err
	}
	return moveTo("/mnt")
}
