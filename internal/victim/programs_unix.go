//go:build unix

package victim

import (
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

var programs map[string]program

func init() { // not in the declaration: the programs look up each other
	programs = map[string]program{
		"sleeper": sleeper, "member": member,
		"daemon": daemon, "daemon-middle": daemonMiddle, "daemon-last": daemonLast,
		"setsid": setsid, "deaf": deaf, "stopped": stopped, "stopped-member": stoppedMember,
		"leaver": leaver, "wide": wide, "deep": deep, "zombies": zombies,
		"forker": forker, "killer": killer, "starver": starver, "inspect": inspect,
	}
}

// spawn executes another victim, which keeps the witness and has no standard input.
func spawn(name string, attr *syscall.SysProcAttr, args ...string) {
	spawnAs(Args(name, args...), os.Environ(), attr)
}

func spawnAs(argv, env []string, attr *syscall.SysProcAttr) int {
	exe, err := os.Executable()
	if err != nil {
		fail("find the executable", err)
	}
	null, err := syscall.Open(os.DevNull, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		fail("open null", err)
	}
	defer syscall.Close(null)
	pid, err := syscall.ForkExec(exe, argv, &syscall.ProcAttr{
		Env: env, Files: []uintptr{uintptr(null), 1, 2, Witness}, Sys: attr})
	if err != nil {
		fail("spawn", err)
	}
	return pid
}

func fail(what string, err error) {
	say("failed", what, err.Error())
	os.Exit(97)
}

// sleeper does nothing.
func sleeper([]string) int {
	say(Ready)
	return untilTold()
}

// member is a descendant that does nothing.
func member([]string) int {
	say(Ready)
	return forEver()
}

// daemon leaves session and parents behind: it forks twice, each time with a session of its own, and the last process
// has an empty environment and another name.
func daemon([]string) int {
	spawn("daemon-middle", &syscall.SysProcAttr{Setsid: true})
	say(Ready)
	return untilTold()
}

func daemonMiddle([]string) int {
	argv := Args("daemon-last")
	argv[0] = "[kworker/0:0]"
	spawnAs(argv, []string{}, &syscall.SysProcAttr{Setsid: true})
	return 0
}

func daemonLast([]string) int {
	rename("kworker/0:0")
	say(Ready)
	return forEver()
}

// setsid gives each of three children a session of its own.
func setsid([]string) int {
	for range 3 {
		spawn("member", &syscall.SysProcAttr{Setsid: true})
	}
	say(Ready)
	return untilTold()
}

// deaf ignores the signals that ask.
func deaf([]string) int {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1)
	say(Ready)
	return untilTold()
}

// stopped stops a child and itself.
func stopped([]string) int {
	spawn("stopped-member", nil)
	say(Ready)
	syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	return forEver()
}

func stoppedMember([]string) int {
	say(Ready)
	syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	return forEver()
}

// leaver exits first and leaves children and a daemon.
func leaver([]string) int {
	for range 3 {
		spawn("member", nil)
	}
	spawn("daemon-middle", &syscall.SysProcAttr{Setsid: true})
	return 3
}

func number(args []string) int {
	n, err := strconv.Atoi(args[0])
	if err != nil || n < 1 || n > 1000 {
		fail("count", os.ErrInvalid)
	}
	return n
}

// forEver waits for the end of the victim's lifetime.
func forEver() int {
	time.Sleep(2 * Lifetime)
	return 94
}
