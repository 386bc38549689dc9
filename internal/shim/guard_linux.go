package shim

import (
	"runtime"
	"syscall"
	"unsafe"

	"coppice.dev/coppice/internal/shim/sys"
)

// guards makes ready what shall guard the command; a failure is the guard that cannot be had here.
func (c *birth) guards(wanted Guards, carved []string) *failure {
	var bad *failure
	if wanted&(GuardShim|GuardCgroup) != 0 {
		fd, err := newRuleset(wanted, carved)
		if err != 0 {
			bad = &failure{StepLandlock, err}
		}
		c.ruleset = fd
	}
	if wanted&GuardLimits != 0 {
		filter := limitsFilter(wanted&GuardCgroup != 0)
		if filter == nil {
			return &failure{StepSeccomp, syscall.ENOSYS}
		}
		c.filter = &syscall.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	}
	return bad
}

// SignalScope is the first Landlock ABI that can keep signals inside of a domain (Linux 6.12; landlock(7)).
const SignalScope = 6

// refer is the first whose domains can allow renaming between folders (5.19), truncate the first that knows truncation (6.2).
const (
	refer    = 2
	truncate = 3
)

// newRuleset makes a Landlock ruleset, or the best that can be had and EOPNOTSUPP if that is not all.
//
// Any domain keeps its processes from tracing what is outside (landlock(7)); from ABI 6 on one can keep them from signalling
// it. A domain that handles no access to files leaves mount(2) alone.
func newRuleset(wanted Guards, carved []string) (int, syscall.Errno) {
	abi, _, errno := syscall.Syscall(sys.SYS_LANDLOCK_CREATE_RULESET, 0, 0, sys.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return -1, errno // ENOSYS: not in this kernel; EOPNOTSUPP: not among its enabled security modules
	}
	var attr sys.LandlockRulesetAttr
	size := unsafe.Sizeof(attr.Access_fs)
	if abi >= SignalScope {
		attr.Scoped = sys.LANDLOCK_SCOPE_SIGNAL
		size = unsafe.Offsetof(attr.Scoped) + unsafe.Sizeof(attr.Scoped)
	}
	if wanted&GuardCgroup != 0 {
		if abi < refer {
			return -1, syscall.EOPNOTSUPP
		}
		attr.Access_fs = sys.LANDLOCK_ACCESS_FS_WRITE_FILE | sys.LANDLOCK_ACCESS_FS_MAKE_DIR |
			sys.LANDLOCK_ACCESS_FS_REMOVE_DIR | sys.LANDLOCK_ACCESS_FS_REFER
		if abi >= truncate {
			attr.Access_fs |= sys.LANDLOCK_ACCESS_FS_TRUNCATE
		}
	} else if attr.Scoped == 0 {
		return -1, syscall.EOPNOTSUPP
	}
	ruleset, _, errno := syscall.Syscall(sys.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0)
	if errno != 0 {
		return -1, errno
	}
	fd := int(ruleset) // close-on-exec from the start
	if wanted&GuardCgroup != 0 {
		if err := allowAround(fd, attr.Access_fs, "/", carved); err != nil {
			syscall.Close(fd)
			errno, _ := err.(syscall.Errno)
			return -1, errno
		}
	}
	if attr.Scoped == 0 {
		return fd, syscall.EOPNOTSUPP
	}
	return fd, 0
}

// ofFiles are the accesses that a rule for something other than a folder may have.
const ofFiles = sys.LANDLOCK_ACCESS_FS_WRITE_FILE | sys.LANDLOCK_ACCESS_FS_TRUNCATE

// allowAround allows the accesses below a folder but for the carved-out ones. Landlock knows allowing alone: so it goes
// down to each of them and allows what lies beside the way. Directly in a folder on the way (/, /sys, /sys/fs) the
// command may then write to what there is now, and not to what comes later.
func allowAround(ruleset int, access uint64, folder string, carved []string) error {
	names, err := readFolder(folder)
	if err != nil {
		return err
	}
	for _, name := range names {
		path := folder + name
		below := false
		for _, c := range carved {
			below = below || c == path || within(c, path+"/")
		}
		if !below {
			if err := allow(ruleset, access, path); err != nil {
				return err
			}
			continue
		}
		on := false
		for _, c := range carved {
			on = on || c == path
		}
		if !on {
			if err := allowAround(ruleset, access, path+"/", carved); err != nil {
				return err
			}
		}
	}
	return nil
}

func within(path, folder string) bool { return len(path) > len(folder) && path[:len(folder)] == folder }

func allow(ruleset int, access uint64, path string) error {
	fd, err := syscall.Open(path, sys.O_PATH|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil // it is gone, or not to be reached: nothing to allow
	}
	defer syscall.Close(fd)
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return err
	}
	switch st.Mode & syscall.S_IFMT {
	case syscall.S_IFLNK:
		return nil // what it leads to has a rule of its own
	case syscall.S_IFDIR:
	default:
		access &= ofFiles
	}
	attr := sys.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(fd)}
	_, _, errno := syscall.Syscall6(sys.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), sys.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&attr)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func readFolder(path string) ([]string, error) {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer syscall.Close(fd)
	var out []string
	buf := make([]byte, 8<<10)
	for {
		n, err := syscall.ReadDirent(fd, buf)
		if err != nil {
			return nil, err
		}
		if n <= 0 {
			return out, nil
		}
		_, _, out = syscall.ParseDirent(buf[:n], -1, out)
	}
}

// limitsFilter refuses prlimit(2) that changes another's limits, with EPERM, and leaves everything else alone. A process
// that names itself by its own pid is refused too: a filter cannot know who asks. nil on an architecture whose numbers
// are not known here.
//
// clone3(2) can have a child born into any cgroup whose folder was opened for its name alone (O_PATH), which Landlock does
// not see. What it is asked lies in memory, where a filter cannot look: so where the cgroup holds the tree, it is said
// not to exist, and everybody takes clone(2).
func limitsFilter(noClone3 bool) []syscall.SockFilter {
	// The offsets of struct seccomp_data: the number, the architecture, and the low and high half of the arguments 0
	// (pid) and 2 (new limit).
	const nr, arch, pid, limit, limitHigh = 0, 4, 16, 32, 36
	type abi struct{ arch, prlimit uint32 }
	var known []abi
	switch runtime.GOARCH {
	case "amd64":
		// x32 has its numbers above 1<<30.
		known = []abi{{sys.AUDIT_ARCH_X86_64, 302}, {sys.AUDIT_ARCH_X86_64, 1<<30 | 302}, {sys.AUDIT_ARCH_I386, 340}}
	case "arm64":
		known = []abi{{sys.AUDIT_ARCH_AARCH64, 261}, {sys.AUDIT_ARCH_ARM, 369}}
	default:
		return nil
	}
	load := func(offset uint32) syscall.SockFilter {
		return syscall.SockFilter{Code: syscall.BPF_LD | syscall.BPF_W | syscall.BPF_ABS, K: offset}
	}
	equal := func(k uint32, yes, no int) syscall.SockFilter {
		return syscall.SockFilter{Code: syscall.BPF_JMP | syscall.BPF_JEQ | syscall.BPF_K, Jt: uint8(yes), Jf: uint8(no), K: k}
	}
	give := func(k uint32) syscall.SockFilter {
		return syscall.SockFilter{Code: syscall.BPF_RET | syscall.BPF_K, K: k}
	}
	var out []syscall.SockFilter
	for _, a := range known {
		var born []syscall.SockFilter
		if noClone3 {
			born = []syscall.SockFilter{equal(a.prlimit&(1<<30)|sys.SYS_CLONE3, 0, 1), give(sys.SECCOMP_RET_ERRNO | uint32(syscall.ENOSYS))}
		}
		out = append(out, load(arch), equal(a.arch, 0, 9+len(born)), load(nr))
		out = append(out, born...)
		out = append(out, equal(a.prlimit, 0, 7),
			load(pid), equal(0, 5, 0), // oneself
			load(limit), equal(0, 0, 2), load(limitHigh), equal(0, 1, 0), // asking alone
			give(sys.SECCOMP_RET_ERRNO|uint32(syscall.EPERM)))
	}
	return append(out, give(sys.SECCOMP_RET_ALLOW))
}
