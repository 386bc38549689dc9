package tree

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"coppice.dev/coppice/internal/shim"
	"coppice.dev/coppice/internal/victim"
	"golang.org/x/sys/unix"
)

// patience bounds every wait of these tests for something that must come.
const patience = victim.Lifetime / 2

// within bounds a wait for what a tree does by itself or by order. It is shorter than a victim's own lifetime: what a
// victim left to itself would come to as well proves nothing.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), victim.Lifetime/2)
	t.Cleanup(cancel)
	return ctx
}

// witness sees from outside who is left of a tree: all that was born of a victim holds its pipe.
type witness struct {
	t     *testing.T
	hold  *os.File // the end to hand over
	inode string
	lines chan string
	eof   chan struct{}
}

func newWitness(t *testing.T) *witness {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	target, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", w.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	x := &witness{t: t, hold: w, inode: target, lines: make(chan string, 4096), eof: make(chan struct{})}
	go func() {
		defer r.Close()
		defer close(x.eof)
		for s := bufio.NewScanner(r); s.Scan(); {
			x.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		w.Close()
		for limit := time.Now().Add(patience); time.Now().Before(limit); time.Sleep(time.Millisecond) {
			select {
			case <-x.eof:
				return
			default:
				x.killHolders() // by pid and start time, and only what holds this test's own pipe
			}
		}
		t.Error("victims are left that cannot be killed")
	})
	return x
}

// ready waits until n processes of the victim have said that they are there.
func (x *witness) ready(n int) {
	x.t.Helper()
	limit := time.After(patience)
	for range n {
		select {
		case line := <-x.lines:
			if line != victim.Ready {
				x.t.Fatalf("victim says %q", line)
			}
		case <-x.eof:
			x.t.Fatal("all victims ended before they were ready")
		case <-limit:
			x.t.Fatal("victims are not ready in time")
		}
	}
}

// holders are the processes other than this one that have the pipe open. A zombie has nothing open.
func (x *witness) holders() []shim.Process {
	var out []shim.Process
	dirs, _ := filepath.Glob("/proc/[0-9]*/fd")
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(strings.Split(dir, "/")[2])
		if pid == os.Getpid() {
			continue
		}
		before, ok := shim.Read(pid)
		for _, fd := range []string{"3", "0", "1", "2", "4", "5"} {
			if target, _ := os.Readlink(dir + "/" + fd); ok && target == x.inode {
				out = append(out, before)
				break
			}
		}
	}
	return out
}

func (x *witness) killHolders() {
	for _, p := range x.holders() {
		p.Kill()
	}
}

// gone fails the test unless nobody holds the pipe any more and none of the processes seen earlier exists, not even dead
// and uncollected. Whoever promised emptiness has promised it for now: only the reader of the pipe may take a moment.
func (x *witness) gone(seen []shim.Process) {
	x.t.Helper()
	for _, p := range seen {
		if now, ok := shim.Read(p.Pid); ok && now.Start == p.Start {
			x.t.Errorf("%d %q survives in state %c", p.Pid, p.Name, now.State)
		}
	}
	x.end()
}

// end waits for the end of the pipe.
func (x *witness) end() {
	x.t.Helper()
	select {
	case <-x.eof:
	case <-time.After(patience):
		x.t.Fatalf("the pipe is still held by %+v", x.holders())
	}
}

// until waits for a condition that no event tells of.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for limit := time.Now().Add(patience); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

func alive(p shim.Process) bool {
	now, ok := shim.Read(p.Pid)
	return ok && now.Start == p.Start && now.State != 'Z'
}

func openDescriptors() int {
	names, _ := os.ReadDir("/proc/self/fd")
	return len(names)
}

func ownChildren() []shim.Process { return shim.Descendants(os.Getpid()) }

// pipe is closed with the test.
func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

func executable(t testing.TB) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

// available are the rungs that this host and user give.
func available(t testing.TB) []string {
	t.Helper()
	var out []string
	for _, name := range Rungs() {
		tree, err := Start(t.Context(), Spec{Path: "/bin/true", Rung: name})
		if err != nil {
			t.Logf("not tested here: %v", err)
			continue
		}
		if _, _, err := tree.Wait(within(t)); err != nil {
			t.Fatal(err)
		}
		out = append(out, name)
	}
	return out
}

// guarded says whether a command that asks for no_new_privs or not, as Start's default does, is guarded on the rung.
func guarded(t *testing.T, rung string) bool {
	t.Helper()
	tree, err := Start(t.Context(), Spec{Path: "/bin/true", Rung: rung})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := tree.Wait(within(t)); err != nil {
		t.Fatal(err)
	}
	return tree.Facts().Guarded
}

// shimPid is the process to attack. A test that asks for it knows that there is a shim.
func shimPid(tree *Tree) int { return tree.hold.(*shimmed).process.Pid }

func kill9(t *testing.T, pid int) {
	t.Helper()
	if pid <= 1 {
		t.Fatalf("pid %d", pid)
	}
	if err := unix.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatalf("kill %d: %v", pid, err)
	}
}
