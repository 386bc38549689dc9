package tty

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// action is the kernel's struct sigaction (rt_sigaction(2)), where handler 0 is the default and 1 ignores.
type action struct {
	handler, flags, restorer uintptr
	mask                     uint64
}

func ignored(sig syscall.Signal) bool {
	var have action
	_, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig), 0, uintptr(unsafe.Pointer(&have)), 8, 0, 0)
	return errno == 0 && have.handler == 1
}

// die sets the signal's default action around the Go runtime, which handles nearly every signal and would print a stack
// trace, or do nothing, where the default is to die. A core file handed to a program is written whatever its size may be
// (core(5)); only a process that is not dumpable leaves none.
func die(sig syscall.Signal, whole bool) {
	runtime.LockOSThread()
	unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	var dies action
	syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&dies)), 0, 8, 0, 0)
	var only unix.Sigset_t
	const word = 8 * int(unsafe.Sizeof(only.Val[0]))
	only.Val[int(sig-1)/word] = 1 << (int(sig-1) % word)
	unix.PthreadSigmask(unix.SIG_UNBLOCK, &only, nil)
	if whole {
		unix.Kill(0, sig)
	}
	// To this thread: it is delivered before the call returns.
	unix.Tgkill(unix.Getpid(), unix.Gettid(), sig)
}
