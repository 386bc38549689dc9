package confine

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"coppice.dev/coppice/internal/shim"
	"golang.org/x/sys/unix"
)

func probes() []probe {
	return []probe{
		{name: "user-namespace", prepare: inUserNamespace(0), child: useUserNamespace},
		{name: "pid-namespace", prepare: inNamespace(unix.CLONE_NEWPID), child: beInit},
		{name: "proc-mount", prepare: inNamespace(unix.CLONE_NEWPID | unix.CLONE_NEWNS), child: mountProc},
		{name: "network-namespace", prepare: inNamespace(unix.CLONE_NEWNET), child: seeNoNetwork},
		{name: "landlock", child: restrictByLandlock},
		{name: "seccomp", child: refuseBySeccomp},
		{name: "cgroup", here: cgroupHere},
		{name: "cgroup-leaf", prepare: inCgroupLeaf, child: tellCgroup},
		{name: "cgroup-controllers", here: cgroupControllers},
	}
}

// inUserNamespace is for children in a user namespace that maps the user to itself, as the rung pidns-user does, with the
// one capability that its other namespaces ask for.
func inUserNamespace(flags uintptr) func() (*trial, error) {
	return func() (*trial, error) {
		return &trial{attr: &syscall.SysProcAttr{
			Cloneflags:  flags | unix.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}},
			AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN},
		}}, nil
	}
}

// inNamespace is for children in namespaces that root makes directly, and everybody else inside of a user namespace.
func inNamespace(flags uintptr) func() (*trial, error) {
	if os.Geteuid() != 0 {
		return inUserNamespace(flags)
	}
	return func() (*trial, error) { return &trial{attr: &syscall.SysProcAttr{Cloneflags: flags}}, nil }
}

// directly says how inNamespace made them.
func directly() string {
	if os.Geteuid() == 0 {
		return "made directly, as root"
	}
	return "made with a user namespace"
}

// useUserNamespace uses a capability of the namespace: AppArmor may let it be made and then void its capabilities.
func useUserNamespace() (string, error) {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWUTS); err != nil {
		return "", fmt.Errorf("use a capability in the namespace: %w", err)
	}
	return fmt.Sprintf("made, uid %d mapped to itself, its capabilities work inside", os.Getuid()), nil
}

func beInit() (string, error) {
	if pid := os.Getpid(); pid != 1 {
		return "", fmt.Errorf("the child is process %d of its namespace, not 1", pid)
	}
	return directly(), nil
}

func mountProc() (string, error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return "", fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return "", fmt.Errorf("mount /proc: %w", err)
	}
	if self, err := os.Readlink("/proc/self"); err != nil || self != "1" {
		return "", fmt.Errorf("the new /proc shows the child as %q, not 1", self)
	}
	return directly(), nil
}

func seeNoNetwork() (string, error) {
	b, err := os.ReadFile("/proc/self/net/dev")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		name, _, ok := strings.Cut(line, ":")
		if name = strings.TrimSpace(name); ok && name != "lo" && !fallback(name) {
			return "", fmt.Errorf("the new namespace has the interface %q", name)
		}
	}
	return directly(), nil
}

// fallback knows the tunnels that some kernels put, down and without an address, into each new network namespace
// (sysctl net.core.fb_tunnels_only_for_init_net).
func fallback(name string) bool {
	return slices.Contains([]string{"tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "sit0", "ip6tnl0", "ip6gre0"}, name)
}

// restrictByLandlock restricts this thread and sees that it holds: no file may be opened for writing, no process outside
// be signalled.
func restrictByLandlock() (string, error) {
	runtime.LockOSThread()
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return "", fmt.Errorf("ask for its version: %w", errno)
	}
	if err := openForWriting(); err != nil {
		return "", fmt.Errorf("open %s before: %w", os.DevNull, err)
	}
	attr := unix.LandlockRulesetAttr{Handled_access_fs: unix.LANDLOCK_ACCESS_FS_WRITE_FILE}
	if abi >= shim.SignalScope {
		attr.Scoped = unix.LANDLOCK_SCOPE_SIGNAL
	}
	rules, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return "", fmt.Errorf("make a ruleset: %w", errno)
	}
	defer unix.Close(int(rules))
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return "", fmt.Errorf("set no_new_privs: %w", err)
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, rules, 0, 0); errno != 0 {
		return "", fmt.Errorf("restrict a thread: %w", errno)
	}
	if err := openForWriting(); !errors.Is(err, unix.EACCES) {
		return "", fmt.Errorf("a restricted child could open a file for writing (%v)", err)
	}
	if abi < shim.SignalScope {
		return fmt.Sprintf("ABI %d: a write was refused; signals cannot be refused before ABI %d", abi, shim.SignalScope), nil
	}
	if err := unix.Kill(os.Getppid(), 0); !errors.Is(err, unix.EPERM) {
		return "", fmt.Errorf("a restricted child could signal its parent (%v)", err)
	}
	return fmt.Sprintf("ABI %d: a write was refused, and a signal to the outside", abi), nil
}

func openForWriting() error {
	fd, err := unix.Open(os.DevNull, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// refuseBySeccomp has a filter refuse one harmless system call, with an errno that it would never return by itself.
func refuseBySeccomp() (string, error) {
	runtime.LockOSThread()
	ask := func() error {
		_, _, errno := unix.RawSyscall(unix.SYS_GETPRIORITY, unix.PRIO_PROCESS, 0, 0)
		if errno != 0 {
			return errno
		}
		return nil
	}
	if err := ask(); err != nil {
		return "", fmt.Errorf("getpriority before: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return "", fmt.Errorf("set no_new_privs: %w", err)
	}
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the call's number: offset 0 of struct seccomp_data
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_GETPRIORITY, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EUCLEAN)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.Syscall(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&filter)))
	if errno != 0 {
		return "", fmt.Errorf("install a filter: %w", errno)
	}
	if err := ask(); !errors.Is(err, unix.EUCLEAN) {
		return "", fmt.Errorf("a filtered call was not refused (%v)", err)
	}
	return "a filter refused a call", nil
}
