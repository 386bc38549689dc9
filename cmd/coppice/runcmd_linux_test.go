package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// TestRunDeath: a command's death by a signal is run's own, as the shell sees it, and leaves no core file, whatever the
// Go runtime would have made of the signal.
// Red with Die removed (a status of 128 and more), and for SEGV and QUIT with the default action left unset (exit status 2 and a stack
// trace).
func TestRunDeath(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGABRT, syscall.SIGKILL,
		syscall.SIGUSR1, syscall.SIGSEGV, syscall.SIGPIPE, syscall.SIGTERM, syscall.Signal(40)} {
		t.Run(sig.String(), func(t *testing.T) {
			var said bytes.Buffer
			cmd := exec.Command("sh", "-c", fmt.Sprintf("ulimit -c unlimited; exec coppice run -- sh -c 'ulimit -c 0; kill -%d $$'", sig))
			cmd.Dir, cmd.Stderr = t.TempDir(), &said
			cmd.Run() // the status is looked at
			ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if !ws.Signaled() || ws.Signal() != sig || ws.CoreDump() {
				t.Errorf("ended with %#x, and says %s", ws, said.String())
			}
			if left, err := os.ReadDir(cmd.Dir); err != nil || len(left) > 0 || said.Len() > 0 {
				t.Errorf("left %v, and says %s", left, said.String())
			}
		})
	}
}

// TestRunIgnored: what the caller ignores, run and its command ignore: HUP under nohup(1), INT in a script's background.
// Red with these signals taken in any case.
func TestRunIgnored(t *testing.T) {
	eachRung(t, func(t *testing.T, rung string) {
		dir := t.TempDir()
		// The command ends when it may: it would not if one of the signals had reached it.
		script := fmt.Sprintf(`trap "" HUP INT
			coppice run --rung %s --deadline 60 -- sh -c 'echo up >%s/up; kill -HUP $$; kill -INT $$; while [ ! -e %[2]s/go ]; do sleep 0.02; done; exit 9' &
			echo $!; wait $!`, rung, dir)
		cmd := exec.Command("sh", "-c", script)
		var out bytes.Buffer
		cmd.Stdout = &out
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if !eventually(patience, func() bool { _, err := os.Stat(filepath.Join(dir, "up")); return err == nil }) {
			t.Fatal("the command does not start")
		}
		syscall.Kill(-cmd.Process.Pid, syscall.SIGHUP) // all of the script's group, run among them
		syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
		if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		cmd.Wait() // the status is looked at
		if got := cmd.ProcessState.ExitCode(); got != 9 {
			t.Errorf("ended with %v", cmd.ProcessState)
		}
	})
}

// TestRunKeepsTheLimitOfDescriptors: the one that run was started with, which package syscall raises for Go programs. Red with
// keepFiles left out of shim.birth.bear.
func TestRunKeepsTheLimitOfDescriptors(t *testing.T) {
	eachRung(t, func(t *testing.T, rung string) {
		out, err := exec.Command("sh", "-c", `ulimit -Sn 321 && exec coppice run --rung "$0" -- sh -c 'ulimit -Sn'`, rung).CombinedOutput()
		if string(out) != "321\n" && !strings.HasPrefix(string(out), "321\ncoppice: level group only") || err != nil {
			t.Errorf("%v, %q", err, out)
		}
	})
}

// TestRunWithFewDescriptors: too few for run itself are run's own failure, wherever it finds that out. Red with the
// look for it among a level's reasons left out of failedStart, and for pidns-user with the answer of dup3(2) left as it is.
func TestRunWithFewDescriptors(t *testing.T) {
	eachRung(t, func(t *testing.T, rung string) {
		for n := 8; n <= 20; n += 2 {
			script := fmt.Sprintf(`ulimit -n %d && exec coppice run --quiet --rung "$0" -- true`, n)
			out, err := exec.Command("sh", "-c", script, rung).CombinedOutput()
			few := strings.HasPrefix(string(out), "coppice: run itself has too few descriptors: ")
			var exit *exec.ExitError
			if errors.As(err, &exit) && (exit.ExitCode() != exitOwn || !few) || err == nil && len(out) > 0 {
				t.Errorf("%d: %v, %q", n, err, out)
			}
		}
	})
}

// TestRunReportPlaces: a report that goes to a descriptor of run's own leaves what stands there; a link stays a link, and a file
// keeps its mode. Red with ownDescriptor finding nothing (the file is replaced), and with each of the others left out.
func TestRunReportPlaces(t *testing.T) {
	dir := t.TempDir()
	script := `umask 022; cd "$0" && {
		{ echo before; coppice run --report /dev/stdout -- echo said; echo after; } >out
		coppice run --report /dev/fd/7 -- true 7>seven
		ln -s target link; coppice run --report link -- true
		echo old >kept; chmod 640 kept; coppice run --report kept -- true
	}`
	if out, err := exec.Command("sh", "-c", script, dir).CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("%v, %q", err, out)
	}
	for name, want := range map[string]string{"out": `(?s)^before\nsaid\n\{.*"exit": 0.*\}\nafter\n$`, "seven": `"exit": 0`, "target": `"exit": 0`, "kept": `"exit": 0`} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !regexp.MustCompile(want).Match(b) {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	for name, want := range map[string]os.FileMode{"target": 0o644, "kept": 0o640} {
		if info, err := os.Lstat(filepath.Join(dir, name)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if _, err := os.Readlink(filepath.Join(dir, "link")); err != nil {
		t.Error(err)
	}
}

// TestRunUnderAnothersProc: where /proc is another namespace's, nobody can be counted; run says so where something was cut, and
// nothing where nothing was. A rung that is not to be had there is not taken for a command that is missing. Red with Unseen left
// empty, with alone false, and with the reasons of rungs to be found by errors.As in a tree.LevelError.
func TestRunUnderAnothersProc(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("missing: root, to make a PID namespace")
	}
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"--", "sh", "-c", "exit 4"}, 4, ""},
		{[]string{"--", "sh", "-c", "sleep 30 & exit 4"}, 4, "coppice: cut what there was, which could not be counted: "},
		{[]string{"--deadline", "100ms", "--grace", "0", "--", "sleep", "30"}, exitDeadline,
			"coppice: deadline of 100ms passed: cut what there was, which could not be counted: "},
		{[]string{"--rung", "subreaper", "--", "sh", "-c", "exit 4"}, exitOwn, "coppice: rung subreaper is not to be had here"},
	} {
		cmd := exec.Command("coppice", append([]string{"run"}, c.args...)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
		out, _ := cmd.CombinedOutput() // the status is looked at
		if got := cmd.ProcessState.ExitCode(); got != c.status || !strings.HasPrefix(string(out), c.says) || c.says == "" && len(out) > 0 {
			t.Errorf("%q: status %d, %q", c.args, got, out)
		}
	}
}

// TestRunWithoutTerminal: as from cron, with no terminal at all and nothing to read. A command that stops itself stops
// nobody else there, and its deadline holds.
// Red with stopped following the command also there, by SIGSTOP: nobody lets run go on.
func TestRunWithoutTerminal(t *testing.T) {
	eachRung(t, func(t *testing.T, rung string) {
		cmd := exec.Command("coppice", "run", "--rung", rung, "--deadline", "1s", "--grace", "100ms", "--quiet", "--", "sh", "-c",
			"(: </dev/tty) 2>/dev/null && echo terminal; cat; echo on; kill -STOP $$; exit 4")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		out, _ := cmd.Output() // the status is looked at
		if string(out) != "on\n" || cmd.ProcessState.ExitCode() != exitDeadline {
			t.Errorf("%v, and said %q", cmd.ProcessState, out)
		}
	})
}

// TestRunIsolated: a session without the terminal, of which ^C and ^Z reach the command through run.
func TestRunIsolated(t *testing.T) {
	c := bashAt(t)
	c.types("coppice run --isolated --deadline 60 --grace 50s -- sh -c '(: </dev/tty) 2>/dev/null || echo no terminal; " +
		`trap "echo got-INT; exit 5" INT; echo ready; while :; do sleep 0.05; done` + "'\n")
	c.sees("\nno terminal\r\nready\r\n")
	c.types("\x1a")
	c.sees(`Stopped.*\$ $`)
	c.resumes("fg\r\n.*\r\n")
	c.types("\x03")
	c.sees(`got-INT\r\n.*\$ $`)
	c.says("echo status $?", "status 5\r\n")
}
