package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"coppice.dev/coppice/internal/shim"
)

// patience bounds every wait of a test that names no bound of its own: long, since machines are busy, and never slept out.
const patience = 30 * time.Second

// TestMain lets the test binary be the program: under the name coppice it runs main, and so do the demonstration's workers,
// which execute it again. A shim never gets here: its init does not return.
func TestMain(m *testing.M) {
	testscript.Main(watched{m}, map[string]func(){"coppice": main})
}

// watched are tests that may leave no child behind.
//
// The check was seen red with the wait taken out of start: a zombie was left.
type watched struct{ m *testing.M }

func (w watched) Run() int {
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} {
		if signal.Ignored(sig) { // as under nohup: what these tests start shall not inherit it
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	status := w.m.Run()
	if left := processes(func(p process) bool { return p.Parent == os.Getpid() }); len(left) > 0 {
		fmt.Fprintln(os.Stderr, "the tests left children behind:", left)
		status = 1
	}
	return status
}

// process is one of this machine, as /proc tells.
type process struct {
	shim.Process
	exe, dir string
	argv     []string
}

func (p process) String() string { return fmt.Sprintf("%d %q in %s", p.Pid, p.argv, p.dir) }

// processes lists the processes that match; none where there is no /proc.
func processes(match func(process) bool) (out []process) {
	for _, p := range shim.All() {
		proc := filepath.Join("/proc", strconv.Itoa(p.Pid))
		argv, _ := os.ReadFile(filepath.Join(proc, "cmdline")) // these three are empty for a zombie
		exe, _ := os.Readlink(filepath.Join(proc, "exe"))
		dir, _ := os.Readlink(filepath.Join(proc, "cwd"))
		if p := (process{p, exe, dir, strings.Split(strings.TrimRight(string(argv), "\x00"), "\x00")}); match(p) {
			out = append(out, p)
		}
	}
	return out
}

// belongs says whether a process is of the script that works in a folder: each has its own copy of the program there.
func belongs(work string) func(process) bool {
	below := work + string(filepath.Separator)
	return func(p process) bool {
		return !p.Dead() && (strings.HasPrefix(p.exe, below) || p.dir == work || strings.HasPrefix(p.dir, below) ||
			strings.Contains(strings.Join(p.argv, "\x00"), below))
	}
}

// eventually waits until something holds, at most for a while.
func eventually(within time.Duration, holds func() bool) bool {
	over := time.Now().Add(within)
	for !holds() {
		if time.Now().After(over) {
			return false
		}
		time.Sleep(5 * time.Millisecond)
	}
	return true
}

// realPython is the folder of the interpreter that python3 is in the end: a version manager's script on the PATH needs a
// home, which scripts do not have.
var realPython = sync.OnceValue(func() string {
	out, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		return ""
	}
	return filepath.Dir(strings.TrimSpace(string(out)))
})
