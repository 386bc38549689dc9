//go:build unix

package engine

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"coppice.dev/coppice/internal/config"
)

// TestSnapshotMeetsAFIFO: a FIFO that takes a file's place between the look at it and its opening is not waited for, and is no
// code. Red without O_NONBLOCK (the opening waits), and without the second look (the FIFO is copied as an empty file).
func TestSnapshotMeetsAFIFO(t *testing.T) {
	dir := folder(t, "version = 1\n[inbound.feed]\nmllp = { listen = \"127.0.0.1:0\" }\nhandlers = [\"numbered\"]\n[handler.numbered]\nrun = \"feed.py:numbered\"\nto = []\n")
	cfg, err := config.Load(dir, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	victim := filepath.Join(dir, "victim.py")
	write(t, victim, "x = 1\n")
	swap := func(rel string, _ fs.FileInfo) {
		if rel != "victim.py" {
			return
		}
		if err := os.Remove(victim); err != nil {
			t.Error(err)
		}
		if err := syscall.Mkfifo(victim, 0o600); err != nil {
			t.Error(err)
		}
	}
	type result struct {
		code Snapshot
		err  error
	}
	ended := make(chan result, 1)
	go func() {
		code, err := lookAtSnapshot(cfg, filepath.Join(t.TempDir(), "code"), "", swap)
		ended <- result{code, err}
	}()
	select {
	case r := <-ended:
		if r.err != nil {
			t.Fatal(r.err)
		}
		if _, err := os.Lstat(filepath.Join(r.code.Dir, "feed.py")); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(filepath.Join(r.code.Dir, "victim.py")); err == nil {
			t.Error("the FIFO is in the snapshot")
		}
	case <-time.After(10 * time.Second):
		t.Error("the snapshot waits for somebody who writes to the FIFO")
		if f, err := os.OpenFile(victim, os.O_RDWR, 0); err == nil { // lets it go on
			defer f.Close()
		}
		<-ended
	}
}
