//go:build unix

package sandbox

import (
	"os"
	"syscall"
	"time"
)

func ownSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

func killSelf() {
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
	time.Sleep(lifetime)
}

func stopSelf() {
	syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	time.Sleep(lifetime) // this thread may run on for a moment
}

func killParent() error { return syscall.Kill(os.Getppid(), syscall.SIGKILL) }
