// Package python holds the Python SDK, package coppice_worker, so that one binary can start Python workers: it lays
// the SDK beside the snapshot of the user's code and starts it with python3 -I -B.
package python

import (
	"embed"
	"fmt"
	"path/filepath"

	"coppice.dev/coppice/sdk"
)

// FS holds the folder coppice_worker.
//
//go:embed coppice_worker/*.py coppice_worker/py.typed
var FS embed.FS

// Program is the path, inside FS and below the folder given to WriteTo, of the program that a worker starts.
const Program = "coppice_worker/__main__.py"

// WriteTo writes the folder coppice_worker into dir and returns the path of the program to start. Files are readable
// by their owner alone. A folder that is there already is overwritten file by file.
func WriteTo(dir string) (program string, err error) {
	if err := sdk.Write(FS, dir); err != nil {
		return "", fmt.Errorf("write the python sdk: %w", err)
	}
	return filepath.Join(dir, filepath.FromSlash(Program)), nil
}
