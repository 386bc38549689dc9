//go:build unix && !linux

package tty

import (
	"strconv"
	"syscall"
)

// die becomes a shell that kills itself. To execute a program is what sets the signals' default actions here: the Go
// runtime handles nearly every signal and would print a stack trace, or do nothing, where the default is to die.
func die(sig syscall.Signal, whole bool) {
	number := strconv.Itoa(int(sig))
	kill := "ulimit -c 0; kill -" + number + " $$"
	if whole {
		kill = "ulimit -c 0; kill -" + number + " 0; kill -" + number + " $$"
	}
	syscall.Exec("/bin/sh", []string{"sh", "-c", kill}, []string{})
}

// CatchStops: see the package.
const CatchStops = false

func stopGroup(sig syscall.Signal) func() {
	signalGroup(sig)
	return func() {}
}

func ignored(syscall.Signal) bool { return false }
