//go:build unix

package flight

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestFIFO: a FIFO in the place of a record is refused at once, though nobody has its other end. Red without O_NONBLOCK in Read.
func TestFIFO(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, name(1)), 0o600); err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		_, err := Read(dir, 1)
		read <- err
	}()
	select {
	case err := <-read:
		if err == nil {
			t.Error("it is taken")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Read waits")
	}
}
