package main

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// listener is a command that tells of each signal and each line that it gets, and ends at the line q.
const listener = `trap "echo got-INT" INT; trap "echo got-WINCH" WINCH; trap "echo got-CONT" CONT; ` +
	`echo ready; while :; do read x && echo "<$x>" && [ "$x" = q ] && exit 0; done`

// TestRunKey: ^C is delivered once, and to the command alone: it goes on where the command does.
// Red with the terminal not lent: run hands INT on, and cuts.
func TestRunKey(t *testing.T) {
	eachRung(t, func(t *testing.T, rung string) {
		c := atConsole(t, "coppice", "run", "--rung", rung, "--grace", "0", "--deadline", "60", "--", "sh", "-c", listener)
		c.sees("ready")
		c.types("\x03")
		c.sees("got-INT")
		c.types("a\n")
		c.sees("<a>")
		c.types("q\n")
		if ws := c.ends(); ws.ExitStatus() != 0 {
			t.Errorf("ended with %v", ws)
		}
		if n := strings.Count(c.shown(), "got-INT"); n != 1 {
			t.Errorf("^C was delivered %d times", n)
		}
	})
}

// TestRunResize: the kernel tells the foreground group of a new size, and that is the command's.
func TestRunResize(t *testing.T) {
	c := atConsole(t, "coppice", "run", "--deadline", "60", "--", "sh", "-c", listener)
	c.sees("ready")
	if err := unix.IoctlSetWinsize(int(c.slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 10, Col: 33}); err != nil {
		t.Fatal(err)
	}
	c.types("\n") // a shell may wait for the line that it reads before it acts on a trap
	c.sees("got-WINCH")
	c.types("q\n")
	c.ends()
}

// TestRunStop: ^Z stops the command and run, so that the shell has the terminal; fg lets both go on, and the command reads.
// Red with the stop not followed, or with the Go runtime's handler left in place for it: the shell never shows its prompt.
func TestRunStop(t *testing.T) {
	eachRung(t, func(t *testing.T, rung string) {
		c := bashAt(t)
		c.types("coppice run --rung " + rung + " --deadline 60 -- sh -c '" + listener + "'\n")
		c.sees("\nready")
		for range 2 {
			c.types("\x1a")
			c.sees(`\^Z.*Stopped.*\$ $`)
			c.says("echo shell has it", `shell has it\r\n\$ $`)
			c.types("fg\n")
			c.types("\n")
			c.sees("got-CONT")
			c.types("a\n")
			c.sees("<a>")
		}
		c.types("q\n")
		c.sees(`<q>\r\n\$ $`)
		c.says("echo status $?", `status 0\r\n`)
	})
}

// TestRunStopTold: a stop that comes from elsewhere, and as SIGSTOP, gives the shell its terminal, too; and a command that
// cannot be stopped for reading in the background, as an interactive shell, has it back before it reads.
func TestRunStopTold(t *testing.T) {
	c := bashAt(t)
	c.types(`coppice run --deadline 60 -- sh -c 'trap "" TTIN; for i in 1 2 3 4; do echo go-$i; kill -STOP $$; read x; echo "<$x>"; done'` + "\n")
	for i := range 4 {
		c.sees(fmt.Sprintf(`\ngo-%d\r\n.*Stopped.*\$ $`, i+1))
		c.says("sleep 0.4", `\$ $`) // longer than stopTimeout: it and SIGCONT are then due at once
		c.resumes("fg\r\n.*done.\r\n")
		c.types("a\n")
		c.sees(`<a>`)
	}
	c.sees(`\$ $`)
}

// TestRunBackground: in the background the command stops when it reads, as any does, and fg gives it the terminal.
func TestRunBackground(t *testing.T) {
	eachRung(t, func(t *testing.T, rung string) {
		c := bashAt(t)
		c.says("set -b", `\$ $`) // bash tells of a stop at once
		c.types("coppice run --rung " + rung + " --deadline 60 -- cat &\n")
		c.sees(`\[1\] \d+\r\n.*Stopped`)
		c.resumes("fg\r\n.*-- cat\r\n")
		c.types("a line\n")
		c.sees("a line\r\na line\r\n")
		c.types("\x04")
		c.sees(`\$ $`)
	})
}

// TestRunForegrounded: a command that ran in the background and is fetched without having been stopped gets the terminal
// when it asks, and no stop is seen of that.
func TestRunForegrounded(t *testing.T) {
	c := bashAt(t)
	dir := t.TempDir()
	c.says("mkfifo "+dir+"/go", `\$ $`)
	c.types("coppice run --deadline 60 -- sh -c 'read x <" + dir + "/go; read y; echo \"<$y>\"' &\n")
	c.sees(`\[1\] \d+\r\n.*\$ $`)
	c.resumes("fg\r\n.*sh -c")
	if out, err := exec.Command("sh", "-c", "echo go >"+dir+"/go").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c.types("mine\n")
	c.sees(`<mine>\r\n.*\$ $`)
	if strings.Contains(c.shown(), "Stopped") {
		t.Error("a stop was seen")
	}
}

// TestRunShell: an interactive shell in run has its own job control.
// Red with the terminal not given back when run goes on: the shell, which nothing stops for reading, reads an error.
func TestRunShell(t *testing.T) {
	eachRung(t, func(t *testing.T, rung string) {
		c := bashAt(t)
		c.types("coppice run --rung " + rung + " --deadline 60 -- bash --norc --noprofile --noediting -i\n")
		c.sees(`-i\r\n.*\$ $`)
		c.says("PS1='inner> '", "inner> $")
		c.types("cat\n")
		c.types("x\n")
		c.sees("x\r\nx\r\n")
		c.types("\x1a")
		c.sees("Stopped.*inner> $")
		c.says("jobs", ".*Stopped.*cat.*inner> $")
		c.resumes("fg\r\ncat\r\n")
		c.types("y\n")
		c.sees("y\r\ny\r\n")
		c.types("\x03")
		c.sees("inner> $")
		c.says("echo of ^C $?", "of .C 130\r\ninner> $")
		// The shell itself, with a job in the background.
		c.types("sleep 6 & suspend\n")
		c.sees(`Stopped.*\$ $`)
		c.resumes("inner> $")
		c.types("exit 7\n")
		if rung == "group" {
			c.sees(`\$ $`) // a job of its own is what this level does not hold
		} else {
			c.sees(`cut 1 process: .*left behind by bash\r\n\$ $`)
		}
		c.says("echo status $?", "status 7\r\n")
	})
}

// TestRunModes: a full-screen program that is cut leaves the terminal as it was found, modes and owner.
// Red with restore's take removed.
func TestRunModes(t *testing.T) {
	needs(t, "vi")
	eachRung(t, func(t *testing.T, rung string) {
		c := newConsole(t)
		before := c.modes()
		c.start(exec.Command("coppice", "run", "--rung", rung, "--deadline", "60", "--grace", "0", "--", "vi", "-u", "NONE"))
		c.sees("~")
		if !eventually(patience, func() bool { return !c.cooked() }) {
			t.Fatal("vi is not in its own modes")
		}
		c.cmd.Process.Signal(syscall.SIGTERM)
		c.ends()
		if after := c.modes(); after != before {
			t.Errorf("modes were %+v, and are %+v", before, after)
		}
	})
}

// TestRunOwner: after the end the terminal is the caller's, however the command ended and whoever of its tree had it last:
// a shell without job control reads on.
// Red with restore's take removed.
func TestRunOwner(t *testing.T) {
	for name, command := range map[string]string{
		"exit": "true", "killed": "sh -c 'kill -KILL $$'", "not there": "coppice-nowhere", "not executable": "/tmp",
		"cut":     "--deadline 1s --grace 0 -- sleep 60",
		"own job": "--deadline 2s --grace 0 -- bash --norc -ic 'sleep 60'",
		"raw":     "stty raw -echo",
	} {
		t.Run(name, func(t *testing.T) {
			if strings.Contains(command, "bash") {
				needs(t, "bash")
			}
			c := atConsole(t, "sh", "-c", "coppice run "+command+"; echo done; read x; echo \"<$x>\"")
			c.sees("done")
			c.types("a\n")
			c.sees("<a>")
			c.ends()
			if !c.cooked() {
				t.Errorf("modes are %+v", c.modes())
			}
		})
	}
}

// TestRunLoop: one ^C ends a loop, of an interactive shell and of a script.
// Red with the death by the signal replaced by a status, and for the script with the group left out of Die.
func TestRunLoop(t *testing.T) {
	const loop = `for i in 1 2 3; do echo round-$i; coppice run -- sh -c 'echo in; exec sleep 10'; done`
	t.Run("interactive", func(t *testing.T) {
		c := bashAt(t)
		c.types(loop + "\n")
		c.sees("round-1\r\nin\r\n")
		c.types("\x03")
		c.sees(`\$ $`)
		c.says("echo status $?", "status 130\r\n")
		if strings.Contains(c.shown(), "round-2") {
			t.Error("the loop went on")
		}
	})
	for _, shell := range []string{"sh", "bash"} {
		t.Run(shell, func(t *testing.T) {
			needs(t, shell)
			c := atConsole(t, shell, "-c", loop)
			c.sees("round-1\r\nin\r\n")
			c.types("\x03")
			if ws := c.ends(); ws.Signal() != syscall.SIGINT {
				t.Errorf("ended with %v", ws)
			}
			if strings.Contains(c.shown(), "round-2") {
				t.Error("the loop went on")
			}
		})
	}
}

// TestRunPipeline: on either side of a pipe, with a neighbour that needs the terminal or not.
// The pager behind run was seen red, on a busy machine, with the terminal lent: its modes were lost; and before run, with
// stopped not lending it.
func TestRunPipeline(t *testing.T) {
	c := bashAt(t)
	c.says("coppice run -- seq 100000 | head -1", `1\r\n\$ $`)
	c.says("coppice run -- yes | head -1; echo ${PIPESTATUS[0]}", `y\r\n141\r\n\$ $`)
	c.says("echo of a pipe | coppice run -- cat", `of a pipe\r\n\$ $`)
	t.Run("stopped", func(t *testing.T) {
		c := bashAt(t)
		c.types("coppice run --deadline 60 -- sh -c 'echo ready; read x; echo \"<$x>\"' | cat\n")
		c.sees("\nready")
		c.types("\x1a")
		c.sees(`Stopped.*\$ $`)
		c.resumes("fg\r\n")
		c.types("a\n")
		c.sees(`<a>\r\n\$ $`)
	})
	t.Run("pager", func(t *testing.T) {
		needs(t, "less")
		c := bashAt(t)
		for _, pipe := range []string{"coppice run -- seq 1000 | less", "seq 1000 | coppice run -- less",
			"coppice run --deadline 60 -- sh -c 'seq 1000; sleep 50' | less"} {
			c.types(pipe + "\n")
			c.sees(`\n22\r\n23`)
			c.types("\x06") // a page on
			c.sees(`\n45\r\n`)
			c.types("q")
			if strings.Contains(pipe, "sleep") {
				c.sees("1049l") // less has left the screen
				c.types("\x03") // which still goes to both, one way or the other
			}
			c.sees(`\$ $`)
			if strings.Contains(c.shown(), "Stopped") {
				t.Fatalf("%s: a stop was seen", pipe)
			}
		}
	})
}

// TestRunNeighbour: whichever end of a pipe reads from the terminal gets it, and the shell sees nobody stopped.
// Red with moved deaf to SIGTTIN.
func TestRunNeighbour(t *testing.T) {
	c := bashAt(t)
	c.says("cd "+t.TempDir()+"; mkfifo go", `\$ $`)
	c.types(`sh -c 'read x <go; read x </dev/tty; echo "<$x>" >/dev/tty' | coppice run --deadline 60 -- sh -c 'read x </dev/tty; echo "<$x>"; echo >go; cat'` + "\n")
	c.sees("cat'\r\n")
	c.types("a\n")
	c.sees(`<a>\r\n`)
	c.types("b\n")
	c.sees(`<b>\r\n.*\$ $`)
	if strings.Contains(c.shown(), "Stopped") {
		t.Error("a stop was seen")
	}
}
