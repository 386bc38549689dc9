package sqlite

import (
	"errors"
	"path/filepath"
	"testing"
)

// The disk that has the store has some room, and one that is not there has none that is known. Red with a freeSpace that asks
// for another path.
func TestFreeSpace(t *testing.T) {
	path := newPath(t)
	openAt(t, path, Options{})
	free, err := FreeSpace(path)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip("missing: a system that is asked for its disks")
	}
	if err != nil || free <= 0 {
		t.Errorf("%d bytes, %v", free, err)
	}
	if free, err := FreeSpace(filepath.Join(path+".not", "there", "coppice.db")); err == nil {
		t.Errorf("%d bytes are free where there is nothing", free)
	}
}
