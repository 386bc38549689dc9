package tree

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"coppice.dev/coppice/internal/cgroup"
	"coppice.dev/coppice/internal/shim"
)

// leaves are the cgroups below another whose name says that this identity made them.
func leaves(t *testing.T, below, identity string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(below, cgroup.LeafPrefix+identity+"-*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// sweepOnce is the sweep that each start on the cgroup rung begins with.
func sweepOnce(t *testing.T) {
	t.Helper()
	tree, err := Start(t.Context(), Spec{Path: "/bin/true", Rung: "cgroup"})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := tree.Wait(within(t)); err != nil {
		t.Fatal(err)
	}
}

// needCgroup returns the engine's own cgroup, or ends the test on a host where no leaf can be made.
func needCgroup(t *testing.T) string {
	t.Helper()
	l, err := newLeaf()
	if err != nil {
		t.Skipf("missing: a cgroup to make leaves in: %v", err)
	}
	if err := l.remove(); err != nil {
		t.Fatal(err)
	}
	return filepath.Dir(l.path)
}

// identity is what leaves of the engine are called by.
func (e watched) identity(t *testing.T) string {
	t.Helper()
	me, err := cgroup.EngineName()
	if err != nil {
		t.Fatal(err)
	}
	p, ok := shim.Read(e.cmd.Process.Pid)
	if !ok {
		t.Fatal("the engine is not to be seen")
	}
	namespace, _, _ := strings.Cut(me, "-")
	return fmt.Sprintf("%s-%d-%d", namespace, p.Pid, p.Start)
}

// An engine and its shim are killed together, so that a daemon is left in their cgroup: the next start ends it, and removes
// the cgroup. One whose engine lives is left alone, and so is its tree. Red with sweepLeaves left out; for the living one,
// with the comparison of start times removed from it.
//
// All of them have a cgroup to themselves: other engines of this host would sweep too.
func TestSweepEndsWhatADeadEngineLeft(t *testing.T) {
	place := filepath.Join(needCgroup(t), "coppicetest-"+rand.Text())
	if err := os.Mkdir(place, 0o755); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := removeCgroup(place, maxCgroupDepth); err != nil {
			t.Error(err)
		}
	}()
	folder, err := os.Open(place)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	begin := func(name string, ready int) (watched, *witness) {
		x := newWitness(t)
		e := startEngineIn(t, x, folder, engineWord, "cgroup", "0", name)
		e.await("starting")
		e.await("started")
		x.ready(ready)
		return e, x
	}
	living, lives := begin("sleeper", 1)
	dying, dies := begin("daemon", 2)
	name := dying.identity(t)
	if n := len(leaves(t, place, name)); n != 1 {
		t.Fatalf("%d leaves of %s", n, name)
	}
	dying.killWithShim()
	until(t, "only the daemon is left", func() bool { return len(dies.holders()) == 1 })
	sweeping, sweeps := begin("sleeper", 1)
	dies.end()
	if left := leaves(t, place, name); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if n := len(leaves(t, place, living.identity(t))); n != 1 {
		t.Errorf("%d leaves of the living engine", n)
	}
	if n := len(lives.holders()); n != 1 {
		t.Errorf("%d of the living engine's processes", n)
	}
	for e, x := range map[watched]*witness{living: lives, sweeping: sweeps} {
		e.kill()
		x.end()
	}
}

// killWithShim kills the engine's shim and the engine, which is stopped before, so that it sees nothing of its shim's end.
func (e watched) killWithShim() {
	e.t.Helper()
	pid := e.cmd.Process.Pid
	syscall.Kill(pid, syscall.SIGSTOP)
	until(e.t, "the engine is stopped", func() bool { now, ok := shim.Read(pid); return ok && now.State == 'T' })
	for _, p := range shim.Descendants(pid) {
		if p.Parent == pid {
			p.Kill()
			until(e.t, "the shim is dead", func() bool { return !p.Alive() })
		}
	}
	e.kill()
}

// Whose leaf it is stands in its name. Red for "another start" with the comparison of start times removed from
// sweepLeaves, for "another namespace" with that of namespaces, for "living" with the question whether it lives.
func TestSweepKnowsWhose(t *testing.T) {
	own := needCgroup(t)
	me, err := cgroup.EngineName()
	if err != nil {
		t.Fatal(err)
	}
	namespace, _, _ := strings.Cut(me, "-")
	parent, ok := shim.Read(os.Getppid())
	if !ok {
		t.Fatal("the parent is not to be seen")
	}
	huge := strings.Repeat("9", 60)
	mine := fmt.Sprintf("-coppicetest%d", os.Getpid())
	outside := t.TempDir()
	for name, c := range map[string]struct {
		leaf  string
		swept bool
	}{
		"another start":     {fmt.Sprintf("%s-%d-%d", namespace, os.Getpid(), 1), true},
		"never was":         {namespace + "-4194304-1", true},
		"living":            {fmt.Sprintf("%s-%d-%d", namespace, parent.Pid, parent.Start), false},
		"another namespace": {fmt.Sprintf("%s-%d-%d", "1", os.Getpid(), 1), false},
		"huge pid":          {namespace + "-" + huge + "-1", false},
		"huge start":        {namespace + "-1-" + huge, false},
		"negative pid":      {namespace + "--1-1", false},
		"no pid":            {namespace + "--1", false},
		"own":               {me, false},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(own, cgroup.LeafPrefix+c.leaf+mine)
			deep := path
			for range 10 { // nested, as who may write there could have made it
				deep = filepath.Join(deep, "below")
			}
			if err := os.MkdirAll(deep, 0o755); err != nil {
				t.Fatal(err)
			}
			defer removeCgroup(path, maxCgroupDepth)
			sweepLeaves(own, me)
			if _, err := os.Stat(path); (err != nil) != c.swept {
				t.Errorf("after the sweep: %v", err)
			}
		})
	}
	// A folder of another kind, in which everything is a link to outside, is not a cgroup: nothing of it is followed.
	fake, kept := t.TempDir(), filepath.Join(outside, "kept")
	leaf := filepath.Join(fake, cgroup.LeafPrefix+namespace+"-4194304-1-x")
	for _, err := range []error{os.MkdirAll(kept, 0o755), os.Mkdir(leaf, 0o755), os.Symlink(outside, filepath.Join(leaf, "link")),
		os.Symlink(outside, leaf+"y"), os.WriteFile(filepath.Join(outside, "cgroup.kill"), []byte("kept"), 0o644),
		os.Symlink(filepath.Join(outside, "cgroup.kill"), filepath.Join(leaf, "cgroup.kill"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	sweepLeaves(fake, me)
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(filepath.Join(outside, "cgroup.kill")); err != nil || string(b) != "kept" {
		t.Errorf("a link was followed: %q, %v", b, err)
	}
}
