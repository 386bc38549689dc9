package confine

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
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

// Remove removes a scratch folder with all that is in it. Folders that the worker made unreadable are opened up for it,
// and links are not followed.
func Remove(dir string) error {
	err := os.RemoveAll(dir)
	if err == nil {
		return nil
	}
	root, openErr := os.OpenRoot(dir)
	if openErr != nil {
		return err
	}
	defer root.Close()
	root.Chmod(".", 0o700)
	// A folder is visited before it is read, so that it is open by the time that its own are looked for.
	fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			root.Chmod(path, 0o700)
		}
		return nil
	})
	return os.RemoveAll(dir)
}
