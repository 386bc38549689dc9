package tree

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"coppice.dev/coppice/internal/victim"
)

// glutton is a command that asks for memory without end once it is let: it is bounded by its cgroup, and by Data besides.
type glutton struct {
	*Tree
	pid int
	let *os.File
}

func startGlutton(t *testing.T, rung string) glutton {
	t.Helper()
	r, w := pipe(t)
	tree, err := Start(t.Context(), Spec{Path: "/bin/sh", Args: []string{"sh", "-c", "read wait; exec tail /dev/zero"},
		Env: []string{"PATH=/bin:/usr/bin"}, Stdin: r, Rung: rung, Limits: Limits{Data: 256 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Kill(within(t), "test") })
	members, err := tree.Members()
	if err != nil || len(members) != 1 {
		t.Fatalf("members %+v, %v", members, err)
	}
	return glutton{tree, members[0].Pid, w}
}

// narrow puts it where there is no memory for it, and tells what can be known of its end: its own cgroup makes that certain, if it
// has the controller.
func (g glutton) narrow(t *testing.T) OOM {
	t.Helper()
	if h, ok := g.hold.(*shimmed); ok && h.leaf != nil {
		if err := os.WriteFile(filepath.Join(h.leaf.path, "memory.max"), []byte(strconv.Itoa(victim.Narrow)), 0o644); err == nil {
			return OOMCertain
		}
	}
	dir, err := victim.NarrowCgroup()
	if err != nil {
		t.Skipf("missing: a cgroup with a limit on memory: %v", err)
	}
	t.Cleanup(func() {
		g.Kill(within(t), "test")
		until(t, "the cgroup is removed", func() bool { return os.Remove(dir) == nil })
	})
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(g.pid)), 0o644); err != nil {
		t.Fatal(err)
	}
	return OOMPerhaps
}

// end waits for the command's.
func (g glutton) end(t *testing.T) Status {
	t.Helper()
	status, _, err := g.Wait(within(t))
	if err != nil {
		t.Fatal(err)
	}
	return status
}

// TestOOM: the kernel really kills a command for want of memory, on each rung. Red without starved in newTree.
func TestOOM(t *testing.T) {
	for _, rung := range available(t) {
		t.Run(rung, func(t *testing.T) {
			g := startGlutton(t, rung)
			want := g.narrow(t)
			g.let.Close()
			says := map[OOM]string{OOMPerhaps: "signal: killed, perhaps out of memory", OOMCertain: "signal: killed, out of memory"}[want]
			if s := g.end(t); s.Signal != syscall.SIGKILL || s.OOM != want || s.String() != says {
				t.Errorf("%+v, %q; want %q", s, s, says)
			}
		})
	}
}

// TestOOMOfAnother: while the kernel kills another command for want of memory, one that is killed by somebody else may have been the
// one, for all that anybody knows; one that is cut, one that dies of another signal and one that exits were not. Red with the
// look at cutBegun left out of newTree, and with the look at the signal left out of starved.
func TestOOMOfAnother(t *testing.T) {
	rung := available(t)[0]
	killed, cut, hungUp := startGlutton(t, rung), startGlutton(t, rung), startGlutton(t, rung)
	exits, err := Start(t.Context(), Spec{Path: "/bin/sh", Args: []string{"sh", "-c", "read wait; exit 3"}, Stdin: func() *os.File {
		r, w := pipe(t)
		t.Cleanup(func() { w.Close() })
		return r
	}(), Rung: rung})
	if err != nil {
		t.Fatal(err)
	}
	other := startGlutton(t, rung)
	other.narrow(t)
	other.let.Close()
	other.end(t)
	kill9(t, killed.pid)
	if err := syscall.Kill(hungUp.pid, syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	cut.Cut("test")
	exits.Signal(syscall.SIGTERM)
	for name, c := range map[string]struct {
		status Status
		want   OOM
	}{
		"killed":      {killed.end(t), OOMPerhaps},
		"cut":         {cut.end(t), OOMNone},
		"hung up":     {hungUp.end(t), OOMNone},
		"asked to go": {glutton{Tree: exits}.end(t), OOMNone},
	} {
		if c.status.OOM != c.want {
			t.Errorf("%s: %+v, want %q", name, c.status, c.want)
		}
	}
}

// TestPlainKill: a SIGKILL alone is none. Red with OOMPerhaps returned by starved without a look at the count.
func TestPlainKill(t *testing.T) {
	before := hostOOM()
	for _, rung := range available(t) {
		g := startGlutton(t, rung)
		kill9(t, g.pid)
		status := g.end(t)
		if before != hostOOM() {
			t.Skip("missing: a host that has memory")
		}
		if status.Signal != syscall.SIGKILL || status.OOM != OOMNone || status.String() != "signal: killed" {
			t.Errorf("%s: %+v, %q", rung, status, status)
		}
	}
}

// TestOOMCounts: what each count, and none, comes to. Red with the own cgroup left out of roseIn, with h.bare left out of
// shimmed.starved, and without the look at the line's end in oomKills for "torn".
func TestOOMCounts(t *testing.T) {
	kills := func(text string) string {
		dir := t.TempDir()
		for _, name := range []string{"memory.events", "vmstat"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	none, one, torn, old := kills("oom 7\noom_kill 0\noom_group_kill 0\n"), kills("oom 0\noom_kill 1\n"), kills("oom 0\noom_kill 1"), kills("oom 3\n")
	for i, c := range []struct {
		before oomCount
		host   string
		own    string
		want   bool
	}{
		{0, one, "", true}, {1, one, "", false}, {-1, one, "", false}, {0, old, "", false}, {0, torn, "", false},
		{0, one, none, false}, {0, one, one, true}, {0, one, old, true},
	} {
		if got := c.before.roseIn(filepath.Join(c.host, "vmstat"), c.own); got != c.want {
			t.Errorf("case %d: %v", i, got)
		}
	}
	for name, c := range map[string]struct {
		h    *shimmed
		oom  OOM
		told bool
	}{
		"no cgroup":                {&shimmed{}, OOMNone, false},
		"one":                      {&shimmed{stage: stage{leaf: &leaf{path: one}}}, OOMCertain, true},
		"none":                     {&shimmed{stage: stage{leaf: &leaf{path: none}}}, OOMNone, true},
		"none, which it may leave": {&shimmed{stage: stage{leaf: &leaf{path: none}}, bare: os.ErrInvalid}, OOMNone, false},
		"no controller":            {&shimmed{stage: stage{leaf: &leaf{path: t.TempDir()}}}, OOMNone, false},
	} {
		if oom, told := c.h.starved(); oom != c.oom || told != c.told {
			t.Errorf("%s: %q, %v", name, oom, told)
		}
	}
	if n := hostOOM(); n < 0 {
		t.Skipf("missing: oom_kill in %s (%d)", hostKills, n)
	}
}

// BenchmarkHostOOM is what each start pays.
func BenchmarkHostOOM(b *testing.B) {
	for b.Loop() {
		if n := hostOOM(); n < -1 {
			b.Fatal(fmt.Sprint(n))
		}
	}
}
