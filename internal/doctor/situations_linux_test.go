package doctor

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"coppice.dev/coppice/tree"
)

// nobody is a user without any rights.
const nobody = 65534

// situate makes a situation of this process, and then is the doctor in it. It is executed with the namespaces that the
// situation needs.
func situate(name string) {
	runtime.LockOSThread()
	var err error
	switch name {
	case "first":
		err = unix.Mount("proc", "/proc", "proc", 0, "")
	case "read-only":
		err = readOnlyCgroups()
	case "no-users":
		if err = os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0); err == nil {
			err = becomeNobody()
		}
	case "filtered":
		err = refuseNamespaces()
	default:
		err = fmt.Errorf("no situation %q", name)
	}
	if err == nil {
		err = syscall.Exec("/proc/self/exe", []string{"doctor", wordExamine}, os.Environ())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func readOnlyCgroups() error {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); strings.Contains(line, " - cgroup2 ") {
			if err := unix.Mount("", f[4], "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
				return err
			}
		}
	}
	return nil
}

// becomeNobody is for all threads, as package syscall does it.
func becomeNobody() error {
	if err := syscall.Setgroups(nil); err != nil {
		return err
	}
	if err := syscall.Setgid(nobody); err != nil {
		return err
	}
	return syscall.Setuid(nobody)
}

// refuseNamespaces refuses unshare(2), clone3(2), and clone(2) into any of the new namespaces, as containers do.
func refuseNamespaces() error {
	const namespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET
	const ret, jeq, jset = unix.BPF_RET | unix.BPF_K, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
		{Code: jeq, K: unix.SYS_UNSHARE, Jt: 5},
		{Code: jeq, K: unix.SYS_CLONE3, Jt: 5},
		{Code: jeq, K: unix.SYS_CLONE, Jf: 2},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 16}, // the flags: the first argument, its low half
		{Code: jset, K: namespaces, Jt: 1},
		{Code: ret, K: unix.SECCOMP_RET_ALLOW},
		{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.Syscall(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&filter)))
	if errno != 0 {
		return errno
	}
	return nil
}

// born gives a command new namespaces.
func born(flags uintptr) func(*exec.Cmd) {
	return func(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags} }
}

func needsRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("missing: root")
	}
	cmd := exec.Command("/bin/true")
	born(unix.CLONE_NEWPID | unix.CLONE_NEWNS)(cmd)
	if err := cmd.Run(); err != nil {
		t.Skipf("missing: namespaces: %v", err)
	}
}

func (x examined) rung(t *testing.T, name string) Rung {
	t.Helper()
	i := slices.IndexFunc(x.Report.Rungs, func(r Rung) bool { return r.Name == name })
	if i < 0 {
		t.Fatalf("no rung %s in %+v", name, x.Report.Rungs)
	}
	return x.Report.Rungs[i]
}

func (x examined) feature(t *testing.T, name string) Feature {
	t.Helper()
	i := slices.IndexFunc(x.Report.Features, func(f Feature) bool { return f.Name == name })
	if i < 0 {
		t.Fatalf("no feature %s in %+v", name, x.Report.Features)
	}
	return x.Report.Features[i]
}

// TestNoCgroupLeft: in a cgroup of its own the doctor leaves none behind, neither of its probes nor of the engine that it
// killed. Red with sweep removed.
func TestNoCgroupLeft(t *testing.T) {
	needsRoot(t)
	var mount string
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, " - cgroup2 ") {
			mount = strings.Fields(line)[4]
		}
	}
	dir, err := os.MkdirTemp(mount, "coppice-test-")
	if mount == "" || err != nil {
		os.Remove(dir)
		t.Skipf("missing: cgroup v2 to make a cgroup in: %v", err)
	}
	folder, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	x := run(t, func(cmd *exec.Cmd) {
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(folder.Fd())}
	}, wordExamine)
	if leaf := x.feature(t, "cgroup-leaf"); !leaf.Works {
		t.Errorf("%+v", leaf)
	}
	var left error
	eventually(t, "an empty cgroup", func() bool {
		left = os.Remove(dir)
		return !errors.Is(left, unix.EBUSY) || len(subfolders(dir)) > 0
	})
	if left != nil {
		t.Errorf("cgroups are left: %v", subfolders(dir))
		for _, sub := range subfolders(dir) {
			os.Remove(sub)
		}
		os.Remove(dir)
	}
}

func subfolders(dir string) []string {
	found, _ := filepath.Glob(filepath.Join(dir, "*", "")) // an error only for a bad pattern
	return slices.DeleteFunc(found, func(path string) bool {
		info, err := os.Stat(path)
		return err != nil || !info.IsDir()
	})
}

// TestFirst: the first process of a PID namespace gets all orphans, and leaves none of them dead and uncollected. Red with
// collectOrphans removed.
func TestFirst(t *testing.T) {
	needsRoot(t)
	x := run(t, born(unix.CLONE_NEWPID|unix.CLONE_NEWNS), wordSituate, "first")
	if !x.Report.Host.First || x.Dead != 0 || x.Living != 0 {
		t.Errorf("first: %v; %d dead and %d living children", x.Report.Host.First, x.Dead, x.Living)
	}
	for _, r := range x.Report.Rungs {
		checkRung(t, r)
	}
	if x.Report.Level != tree.Atomic {
		t.Errorf("level %s", x.Report.Level)
	}
}

// TestForeignProc: a /proc of another PID namespace shows nobody whom one could name or kill; the witness tells all the
// same, and nobody is taken for somebody else.
func TestForeignProc(t *testing.T) {
	needsRoot(t)
	x := run(t, born(unix.CLONE_NEWPID), wordExamine)
	group := x.rung(t, "group")
	if !x.Report.Host.ForeignProc || !group.Kill.Held || len(group.Kill.Escaped) != 0 || !group.HostDeath.Survived {
		t.Errorf("foreign: %v; %+v, %+v", x.Report.Host.ForeignProc, group.Kill, group.HostDeath)
	}
}

// TestReadOnlyCgroups: the leaf is refused for the right reason.
func TestReadOnlyCgroups(t *testing.T) {
	needsRoot(t)
	x := run(t, born(unix.CLONE_NEWNS), wordSituate, "read-only")
	if v2 := x.feature(t, "cgroup"); !v2.Works {
		t.Skipf("missing: cgroup v2: %s", v2.Reason)
	}
	if rung := x.rung(t, "cgroup"); rung.Works || !strings.HasSuffix(rung.Reason, "read-only file system") || rung.Hint == "" {
		t.Errorf("%+v", rung)
	}
	f := x.feature(t, "cgroup-leaf")
	if f.Works || !strings.HasSuffix(f.Reason, "read-only file system") || f.Hint == "" {
		t.Errorf("%+v", f)
	}
}

// TestNoUserNamespaces: the sysctl that forbids them is named, and the user stands lower.
func TestNoUserNamespaces(t *testing.T) {
	needsRoot(t)
	x := run(t, func(cmd *exec.Cmd) {
		all := []syscall.SysProcIDMap{{Size: nobody + 1}}
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: all, GidMappings: all,
			GidMappingsEnableSetgroups: true}
	}, wordSituate, "no-users")
	users, rung := x.feature(t, "user-namespace"), x.rung(t, "pidns-user")
	want := "sysctl -w user.max_user_namespaces=15000 (now 0)"
	if users.Works || !strings.Contains(users.Reason, "no space left") || !strings.HasPrefix(users.Hint, want) {
		t.Errorf("%+v", users)
	}
	if rung.Facts != nil || !strings.HasPrefix(rung.Hint, want) || x.Report.Atomic() || x.Report.Host.User != nobody {
		t.Errorf("%+v, uid %d", rung, x.Report.Host.User)
	}
	subreaper := x.rung(t, "subreaper")
	if checkRung(t, subreaper); !subreaper.Works {
		t.Errorf("%+v", subreaper)
	}
}

// TestFiltered: under a filter that refuses namespaces nothing hangs, and the filter is named.
func TestFiltered(t *testing.T) {
	x := run(t, nil, wordSituate, "filtered")
	for _, name := range []string{"user-namespace", "pid-namespace", "network-namespace", "proc-mount"} {
		f := x.feature(t, name)
		if f.Works || !strings.Contains(f.Reason, "operation not permitted") || f.Hint == "" {
			t.Errorf("%+v", f)
		}
	}
	if hint := x.feature(t, "user-namespace").Hint; !strings.Contains(hint, "seccomp") {
		t.Errorf("hint %q", hint)
	}
	if f := x.feature(t, "cgroup-leaf"); f.Works {
		t.Errorf("a child was born in a cgroup without clone3: %+v", f)
	}
	if pidns := x.rung(t, "pidns"); pidns.Works || !x.Report.Host.Filtered {
		t.Errorf("%+v", pidns)
	}
	subreaper := x.rung(t, "subreaper")
	if checkRung(t, subreaper); !subreaper.Works {
		t.Errorf("%+v", subreaper)
	}
}

// TestAgainstUnshare: another program comes to the same.
func TestAgainstUnshare(t *testing.T) {
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Skip("missing: unshare(1)")
	}
	x := run(t, nil, wordExamine)
	flags := map[string][]string{"user-namespace": {"-U"}, "pid-namespace": {"-p", "-f"}, "network-namespace": {"-n"},
		"proc-mount": {"-p", "-f", "--mount-proc"}}
	for name, args := range flags {
		if os.Geteuid() != 0 {
			args = append([]string{"-U", "-r"}, args...)
		}
		err := exec.Command(unshare, append(args, "/bin/true")...).Run()
		if f := x.feature(t, name); f.Works != (err == nil) {
			t.Errorf("unshare %v: %v, but %+v", args, err, f)
		}
	}
	if abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION); errno == 0 {
		if f := x.feature(t, "landlock"); !strings.HasPrefix(f.Detail, fmt.Sprintf("ABI %d:", abi)) {
			t.Errorf("ABI %d, but %+v", abi, f)
		}
	}
}
