//go:build darwin || freebsd

package control

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// mayOrder says whether the process at the other end may give orders: the engine's own user or root (LOCAL_PEERCRED,
// unix(4)). A worker is the engine's user, and is not told apart here.
func mayOrder(conn net.Conn) error {
	var cred *unix.Xucred
	var err error
	if raw, rawErr := conn.(*net.UnixConn).SyscallConn(); rawErr != nil {
		err = rawErr
	} else if ctlErr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptXucred(int(fd), unix.SOL_LOCAL, unix.LOCAL_PEERCRED) }); ctlErr != nil {
		err = ctlErr
	}
	switch {
	case err != nil:
		return fmt.Errorf("%w: who it is cannot be told: %w", ErrRefused, err)
	case cred.Uid != 0 && int(cred.Uid) != os.Geteuid():
		return fmt.Errorf("%w: it runs as user %d", ErrRefused, cred.Uid)
	}
	return nil
}
