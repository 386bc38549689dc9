//go:build unix

package worker

import "syscall"

// notInherited keeps a descriptor from the programs that this process starts.
func notInherited(fd uintptr) error {
	syscall.CloseOnExec(int(fd))
	return nil
}
