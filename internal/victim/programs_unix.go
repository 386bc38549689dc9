//go:build unix

package victim

import (
	"io"
	"maps"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// programs are those of every Unix, and the system's own.
func programs() map[string]program {
	all := systemPrograms()
	maps.Copy(all, map[string]program{
		"sleeper": sleeper, "member": member,
		"daemon": daemon, "daemon-middle": daemonMiddle, "daemon-last": daemonLast,
		"setsid": setsid, "deaf": deaf, "stopped": stopped, "stopped-member": stoppedMember,
		"leaver": leaver, "wide": wide, "deep": deep, "zombies": zombies,
	})
	return all
}

// spawn executes another victim, which keeps the witness and has no standard input.
func spawn(name string, attr *syscall.SysProcAttr, args ...string) int {
	pid, err := spawnAs(Args(name, args...), os.Environ(), attr)
	if err != nil {
		fail("spawn", err)
	}
	return pid
}

func spawnAs(argv, env []string, attr *syscall.SysProcAttr) (int, error) {
	exe, err := os.Executable()
	if err != nil {
		return 0, err
	}
	null, err := syscall.Open(os.DevNull, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer syscall.Close(null)
	return syscall.ForkExec(exe, argv, &syscall.ProcAttr{
		Env: env, Files: []uintptr{uintptr(null), 1, 2, Witness}, Sys: attr})
}

// say writes a line on the witness. One write of this size to a pipe is never torn (pipe(7)).
func say(words ...string) {
	if f := os.NewFile(Witness, "witness"); f != nil {
		io.WriteString(f, strings.Join(words, " ")+"\n")
	}
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

// daemonMiddle forks the last process of a daemon and leaves it: the program that args name, or one that sleeps.
func daemonMiddle(args []string) int {
	argv := Args("daemon-last")
	if len(args) > 0 {
		argv = Args(args[0])
	}
	argv[0] = "[kworker/0:0]"
	if _, err := spawnAs(argv, []string{}, &syscall.SysProcAttr{Setsid: true}); err != nil {
		fail("spawn", err)
	}
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
