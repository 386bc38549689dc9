package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"coppice.dev/coppice/tree"
)

// console is a terminal with a program at it, and the person who types and reads.
type console struct {
	t      *testing.T
	master *os.File
	slave  *os.File // keeps the terminal's settings readable after the program's end
	cmd    *exec.Cmd
	ended  chan struct{}

	mu     sync.Mutex
	text   bytes.Buffer  // all that was written
	read   int           // how much of it was expected already
	change chan struct{} // closed and made anew when something was written
}

// atConsole starts a program as the leader of a session with a terminal of its own.
func atConsole(t *testing.T, argv ...string) *console {
	t.Helper()
	c := newConsole(t)
	c.start(exec.Command(argv[0], argv[1:]...))
	return c
}

func newConsole(t *testing.T) *console {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("missing: /dev/ptmx: %v", err)
	}
	raw, err := master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var number int
	raw.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
			number, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(fmt.Sprintf("/dev/pts/%d", number), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("missing: /dev/pts: %v", err)
	}
	c := &console{t: t, master: master, slave: os.NewFile(uintptr(fd), "slave"), change: make(chan struct{})}
	unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80})
	go c.listen()
	t.Cleanup(c.close)
	return c
}

func (c *console) start(cmd *exec.Cmd) {
	c.t.Helper()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.slave, c.slave, c.slave
	cmd.Env = append(os.Environ(), "PS1=$ ", "TERM=xterm", "HISTFILE=", "HOME="+c.t.TempDir(), "BASH_SILENCE_DEPRECATION_WARNING=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	c.cmd, c.ended = cmd, make(chan struct{})
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	go func() {
		defer close(c.ended)
		cmd.Wait() // ProcessState has it
	}()
}

// close ends what is left at the terminal: its hangup first, and the leader for certain.
func (c *console) close() {
	if c.cmd != nil {
		c.cmd.Process.Signal(syscall.SIGHUP) // an error if it has ended
		c.cmd.Process.Signal(syscall.SIGCONT)
		select {
		case <-c.ended:
		case <-time.After(5 * time.Second):
			c.cmd.Process.Kill()
			<-c.ended
		}
	}
	c.slave.Close()
	c.master.Close()
	if c.t.Failed() {
		c.t.Logf("the terminal showed:\n%q", c.shown())
	}
}

func (c *console) listen() {
	b := make([]byte, 4096)
	for {
		n, err := c.master.Read(b)
		c.mu.Lock()
		c.text.Write(b[:n])
		close(c.change)
		c.change = make(chan struct{})
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (c *console) shown() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}

// types sends keys.
func (c *console) types(keys string) {
	c.t.Helper()
	if _, err := c.master.WriteString(keys); err != nil {
		c.t.Fatal(err)
	}
}

// sees waits until what was written since the last look matches, and returns the submatches.
func (c *console) sees(re string) []string {
	c.t.Helper()
	compiled := regexp.MustCompile("(?s)" + re)
	late := time.After(patience)
	for {
		c.mu.Lock()
		rest, change := c.text.Bytes()[c.read:], c.change
		at := compiled.FindSubmatchIndex(rest)
		var found []string
		if at != nil {
			for i := 0; i < len(at); i += 2 {
				found = append(found, string(rest[at[i]:at[i+1]]))
			}
			c.read += at[1]
		}
		c.mu.Unlock()
		if found != nil {
			return found
		}
		select {
		case <-change:
		case <-late:
			c.t.Logf("at the terminal:\n%s", c.session())
			c.t.Fatalf("no match for %s in %q", re, rest)
		}
	}
}

// resumes types fg at the shell and sees re, and then that the shell has given the terminal away: it says what it resumes before
// that, and a key typed in between would be its own.
func (c *console) resumes(re string) {
	c.t.Helper()
	c.types("fg\n")
	c.sees(re)
	given := func() bool {
		group := 0
		raw, err := c.master.SyscallConn()
		if err == nil {
			raw.Control(func(fd uintptr) { group, err = unix.IoctlGetInt(int(fd), unix.TIOCGPGRP) })
		}
		return err == nil && group > 0 && group != c.cmd.Process.Pid
	}
	if !eventually(patience, given) {
		c.t.Fatal("the shell keeps the terminal")
	}
}

// session shows who lives at the terminal, for a test that fails.
func (c *console) session() string {
	out := ""
	for _, p := range processes(func(p process) bool { sid, err := unix.Getsid(p.Pid); return err == nil && sid == c.cmd.Process.Pid }) {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid)) // it may have ended
		out += fmt.Sprintf("%v: %s", p, stat)
	}
	return out
}

// ends waits for the program's end.
func (c *console) ends() syscall.WaitStatus {
	c.t.Helper()
	select {
	case <-c.ended:
	case <-time.After(patience):
		c.t.Fatalf("%v runs on", c.cmd.Args)
	}
	return c.cmd.ProcessState.Sys().(syscall.WaitStatus)
}

// modes are the terminal's.
func (c *console) modes() unix.Termios {
	c.t.Helper()
	m, err := unix.IoctlGetTermios(int(c.slave.Fd()), unix.TCGETS)
	if err != nil {
		c.t.Fatal(err)
	}
	return *m
}

func (c *console) cooked() bool {
	return c.modes().Lflag&(unix.ICANON|unix.ECHO) == unix.ICANON|unix.ECHO
}

// bashAt starts an interactive shell at a new terminal, and waits for its prompt.
func bashAt(t *testing.T) *console {
	t.Helper()
	needs(t, "bash")
	c := atConsole(t, "bash", "--norc", "--noprofile", "--noediting", "-i")
	c.sees(`\$ $`)
	return c
}

// says types a line at the prompt of a shell and waits for the next prompt and for what matches before it.
func (c *console) says(line, re string) []string {
	c.t.Helper()
	c.types(line + "\n")
	return c.sees(regexp.QuoteMeta(line) + `\r\n` + re)
}

func needs(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("missing: %s", p)
		}
	}
}

// eachRung runs a test on each rung that this host gives.
func eachRung(t *testing.T, test func(t *testing.T, rung string)) {
	for _, rung := range rungsHere(t) {
		t.Run(rung, func(t *testing.T) { test(t, rung) })
	}
}

// rungsHere are the rungs by which this host runs anything. Of each other one, a part of the test is skipped.
func rungsHere(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, rung := range tree.Rungs() {
		if err := exec.Command("coppice", "run", "--rung", rung, "--", "true").Run(); err == nil {
			out = append(out, rung)
		} else {
			t.Run(rung, func(t *testing.T) { t.Skipf("missing: rung %s", rung) })
		}
	}
	if len(out) == 0 {
		t.Fatal("there is no rung")
	}
	return out
}
