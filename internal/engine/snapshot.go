package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"coppice.dev/coppice/internal/config"
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

// takeSnapshot copies the folder into one below parent, unless the same content is there already.
func takeSnapshot(cfg *config.Config, parent string) (Snapshot, error) {
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return Snapshot{}, fmt.Errorf("snapshot: %w", err)
	}
	tmp, err := os.MkdirTemp(parent, ".new-*")
	if err != nil {
		return Snapshot{}, fmt.Errorf("snapshot: %w", err)
	}
	defer os.RemoveAll(tmp)
	c := &copying{from: cfg.Dir, to: tmp, skip: data(cfg), sum: sha256.New()}
	if err := filepath.WalkDir(cfg.Dir, c.visit); err != nil {
		return Snapshot{}, fmt.Errorf("snapshot of %s: %w", cfg.Dir, err)
	}
	s := Snapshot{Hash: hex.EncodeToString(c.sum.Sum(nil))[:16]}
	if s.Dir, err = filepath.Abs(filepath.Join(parent, s.Hash)); err != nil {
		return Snapshot{}, fmt.Errorf("snapshot: %w", err)
	}
	if err := os.RemoveAll(s.Dir); err != nil { // it may have been changed since it was taken
		return Snapshot{}, fmt.Errorf("snapshot: %w", err)
	}
	if err := os.Rename(tmp, s.Dir); err != nil {
		return Snapshot{}, fmt.Errorf("snapshot: %w", err)
	}
	return s, nil
}

// data are the folders that hold what the pipeline moves, and no code.
func data(cfg *config.Config) map[string]bool {
	skip := map[string]bool{filepath.Dir(cfg.Store.Path): true}
	for _, in := range cfg.Inbounds {
		if in.File != nil {
			skip[in.File.Dir], skip[in.File.MoveTo] = true, true
		}
	}
	for _, out := range cfg.Outbounds {
		if out.File != nil {
			skip[out.File.Dir] = true
		}
	}
	// A connection on the folder itself does not take the code away.
	delete(skip, cfg.Dir)
	return skip
}

type copying struct {
	from, to string
	skip     map[string]bool
	sum      hash.Hash
	files    int
	bytes    int64
}

var errTooLarge = errors.New("the folder is too large for handlers: keep data elsewhere, or in folders that connections name")

// visit copies what is code: everything but hidden names, byte code, data folders, and what is neither file nor folder. A
// link to a file is copied as the file that it leads to.
func (c *copying) visit(path string, d fs.DirEntry, err error) error {
	if err != nil {
		return err
	}
	rel, err := filepath.Rel(c.from, path)
	if err != nil || rel == "." {
		return err
	}
	if c.skip[path] || strings.HasPrefix(d.Name(), ".") || d.Name() == "__pycache__" {
		if d.IsDir() {
			return fs.SkipDir
		}
		return nil
	}
	if d.IsDir() {
		return os.Mkdir(filepath.Join(c.to, rel), 0o700)
	}
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	if c.files++; c.files > snapshotFiles || c.bytes+info.Size() > snapshotBytes {
		return errTooLarge
	}
	return c.file(path, rel, info)
}

func (c *copying) file(path, rel string, info fs.FileInfo) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
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
func dropSnapshots(parent, keep string) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.Name() != keep {
			os.RemoveAll(filepath.Join(parent, e.Name()))
		}
	}
}
