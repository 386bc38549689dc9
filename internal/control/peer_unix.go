//go:build linux || darwin || freebsd

package control

import (
	"fmt"
	"net"
	"os"
)

// credential asks the kernel who is at the other end of a socket.
func credential[T any](conn net.Conn, ask func(fd int) (T, error)) (cred T, err error) {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err == nil {
		ctlErr := raw.Control(func(fd uintptr) { cred, err = ask(int(fd)) })
		if err == nil {
			err = ctlErr
		}
	}
	if err != nil {
		err = fmt.Errorf("%w: who it is cannot be told: %w", ErrRefused, err)
	}
	return cred, err
}

// ours says whether a user is the engine's own, or root.
func ours(uid uint32) error {
	if uid != 0 && int(uid) != os.Geteuid() {
		return fmt.Errorf("%w: it runs as user %d", ErrRefused, uid)
	}
	return nil
}
