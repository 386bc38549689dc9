package engine

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/confine"
)

// The caps of a snapshot: a folder of handlers is small, and one beyond this is a data folder by mistake.
const (
	snapshotFiles = 20_000
	snapshotBytes = 512 << 20
)

// Snapshot is a copy of the configuration's folder, named by the hash of what is in it. Workers load their code from there
// alone, so that an edit changes nothing under a running engine.
type Snapshot struct {
	Dir  string // absolute
	Hash string // hex, 16 digits
}

// takeSnapshot copies the folder into one below parent, which is not inUse: workers have that one.
func takeSnapshot(cfg *config.Config, parent, inUse string) (Snapshot, error) {
	return lookAtSnapshot(cfg, parent, inUse, func(string, fs.FileInfo) {})
}

// lookAtSnapshot is takeSnapshot with a look at each folder and file that is copied, by its path from the folder on.
func lookAtSnapshot(cfg *config.Config, parent, inUse string, look func(rel string, info fs.FileInfo)) (Snapshot, error) {
	parent, err := filepath.Abs(parent)
	if err != nil {
		return Snapshot{}, fmt.Errorf("snapshot: %w", err)
	}
	if err := confine.FolderAt(parent); err != nil {
		return Snapshot{}, fmt.Errorf("snapshot: %w", err)
	}
	tmp, err := os.MkdirTemp(parent, ".new-*")
	if err != nil {
		return Snapshot{}, fmt.Errorf("snapshot: %w", err)
	}
	c := &copying{to: tmp, skip: data(cfg), look: look, sum: sha256.New()}
	if info, err := os.Stat(cfg.Dir); err == nil {
		look("", info)
	}
	if err := c.folder(cfg.Dir, "", nil); err != nil {
		confine.Clear(tmp)
		return Snapshot{}, fmt.Errorf("snapshot of %s: %w", cfg.Dir, err)
	}
	s := Snapshot{Hash: hex.EncodeToString(c.sum.Sum(nil))[:16]}
	// One that is there already may have been changed since it was taken, so it is taken anew. What a worker has made
	// impossible to remove stays, and this one goes by another name.
	for _, name := range []string{s.Hash, s.Hash + "-" + rand.Text()} {
		if s.Dir = filepath.Join(parent, name); s.Dir == inUse {
			continue
		}
		if err = confine.Clear(s.Dir); err == nil {
			err = os.Rename(tmp, s.Dir)
		}
		if err == nil {
			return s, nil
		}
	}
	confine.Clear(tmp)
	return Snapshot{}, fmt.Errorf("snapshot: %w", err)
}

// data are the files and folders that hold what the pipeline moves, and the keys of its connections: no code.
func data(cfg *config.Config) map[string]bool {
	skip := map[string]bool{filepath.Dir(cfg.Store.Path): true, stateFolder(cfg): true}
	for _, end := range []string{"", "-wal", "-shm", "-journal", ".lock"} {
		skip[cfg.Store.Path+end] = true
	}
	for _, in := range cfg.Inbounds {
		switch {
		case in.File != nil:
			skip[in.File.Dir], skip[in.File.MoveTo] = true, true
		case in.MLLP != nil && in.MLLP.TLS != nil:
			skip[in.MLLP.TLS.Key] = true
		case in.HTTP != nil && in.HTTP.TLS != nil:
			skip[in.HTTP.TLS.Key] = true
		}
	}
	for _, out := range cfg.Outbounds {
		switch {
		case out.File != nil:
			skip[out.File.Dir] = true
		case out.MLLP != nil && out.MLLP.TLS != nil:
			skip[out.MLLP.TLS.Key] = true
		case out.HTTP != nil && out.HTTP.TLS != nil:
			skip[out.HTTP.TLS.Key] = true
		}
	}
	// A connection on the folder itself, or a store in it, does not take the code away.
	delete(skip, cfg.Dir)
	return skip
}

type copying struct {
	to    string
	skip  map[string]bool
	look  func(rel string, info fs.FileInfo)
	sum   hash.Hash
	files int
	bytes int64
}

var errTooLarge = errors.New("the folder is too large for handlers: keep data elsewhere, or in folders that connections name")

// folder copies what is code: everything but hidden names, byte code, data folders, and what is neither file nor folder. A
// link is copied as what it leads to, unless that is a folder in which the link itself lies. within are the real paths of
// the folders on the way.
func (c *copying) folder(path, rel string, within []string) error {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	if slices.Contains(within, real) {
		return nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, d := range entries {
		if err := c.entry(filepath.Join(path, d.Name()), filepath.Join(rel, d.Name()), append(within, real)); err != nil {
			return err
		}
	}
	return nil
}

func (c *copying) entry(path, rel string, within []string) error {
	name := filepath.Base(path)
	if c.skip[path] || strings.HasPrefix(name, ".") || name == "__pycache__" {
		return nil
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), err != nil && isLink(path):
		return nil // a link to nowhere or in a circle, or gone since it was listed
	case err != nil:
		return err
	case info.IsDir():
		if c.files++; c.files > snapshotFiles {
			return errTooLarge
		}
		c.look(rel, info)
		if err := os.Mkdir(filepath.Join(c.to, rel), 0o700); err != nil {
			return err
		}
		return c.folder(path, rel, within)
	case !info.Mode().IsRegular():
		return nil
	}
	if c.files++; c.files > snapshotFiles || c.bytes+info.Size() > snapshotBytes {
		return errTooLarge
	}
	c.look(rel, info)
	return c.file(path, rel)
}

func isLink(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&fs.ModeSymlink != 0
}

func (c *copying) file(path, rel string) error {
	// Whoever may write in the folder may have put a FIFO there since the look, at which an opening could wait for ever.
	in, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	mode := os.FileMode(0o600) | info.Mode()&0o100
	out, err := os.OpenFile(filepath.Join(c.to, rel), os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	content := sha256.New()
	n, err := io.Copy(io.MultiWriter(out, content), io.LimitReader(in, snapshotBytes-c.bytes+1))
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	if c.bytes += n; c.bytes > snapshotBytes {
		return errTooLarge
	}
	// Names are walked in order, so the sum is the same wherever the folder lies.
	fmt.Fprintf(c.sum, "%q %o %x\n", filepath.ToSlash(rel), mode, content.Sum(nil))
	return nil
}

// dropSnapshots removes all but the one in use.
func dropSnapshots(keep Snapshot) error {
	parent := filepath.Dir(keep.Dir)
	entries, err := os.ReadDir(parent)
	for _, e := range entries {
		if e.Name() != filepath.Base(keep.Dir) {
			err = errors.Join(err, confine.Clear(filepath.Join(parent, e.Name())))
		}
	}
	return err
}
