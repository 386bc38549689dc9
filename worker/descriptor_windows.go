package worker

import "syscall"

// notInherited keeps a handle from the programs that this process starts.
func notInherited(handle uintptr) error {
	return syscall.SetHandleInformation(syscall.Handle(handle), syscall.HANDLE_FLAG_INHERIT, 0)
}
