package victim

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// systemPrograms are those of Linux alone, and those that it does in its own way.
func systemPrograms() map[string]program {
	return map[string]program{
		"forker": forker, "hopper": hopper, "filler": filler, "nested": nested, "leaderless": leaderless,
		"scribbler": scribbler, "scribbler-last": scribblerLast,
		"adopter": adopter, "unbound": unbound, "captor": captor, "captor-inner": captorInner, "mover": mover,
		"mover-inner": moverInner,
		"killer":      attacker("killer"), "killer-inner": killer, "stopper": attacker("stopper"), "stopper-inner": stopper,
		"tracer": attacker("tracer"), "tracer-inner": tracer, "rewriter": attacker("rewriter"), "rewriter-inner": rewriter,
		"starver": attacker("starver"), "starver-inner": starver, "choker": attacker("choker"), "choker-inner": choker,
		"inspect": inspect, "carried": carried, "hidden": hidden, "hidden-member": hiddenMember, "joiner": joiner,
	}
}

// rename changes the name that /proc shows of the main thread, and so of the process.
func rename(name string) {
	os.WriteFile("/proc/self/comm", []byte(name), 0)
}

// stateOf is the state of a process, by the name of its folder in /proc; 0 if there is none.
func stateOf(pid string) byte {
	fields := statOf(pid)
	if len(fields) == 0 {
		return 0
	}
	return fields[0][0]
}

// statOf are the fields of /proc/<pid>/stat behind the name, the state first.
func statOf(pid string) []string {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return nil
	}
	return strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
}

func formatNano(n int64) string { return strconv.FormatInt(n, 10) }

// carried is another victim, for which standard output is the witness: not every tool leaves more descriptors to its
// command than the first three.
func carried(args []string) int {
	if err := unix.Dup3(1, Witness, 0); err != nil {
		fail("carry", err)
	}
	exe, err := os.Executable()
	if err == nil {
		err = syscall.Exec(exe, Args(args[0], args[1:]...), os.Environ())
	}
	fail("carry", err)
	return 1
}

// adopter is a subreaper of its own: what becomes an orphan below it comes to it, and not to who holds the tree.
func adopter([]string) int {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fail("adopt", err)
	}
	for range 2 {
		spawn("daemon-middle", &syscall.SysProcAttr{Setsid: true})
	}
	say(Ready)
	return untilTold()
}

// unbound is not to be killed by its parent's death, and has children and a daemon.
func unbound([]string) int {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, 0, 0, 0, 0); err != nil { // it is of the thread that was forked (prctl(2))
		fail("clear the signal", err)
	}
	for range 2 {
		spawn("member", nil)
	}
	spawn("daemon-middle", &syscall.SysProcAttr{Setsid: true})
	say(Ready)
	return untilTold()
}

// hidden is a daemon that /proc may hide from its own user, since it is not dumpable (proc(5), hidepid).
func hidden([]string) int {
	unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	spawn("hidden-member", &syscall.SysProcAttr{Setsid: true})
	say(Ready)
	return untilTold()
}

func hiddenMember([]string) int {
	unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	say(Ready)
	return forEver()
}

// joiner joins the cgroup whose cgroup.procs its argument names, takes its parent along, and fills what is left there.
func joiner(args []string) int {
	for _, pid := range []int{os.Getppid(), os.Getpid()} {
		if err := os.WriteFile(args[0], []byte(strconv.Itoa(pid)), 0); err != nil {
			fail("join", err)
		}
	}
	return filler(nil)
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
