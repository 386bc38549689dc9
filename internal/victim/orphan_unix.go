//go:build unix

package victim

import "syscall"

func orphaned() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
