package tree

import (
	"context"
	"os"
	"syscall"
	"testing"

	"coppice.dev/coppice/internal/shim"
	"coppice.dev/coppice/internal/victim/observer"
	"golang.org/x/sys/unix"
)

// witness sees from outside who is left of a tree: all that was born of a victim holds its pipe.
type witness struct {
	*observer.Observer
	t    *testing.T
	hold *os.File // the end to hand over
}

func newWitness(t *testing.T) *witness {
	t.Helper()
	o, err := observer.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := o.Clear(ctx); err != nil {
			t.Error(err)
		}
	})
	return &witness{Observer: o, t: t, hold: o.Hold}
}

// ready waits until n processes of the victim have said that they are there.
func (x *witness) ready(n int) {
	x.t.Helper()
	if err := x.Await(within(x.t), n); err != nil {
		x.t.Fatal(err)
	}
}

func (x *witness) holders() []shim.Process { return x.Holders() }

// gone fails the test unless nobody holds the pipe any more and none of the processes seen earlier exists, not even dead
// and uncollected. Whoever promised emptiness has promised it for now: only the reader of the pipe may take a moment.
func (x *witness) gone(seen []shim.Process) {
	x.t.Helper()
	for _, p := range seen {
		if _, there := p.Now(); there {
			x.t.Errorf("%d %q survives", p.Pid, p.Name)
		}
	}
	x.end()
}

// end waits for the end of the pipe.
func (x *witness) end() {
	x.t.Helper()
	if left, _ := x.Outlive(within(x.t)); len(left) > 0 {
		x.t.Fatalf("the pipe is still held by %+v", left)
	}
}

func openDescriptors() int {
	names, _ := os.ReadDir("/proc/self/fd")
	return len(names)
}

func ownChildren() []shim.Process { return shim.Descendants(os.Getpid()) }

// available are the rungs that this host and user give. Of each other one, a part of the test is skipped.
func available(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, name := range Rungs() {
		tree, err := Start(t.Context(), Spec{Path: "/bin/true", Rung: name})
		if err != nil {
			t.Run(name, func(t *testing.T) { t.Skipf("missing: rung %s: %v", name, err) })
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
