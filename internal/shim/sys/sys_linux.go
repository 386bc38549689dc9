// Package sys is what the shim needs of Linux and package syscall does not have, under the kernel's own names.
//
// It stands in for golang.org/x/sys/unix for one reason: the order in which a program's packages are initialised. Of
// those whose imports are ready, Go takes the one that is first by its path (spec, "Program initialization"; since Go 1.21
// the linker sorts so). A shim that imports golang.org/x/... comes behind all of crypto/..., encoding/... and
// github.com/..., which it pays for at each start and never uses. The tests compare all of this with package unix.
package sys

import (
	"syscall"
	"unsafe"
)

// System calls. From 424 on a call has one number on every architecture, but for MIPS, where all are shifted.
const (
	shift = syscall.SYS_READ - syscall.SYS_READ%1000

	SYS_PIDFD_SEND_SIGNAL       = shift + 424
	SYS_PIDFD_OPEN              = shift + 434
	SYS_CLONE3                  = shift + 435
	SYS_CLOSE_RANGE             = shift + 436
	SYS_LANDLOCK_CREATE_RULESET = shift + 444
	SYS_LANDLOCK_ADD_RULE       = shift + 445
	SYS_LANDLOCK_RESTRICT_SELF  = shift + 446
)

// Flags and numbers of these and other calls.
const (
	AT_FDCWD             = -0x64
	O_PATH               = 0x200000
	CLONE_INTO_CGROUP    = 0x200000000
	CLOSE_RANGE_CLOEXEC  = 0x4
	EFD_CLOEXEC          = syscall.O_CLOEXEC
	POLLIN               = 0x1
	POLLOUT              = 0x4
	P_ALL                = 0x0
	SIG_SETMASK          = 0x2
	F_ADD_SEALS          = 0x409
	F_GET_SEALS          = 0x40a
	F_SEAL_SEAL          = 0x1
	F_SEAL_SHRINK        = 0x2
	F_SEAL_GROW          = 0x4
	F_SEAL_WRITE         = 0x8
	SECCOMP_MODE_FILTER  = 0x2
	SECCOMP_RET_ERRNO    = 0x50000
	SECCOMP_RET_ALLOW    = 0x7fff0000
	AUDIT_ARCH_X86_64    = 0xc000003e
	AUDIT_ARCH_I386      = 0x40000003
	AUDIT_ARCH_AARCH64   = 0xc00000b7
	AUDIT_ARCH_ARM       = 0x40000028
	CAP_KILL             = 0x5
	CAP_SETPCAP          = 0x8
	CAP_SYS_ADMIN        = 0x15
	CAPABILITY_VERSION_3 = 0x20080522 // _LINUX_CAPABILITY_VERSION_3

	PR_SET_PDEATHSIG         = 0x1
	PR_SET_DUMPABLE          = 0x4
	PR_SET_SECCOMP           = 0x16
	PR_CAPBSET_DROP          = 0x18
	PR_SET_CHILD_SUBREAPER   = 0x24
	PR_SET_NO_NEW_PRIVS      = 0x26
	PR_CAP_AMBIENT           = 0x2f
	PR_CAP_AMBIENT_RAISE     = 0x2
	PR_CAP_AMBIENT_CLEAR_ALL = 0x4

	LANDLOCK_CREATE_RULESET_VERSION = 0x1
	LANDLOCK_RULE_PATH_BENEATH      = 0x1
	LANDLOCK_SCOPE_SIGNAL           = 0x2
	LANDLOCK_ACCESS_FS_WRITE_FILE   = 0x2
	LANDLOCK_ACCESS_FS_REMOVE_DIR   = 0x10
	LANDLOCK_ACCESS_FS_MAKE_DIR     = 0x80
	LANDLOCK_ACCESS_FS_REFER        = 0x2000
	LANDLOCK_ACCESS_FS_TRUNCATE     = 0x4000
)

// PollFd is struct pollfd of poll(2).
type PollFd struct {
	Fd      int32
	Events  int16
	Revents int16
}

// CapHeader says which version of the sets capget(2) and capset(2) mean; of the third, two CapData make the sets.
type CapHeader struct {
	Version uint32
	Pid     int32
}

// CapData is one half of the sets.
type CapData struct {
	Effective   uint32
	Permitted   uint32
	Inheritable uint32
}

// LandlockRulesetAttr is struct landlock_ruleset_attr of landlock_create_ruleset(2).
type LandlockRulesetAttr struct {
	Access_fs  uint64
	Access_net uint64
	Scoped     uint64
}

// LandlockPathBeneathAttr is struct landlock_path_beneath_attr of landlock_add_rule(2), which is packed: 12 bytes are read.
type LandlockPathBeneathAttr struct {
	Allowed_access uint64
	Parent_fd      int32
}

func fail(errno syscall.Errno) error {
	if errno != 0 {
		return errno
	}
	return nil
}

// Prctl is prctl(2).
func Prctl(option int, arg2 uintptr) error {
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, uintptr(option), arg2, 0, 0, 0, 0)
	return fail(errno)
}

// Fcntl is fcntl(2) with a number.
func Fcntl(fd, cmd, arg int) (int, error) {
	r, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), uintptr(cmd), uintptr(arg))
	return int(r), fail(errno)
}

// Poll is poll(2); timeout is in milliseconds, -1 for ever.
func Poll(fds []PollFd, timeout int) (int, error) {
	var limit *syscall.Timespec
	if timeout >= 0 {
		t := syscall.NsecToTimespec(int64(timeout) * 1e6)
		limit = &t
	}
	n, _, errno := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(unsafe.SliceData(fds))), uintptr(len(fds)),
		uintptr(unsafe.Pointer(limit)), 0, 0, 0)
	return int(n), fail(errno)
}

// Eventfd is eventfd(2).
func Eventfd(value uint, flags int) (int, error) {
	fd, _, errno := syscall.RawSyscall(syscall.SYS_EVENTFD2, uintptr(value), uintptr(flags), 0)
	return int(fd), fail(errno)
}

// Waitid is waitid(2) for any child, without a word of which.
func Waitid(idType, id, options int) error {
	_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, uintptr(idType), uintptr(id), 0, uintptr(options), 0, 0)
	return fail(errno)
}

// CloseRange is close_range(2).
func CloseRange(first, last uint, flags int) error {
	_, _, errno := syscall.RawSyscall(SYS_CLOSE_RANGE, uintptr(first), uintptr(last), uintptr(flags))
	return fail(errno)
}

// PidfdOpen is pidfd_open(2); the descriptor is close-on-exec.
func PidfdOpen(pid int) (int, error) {
	fd, _, errno := syscall.RawSyscall(SYS_PIDFD_OPEN, uintptr(pid), 0, 0)
	return int(fd), fail(errno)
}

// PidfdSendSignal is pidfd_send_signal(2).
func PidfdSendSignal(pidfd int, sig syscall.Signal) error {
	_, _, errno := syscall.RawSyscall6(SYS_PIDFD_SEND_SIGNAL, uintptr(pidfd), uintptr(sig), 0, 0, 0, 0)
	return fail(errno)
}

// Capget is capget(2).
func Capget(head *CapHeader, data *[2]CapData) error {
	_, _, errno := syscall.RawSyscall(syscall.SYS_CAPGET, uintptr(unsafe.Pointer(head)), uintptr(unsafe.Pointer(data)), 0)
	return fail(errno)
}
