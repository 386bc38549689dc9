package victim

import (
	"os"
	"syscall"
)

// Orphan executes this program with the arguments, argv[0] among them, detached from its console and in a process group
// of its own, and does not wait for it. There are no inherited descriptors beyond the first three: hold is passed as
// the standard error. The caller's program bounds its own life.
func Orphan(argv []string, hold *os.File) error {
	const detachedProcess = 0x00000008
	return orphan(argv, hold, &os.ProcAttr{Sys: &syscall.SysProcAttr{
		CreationFlags: detachedProcess | syscall.CREATE_NEW_PROCESS_GROUP}})
}
