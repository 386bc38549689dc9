//go:build darwin || freebsd

package control

import (
	"net"

	"golang.org/x/sys/unix"
)

// mayOrder says whether the process at the other end may give orders: the engine's own user or root (LOCAL_PEERCRED,
// unix(4)). A worker is the engine's user, and is not told apart here.
func mayOrder(conn net.Conn) error {
	cred, err := credential(conn, func(fd int) (*unix.Xucred, error) {
		return unix.GetsockoptXucred(fd, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
	})
	if err != nil {
		return err
	}
	return ours(cred.Uid)
}
