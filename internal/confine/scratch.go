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

// Folder is a scratch folder. It is held by its identity, not by its path: what a worker puts in its place is never
// taken for it.
type Folder struct {
	Path string // absolute

	parent *os.Root
	name   string
	made   fs.FileInfo
}

// Scratch makes a new scratch folder below parent, which is made too if it is not there; an empty parent is the system's
// folder for temporary files. The name is for people, and may hold anything. Call Remove once the tree that used the folder
// is gone.
func Scratch(parent, name string) (*Folder, error) {
	if parent == "" {
		parent = os.TempDir()
	} else if err := FolderAt(parent); err != nil {
		return nil, err
	}
	parent, err := filepath.Abs(parent)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(parent)
	if err != nil {
		return nil, err
	}
	f := &Folder{parent: root, name: shown(name) + "-" + rand.Text()}
	f.Path = filepath.Join(parent, f.name)
	if err := root.Mkdir(f.name, 0o700); err != nil {
		root.Close()
		return nil, err
	}
	if f.made, err = root.Lstat(f.name); err != nil {
		root.Close()
		return nil, err
	}
	return f, nil
}

// FolderAt makes a folder of the engine's own, and its parents, where it is missing, in the place of anything else that
// stands there: a worker of the same user may have put a link there, which leads anywhere.
func FolderAt(path string) error {
	if info, err := os.Lstat(path); err == nil && !info.IsDir() {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return os.MkdirAll(path, 0o700)
}

// shown is the part of a name that a folder's own name shows.
func shown(name string) string {
	clean := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '-':
			return r
		}
		return '-'
	}, name)
	return clean[:min(len(clean), nameCap)]
}

const (
	batch       = 256         // entries of a folder at a time
	removeLimit = time.Minute // for what goes on growing under a process that has escaped
)

// Remove removes the folder with all that is in it, whatever a worker has made of it: folders that cannot be read are opened
// up, links are not followed. A link or a file in the folder's place is removed, and what it leads to stays; another folder in
// its place is an error and stays. Folders are moved up before they are emptied, so that it takes four descriptors at any
// depth; os.RemoveAll takes one for each level, and runs the engine out of them (seen with 3000 levels under a limit of 256).
//
// It is called once.
func (f *Folder) Remove() error {
	defer f.parent.Close()
	return remove(f.parent, f.name, f.made)
}

// Clear removes whatever stands at path as Remove does, for what an engine before has left. Nothing there is no error.
func Clear(path string) error {
	parent, err := os.OpenRoot(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	return remove(parent, filepath.Base(path), nil)
}

// remove removes an entry of parent, a folder only if it is the one that was made (nil: whichever stands there now).
func remove(parent *os.Root, name string, made fs.FileInfo) error {
	now, err := parent.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !now.IsDir():
		return parent.Remove(name)
	case made == nil:
		made = now
	}
	root, err := parent.OpenRoot(name)
	if errors.Is(err, fs.ErrPermission) && os.SameFile(now, made) && parent.Chmod(name, 0o700) == nil {
		root, err = parent.OpenRoot(name)
	}
	if err != nil {
		return err
	}
	// What was opened is compared: the name may have been given to something else since it was looked at.
	if opened, err := root.Stat("."); err != nil || !os.SameFile(opened, made) {
		root.Close()
		return errors.Join(err, fmt.Errorf("%s is another folder than the one that was made", filepath.Join(parent.Name(), name)))
	}
	root.Chmod(".", 0o700)
	r := remover{root: root, prefix: rand.Text(), until: time.Now().Add(removeLimit)}
	err = r.each(".", r.clear)
	root.Close() // on Windows a folder that is open cannot be removed
	if err != nil {
		return err
	}
	return parent.Remove(name)
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
