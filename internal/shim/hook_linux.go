package shim

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// marked is set once, by Hook in the program's init, and only read afterwards.
var marked bool

// Marked says whether this program has the hook, so that executing it again makes a shim of it. A program without the
// hook must never be executed again: its own main would run, without end.
func Marked() bool { return marked }

// seals is what the trigger must carry: nobody can have changed it since the engine made it.
const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE

// Hook makes a shim of this process and does not return, if an engine started it to be one; otherwise it notes that the
// program has the hook. It is for package shimhook's init.
func Hook() {
	marked = true
	value, ok := syscall.Getenv(Env)
	if !ok {
		return
	}
	if fd, ok := number(value); ok && triggered(fd) {
		run(fd)
	}
}

// triggered says whether the descriptor is an engine's trigger. A second generation cannot have one: the shim's
// descriptors are close-on-exec.
func triggered(fd int) bool {
	have, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || have&seals != seals {
		return false
	}
	var b [len(Magic) + 1]byte
	n, err := unix.Pread(fd, b[:], 0)
	return err == nil && string(b[:n]) == Magic
}

// NewTrigger makes the sealed file. The caller closes it.
func NewTrigger() (int, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	// A host may refuse memory files that could be executed (sysctl vm.memfd_noexec, Linux 6.3); older kernels do not
	// know the flag.
	fd, err := unix.MemfdCreate("coppice-shim", flags|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL {
		fd, err = unix.MemfdCreate("coppice-shim", flags)
	}
	if err != nil {
		return -1, err
	}
	if _, err := unix.Write(fd, []byte(Magic)); err != nil {
		unix.Close(fd)
		return -1, err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func number(s string) (int, bool) {
	if s == "" || len(s) > 9 { // pids have up to 7 digits (proc_sys_kernel(5))
		return 0, false
	}
	n := 0
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return n, true
}
