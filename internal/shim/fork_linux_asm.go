//go:build linux && (amd64 || arm64)

package shim

import "syscall"

// sharing is how the child shares its parent's memory.
const sharing = syscall.CLONE_VM | syscall.CLONE_VFORK

// rawFork calls clone(2) or clone3(2) and returns twice.
func rawFork(trap, a1, a2 uintptr) (pid, errno uintptr)
