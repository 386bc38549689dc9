// Package sdk writes the SDKs that one binary carries along; its folders hold them.
package sdk

import (
	"io/fs"
	"os"
	"path/filepath"
)

// Write writes all files of an SDK below dir, readable by their owner alone. What is there already is overwritten file by file.
func Write(files fs.FS, dir string) error {
	return fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join(dir, filepath.FromSlash(path))
		if entry.IsDir() {
			return os.MkdirAll(to, 0o700)
		}
		content, err := fs.ReadFile(files, path)
		if err != nil {
			return err
		}
		return os.WriteFile(to, content, 0o600)
	})
}
