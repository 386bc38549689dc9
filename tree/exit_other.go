//go:build unix && !linux && !darwin && !dragonfly && !freebsd && !netbsd && !openbsd

package tree

import (
	"errors"
	"os"
)

const maxRSSUnit = 1 << 10

// awaitExit is not there: the group is then not killed at the command's own end.
func awaitExit(*os.Process, chan<- os.Signal) error { return errors.ErrUnsupported }
