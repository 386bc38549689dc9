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

// CatchStops: see the package.
const CatchStops = true

// sigaction sets what is to be done on a signal, unless set is nil, and tells what was to be done before.
func sigaction(sig syscall.Signal, set *action) (before action, err error) {
	_, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(set)),
		uintptr(unsafe.Pointer(&before)), 8, 0, 0)
	if errno != 0 {
		return action{}, errno
	}
	return before, nil
}

func ignored(sig syscall.Signal) bool {
	have, err := sigaction(sig, nil)
	return err == nil && have.handler == 1
}

func stopGroup(sig syscall.Signal) func() {
	before, err := sigaction(sig, nil)
	if err == nil && before.handler > 1 { // what was ignored at the start stays so
		sigaction(sig, &action{}) // as the one before, it fails for no signal that can be caught
	}
	unix.Kill(0, sig)
	return func() {
		if err == nil {
			sigaction(sig, &before)
		}
	}
}

// die sets the signal's default action around the Go runtime, which handles nearly every signal and would print a stack
// trace, or do nothing, where the default is to die. A core file handed to a program is written whatever its size may be
// (core(5)); only a process that is not dumpable leaves none.
func die(sig syscall.Signal, whole bool) {
	runtime.LockOSThread()
	unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	sigaction(sig, &action{}) // an error for SIGKILL, which needs none
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
