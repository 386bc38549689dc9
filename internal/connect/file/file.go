// Package file takes messages from a folder and delivers them into one.
//
// Inbound reads each file once it is quiet, commits it, and then deletes or moves it; the pipeline remembers path, size,
// time and hash, so that a crash between the commit and the move does not read it twice. Outbound writes each delivery
// under a name that holds its id, whole or not at all: a repeat replaces the file with the same bytes.
//
// Both stay inside of their folder (os.Root): a symbolic link that a stranger plants there leads nowhere.
package file

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// Folders that are made are the owner's alone, and so are files: they hold patients' data.
const (
	folderMode = 0o700
	fileMode   = 0o600
)

// makeFolder makes dir and what leads to it, each made durable in its parent.
func makeFolder(dir string) error {
	info, err := os.Stat(dir)
	if err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%s: not a folder", dir)
		}
		return nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(dir)
	if parent != dir {
		if err := makeFolder(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, folderMode); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	root, err := os.OpenRoot(parent)
	if err != nil {
		return err
	}
	defer root.Close()
	return syncFolder(root)
}

// syncFolder makes the names in a folder durable. Windows has no such call for a folder: there the file system's own
// journal keeps the order of a write and a rename, and nothing is done.
func syncFolder(root *os.Root) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("sync folder: %w", err)
	}
	return nil
}
