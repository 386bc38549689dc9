//go:build linux && !amd64 && !arm64

package shim

import (
	"runtime"
	"syscall"
)

// sharing is nothing: without a function in assembler the child has to be a copy.
const sharing = 0

// rawFork calls clone(2) or clone3(2) and returns twice.
//
//go:norace
//go:nosplit
func rawFork(trap, a1, a2 uintptr) (pid, errno uintptr) {
	if trap == syscall.SYS_CLONE && runtime.GOARCH == "s390x" { // the one with the arguments in another order
		a1, a2 = 0, a1
	}
	pid, _, e := syscall.RawSyscall6(trap, a1, a2, 0, 0, 0, 0)
	return pid, uintptr(e)
}
