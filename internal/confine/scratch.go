package confine

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// nameCap is how much of a name a scratch folder's own name shows.
const nameCap = 40

// Scratch makes a new scratch folder below parent, which is made too if it is not there; an empty parent is the system's
// folder for temporary files. The name is for people, and may hold anything. Remove removes the folder, once the tree
// that used it is gone.
func Scratch(parent, name string) (string, error) {
	if parent != "" {
		if err := os.MkdirAll(parent, 0o700); err != nil {
			return "", err
		}
	}
	clean := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '-':
			return r
		}
		return '-'
	}, name)
	dir, err := os.MkdirTemp(parent, clean[:min(len(clean), nameCap)]+"-*")
	if err != nil {
		return "", err
	}
	return filepath.Abs(dir)
}

const (
	batch       = 256         // entries of a folder at a time
	removeLimit = time.Minute // for what goes on growing under a process that has escaped
)

// Remove removes a scratch folder with all that is in it, whatever a worker has made of it: folders that cannot be read are
// opened up, links are not followed. Folders are moved up before they are emptied, so that it takes three descriptors at any
// depth; os.RemoveAll takes one for each level, and runs the engine out of them (seen with 3000 levels under a limit of 256).
func Remove(dir string) error {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrPermission) && os.Chmod(dir, 0o700) == nil {
		root, err = os.OpenRoot(dir)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	root.Chmod(".", 0o700)
	r := remover{root: root, prefix: rand.Text(), until: time.Now().Add(removeLimit)}
	err = r.each(".", r.clear)
	root.Close() // on Windows a folder that is open cannot be removed
	if err != nil {
		return err
	}
	return os.Remove(dir)
}

type remover struct {
	root   *os.Root
	prefix string // of the names of folders that have been moved up: the worker cannot know it
	moved  int
	until  time.Time
}

// each calls do, which makes the entry go away, for each entry of a folder until there is none.
func (r *remover) each(folder string, do func(path string, d fs.DirEntry) error) error {
	for {
		f, err := r.root.Open(folder)
		if err != nil {
			return err
		}
		entries, err := f.ReadDir(batch)
		f.Close()
		if err == io.EOF {
			return nil
		}
		if err == nil && time.Now().After(r.until) {
			err = fmt.Errorf("remove %s: not done after %v", r.root.Name(), removeLimit)
		}
		if err != nil {
			return err
		}
		for _, d := range entries {
			if err := do(filepath.Join(folder, d.Name()), d); err != nil {
				return err
			}
		}
	}
}

// clear removes a top entry. Folders that are in it become top entries.
func (r *remover) clear(path string, d fs.DirEntry) error {
	if !d.IsDir() {
		return r.root.Remove(path)
	}
	r.root.Chmod(path, 0o700)
	err := r.each(path, func(path string, d fs.DirEntry) error {
		if !d.IsDir() {
			return r.root.Remove(path)
		}
		r.root.Chmod(path, 0o700) // to move a folder is to write into it
		r.moved++
		return r.root.Rename(path, r.prefix+strconv.Itoa(r.moved))
	})
	if err != nil {
		return err
	}
	return r.root.Remove(path)
}
