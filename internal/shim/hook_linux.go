package shim

import (
	"syscall"

	"coppice.dev/coppice/internal/shim/sys"
)

// marked is set once, by Hook in the program's init, and only read afterwards.
var marked bool

// Marked says whether this program has the hook, so that executing it again makes a shim of it. A program without the
// hook must never be executed again: its own main would run, without end.
func Marked() bool { return marked }

// Seals is what the trigger must carry: nobody can have changed it since the engine made it.
const Seals = sys.F_SEAL_SEAL | sys.F_SEAL_SHRINK | sys.F_SEAL_GROW | sys.F_SEAL_WRITE

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
	have, err := sys.Fcntl(fd, sys.F_GET_SEALS, 0)
	if err != nil || have&Seals != Seals {
		return false
	}
	var b [len(Magic) + 1]byte
	n, err := syscall.Pread(fd, b[:], 0)
	return err == nil && string(b[:n]) == Magic
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
