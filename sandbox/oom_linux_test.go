package sandbox

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	programs "coppice.dev/coppice/internal/victim"
	"coppice.dev/coppice/tree"
)

// TestOOM: a worker that the kernel kills for want of memory is told from one that somebody kills, by the crash's status and by
// its words. Red without starved in package tree's newTree.
func TestOOM(t *testing.T) {
	dir, err := programs.NarrowCgroup()
	if err != nil {
		t.Skipf("missing: a cgroup with a limit on memory: %v", err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	for _, c := range []struct {
		script string
		oom    tree.OOM
		says   string
	}{
		{"kill -9 $$", tree.OOMNone, "worker died: signal: killed"}, // before the kernel kills one
		{"echo 0 >" + dir + "/cgroup.procs && exec tail /dev/zero", tree.OOMPerhaps, "worker died: signal: killed, perhaps out of memory"},
	} {
		b := filter(t, c.script)
		_, err := b.dispatch("f", 1, "", long)
		var crash *CrashError
		if !errors.As(err, &crash) || crash.Status.Signal != syscall.SIGKILL || crash.Status.OOM != c.oom || !strings.HasSuffix(err.Error(), c.says) {
			t.Errorf("%q: %v; want %q", c.script, err, c.says)
		}
		if err := b.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
