package sqlite

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"coppice.dev/coppice/internal/store"
)

// fileLock is an exclusive lock on a file of its own beside the database. The kernel drops it when the process ends,
// however it ends. The file stays: removing it would let two owners lock two files of one name.
//
// It is not a lock on the database file, because SQLite takes POSIX locks there, and closing any descriptor of that file
// would drop them (sqlite.org/howtocorrupt.html, section 2.2).
type fileLock struct{ f *os.File }

// acquire locks path, creating it if needed, and writes the process id into it. It does not wait: store.ErrLocked,
// wrapped with the owner's process id, is returned if the lock is held, by this process or another.
func acquire(path string) (*fileLock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lockFile(f); err != nil {
		if errors.Is(err, errHeld) {
			err = fmt.Errorf("%w: %s", store.ErrLocked, owner(f))
		}
		return nil, errors.Join(err, f.Close())
	}
	if err := writeOwner(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &fileLock{f}, nil
}

// release gives the lock up. Closing the descriptor is what does it, so it cannot stay held.
func (l *fileLock) release() error {
	return errors.Join(l.f.Truncate(0), unlockFile(l.f), l.f.Close())
}

// errHeld is lockFile's answer when somebody else has the lock.
var errHeld = errors.New("lock is held")

// lockFile takes an exclusive lock on f without waiting; errHeld if another descriptor, in any process, has it. It must
// leave f's bytes readable to others, who look there for the owner.
func lockFile(f *os.File) error { return lock(f) }

// unlockFile gives up what lockFile took.
func unlockFile(f *os.File) error { return unlock(f) }

func writeOwner(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// owner describes who holds the lock. An owner that has just locked may not have written its id yet.
func owner(f *os.File) string {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 32))
	pid, convErr := strconv.Atoi(strings.TrimSpace(string(b)))
	switch {
	case err != nil || convErr != nil:
		return "its process id is not known"
	case pid == os.Getpid():
		return fmt.Sprintf("this process, pid %d", pid)
	}
	return fmt.Sprintf("pid %d", pid)
}
