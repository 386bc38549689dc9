package control

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// mayOrder says whether the process at the other end may give orders: the engine's own user or root, and nobody below the
// engine. SO_PEERCRED is who called connect(2), or socketpair(2), in this process's own numbering (unix(7)).
func mayOrder(conn net.Conn) error {
	cred, err := credential(conn, func(fd int) (*unix.Ucred, error) {
		return unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err != nil {
		return err
	}
	if err := ours(cred.Uid); err != nil {
		return err
	}
	if cred.Pid == 0 { // of another PID namespace that is not below ours
		return nil
	}
	below, err := descends(int(cred.Pid), os.Getpid())
	switch {
	case err != nil:
		return fmt.Errorf("%w: whose child process %d is cannot be told: %w", ErrRefused, cred.Pid, err)
	case below:
		return fmt.Errorf("%w: process %d is one of its own", ErrRefused, cred.Pid)
	}
	return nil
}

// descends says whether a process is below another one. A worker's tree hangs together: whoever is orphaned in it comes to
// the shim, which is the engine's child. A process that has ended has no parent any more and cannot be told: an error.
func descends(pid, ancestor int) (bool, error) {
	for range 1 << 16 { // a chain is not longer than there are processes
		parent, err := parentOf(pid)
		if err != nil || parent == 0 {
			return false, err
		}
		if parent == ancestor {
			return true, nil
		}
		pid = parent
	}
	return false, fmt.Errorf("process %d has too many ancestors", pid)
}

// parentOf reads /proc/PID/stat: "pid (name) state ppid ...", where the name may hold anything (proc_pid_stat(5)).
func parentOf(pid int) (int, error) {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, err
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 || string(fields[0]) == "Z" || string(fields[0]) == "X" {
		return 0, fmt.Errorf("process %d has ended", pid)
	}
	return strconv.Atoi(string(fields[1]))
}

// shorten returns a name for path that fits into a socket's address, which has 108 bytes (unix(7)), by way of its folder's
// descriptor. done closes that.
func shorten(path string) (short string, done func(), err error) {
	if len(path) < len(unix.RawSockaddrUnix{}.Path) {
		return path, func() {}, nil
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)), func() { dir.Close() }, nil
}
