// Package node holds the Node SDK, package coppice-worker, so that one binary can start Node workers: it lays the SDK among
// the modules of the snapshot of the user's code, where import "coppice-worker" finds it.
package node

import (
	"embed"
	"fmt"
	"path/filepath"

	"coppice.dev/coppice/sdk"
)

// FS holds the files of the package.
//
//go:embed *.js index.d.ts package.json
var FS embed.FS

// Name is the package's name, and that of its folder.
const Name = "coppice-worker"

// WriteTo writes the package into a folder of its name in dir, a folder node_modules, and returns the path of the program to
// start. Files are readable by their owner alone. A folder that is there already is overwritten file by file.
func WriteTo(dir string) (program string, err error) {
	dir = filepath.Join(dir, Name)
	if err := sdk.Write(FS, dir); err != nil {
		return "", fmt.Errorf("write the node sdk: %w", err)
	}
	return filepath.Join(dir, "main.js"), nil
}
