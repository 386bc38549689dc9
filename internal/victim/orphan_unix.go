//go:build unix

package victim

import (
	"os"
	"syscall"
)

// Orphan executes this program with the arguments, argv[0] among them, in a session of its own, with hold as its
// standard error, and does not wait for it. It is the step of a daemon's double fork, for the demonstration; the caller's
// program bounds its own life.
func Orphan(argv []string, hold *os.File) error {
	return orphan(argv, hold, &os.ProcAttr{Sys: &syscall.SysProcAttr{Setsid: true}})
}
