package tree

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"coppice.dev/coppice/internal/cgroup"
	"coppice.dev/coppice/internal/victim"
	"golang.org/x/sys/unix"
)

// hostWord in the environment names the test that runs in this process on a host of its own.
const hostWord = "COPPICE_TEST_HOST"

// host is a host that gives less: this program is executed again there, for the one test that asks for it.
type host struct {
	flags  uintptr      // namespaces
	mounts func() error // what to change in a mount namespace, before the program is executed
	nobody bool         // as a user without privileges
	enter  func() error // what the program does to itself first
}

// needRoot skips the test for everybody who cannot make another host.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 && os.Getenv(hostWord) == "" {
		t.Skip("missing: root, to make another host")
	}
}

// on runs the calling test on such a host. It is true there, and false in the process that started it, which fails if
// the test failed there.
func (h host) on(t *testing.T) bool {
	t.Helper()
	if os.Getenv(hostWord) == t.Name() {
		if h.enter != nil {
			if err := h.enter(); err != nil {
				t.Fatal(err)
			}
		}
		return true
	}
	if h.mounts != nil || h.nobody {
		needRoot(t)
	}
	bin := executable(t)
	attr := &syscall.SysProcAttr{Cloneflags: h.flags}
	if h.nobody {
		bin = copyForAll(t)
		attr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	cmd := exec.CommandContext(t.Context(), bin, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=3m")
	cmd.Env = []string{"PATH=/bin:/usr/bin", hostWord + "=" + t.Name()}
	cmd.Dir, cmd.SysProcAttr = "/", attr
	out := make(chan error)
	var said []byte
	go func() {
		if h.mounts != nil {
			// The thread is this namespace's for good, and ends with the goroutine.
			runtime.LockOSThread()
			if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), h.mounts()); err != nil {
				out <- err
				return
			}
		}
		var err error
		said, err = cmd.CombinedOutput()
		out <- err
	}()
	if err := <-out; err != nil || !strings.Contains(string(said), "--- PASS: "+t.Name()) {
		t.Errorf("there: %v\n%s", err, said)
	}
	return false
}

// refused is a system call that a filter refuses, with what errno, and only if its first argument has one of the bits, unless
// bits is 0.
type refused struct {
	call  uint32
	errno syscall.Errno
	bits  uint32
}

// filter makes the kernel refuse system calls of this process and its descendants (seccomp(2)).
func filter(calls ...refused) error {
	var program []unix.SockFilter
	for _, c := range calls {
		program = append(program, unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: c.call, Jf: 3})
		if c.bits == 0 {
			program = append(program, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA}, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA})
		} else {
			program = append(program, unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 16},
				unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: c.bits, Jf: 1})
		}
		const refuse = 0x00050000 // SECCOMP_RET_ERRNO
		program = append(program, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: refuse | uint32(c.errno)})
	}
	const allow = 0x7fff0000 // SECCOMP_RET_ALLOW
	program = append(program, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: allow})
	if os.Geteuid() != 0 {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
	}
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := syscall.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&fprog)))
	if errno != 0 {
		return fmt.Errorf("set filter: %w", errno)
	}
	return nil
}

// docker refuses what the default profile of containers does: namespaces, and clone3, whose flags no filter can see.
func docker() error {
	return filter(refused{unix.SYS_CLONE3, unix.ENOSYS, 0},
		refused{unix.SYS_CLONE, unix.EPERM, unix.CLONE_NEWUSER | unix.CLONE_NEWPID},
		refused{unix.SYS_UNSHARE, unix.EPERM, unix.CLONE_NEWUSER | unix.CLONE_NEWPID})
}

// why is the reason that a rung was refused for.
func why(t *testing.T, rung string) string {
	t.Helper()
	tree, err := Start(t.Context(), Spec{Path: "/bin/true", Rung: rung})
	if err == nil {
		tree.Kill(within(t), "test")
		t.Fatalf("%s is to be had", rung)
	}
	var no *LevelError
	if !errors.As(err, &no) || len(no.Tried) != 1 {
		t.Fatal(err)
	}
	return no.Tried[0].Reason
}

// bestEnds starts a daemon on whatever Start takes, and kills it.
func bestEnds(t *testing.T) *Tree {
	t.Helper()
	tree, x, _ := start(t, "", daemon)
	seen := x.holders()
	if _, err := tree.Kill(within(t), "test"); err != nil {
		t.Fatal(err)
	}
	x.gone(seen)
	return tree
}

func wants(t *testing.T, what, have string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(have, w) {
			t.Errorf("%s: %q lacks %q", what, have, w)
		}
	}
}

// In a container with the default profile the subreaper is what is left.
func TestOnAHostWithoutNamespaces(t *testing.T) {
	if !(host{enter: docker}).on(t) {
		return
	}
	user := "operation not permitted"
	if os.Geteuid() != 0 {
		wants(t, "pidns", why(t, "pidns"), "needs root")
	} else {
		wants(t, "pidns", why(t, "pidns"), user)
		wants(t, "cgroup", why(t, "cgroup"), "forking the command", "function not implemented")
	}
	wants(t, "pidns-user", why(t, "pidns-user"), "making a user and a PID namespace", user)
	tree := bestEnds(t)
	if facts := tree.Facts(); facts.Rung != "subreaper" || tree.Level() != Tracked || len(facts.Tried) != 3 {
		t.Errorf("%s: %+v", tree.Level(), facts)
	}
}

func TestOnAHostWithReadOnlyCgroups(t *testing.T) {
	readOnly := func() error {
		mounts, err := cgroup.Mounts()
		for _, m := range mounts {
			err = errors.Join(err, unix.Mount("", m, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		}
		return err
	}
	if !(host{mounts: readOnly}).on(t) {
		return
	}
	wants(t, "cgroup", why(t, "cgroup"), "mkdir", "read-only file system")
	bestEnds(t)
}

// Without Landlock nothing is guarded, and says so; who demands more gets the reasons and nothing is executed.
func TestOnAHostWithoutLandlock(t *testing.T) {
	noLandlock := func() error {
		return filter(refused{unix.SYS_LANDLOCK_CREATE_RULESET, unix.ENOSYS, 0},
			refused{unix.SYS_CLONE, unix.EPERM, unix.CLONE_NEWUSER | unix.CLONE_NEWPID},
			refused{unix.SYS_UNSHARE, unix.EPERM, unix.CLONE_NEWUSER | unix.CLONE_NEWPID})
	}
	if !(host{enter: noLandlock}).on(t) {
		return
	}
	const reason = "entering a Landlock domain: function not implemented"
	for _, rung := range available(t) {
		if rung == "group" {
			continue
		}
		tree, err := Start(t.Context(), Spec{Path: "/bin/true", Rung: rung, NoNewPrivileges: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := tree.Wait(within(t)); err != nil {
			t.Fatal(err)
		}
		if f := tree.Facts(); f.Guarded || f.HostDeathSafe || tree.Level() != Tracked {
			t.Errorf("%s: %s, %+v", rung, tree.Level(), f)
		}
		wants(t, rung, tree.Facts().Unguarded, reason)
	}
	x := newWitness(t)
	stdin, _ := pipe(t)
	tree, err := Start(t.Context(), Spec{Path: executable(t), Args: victim.Args("sleeper"), Level: Atomic, Stdin: stdin,
		Extra: []*os.File{x.hold}, NoNewPrivileges: true})
	x.hold.Close()
	if tree != nil {
		t.Fatalf("%s is to be had: %+v", tree.Level(), tree.Facts())
	}
	wants(t, "refusal", err.Error(), "level atomic is not to be had here", "pidns: ", "pidns-user: ", "cgroup: ",
		"subreaper: its level is tracked only", "group: its level is group only")
	if os.Geteuid() == 0 {
		wants(t, "refusal", err.Error(), "cgroup: "+reason)
	}
	x.end()
	if x.Await(within(t), 1) == nil {
		t.Error("the command ran")
	}
}

// ownProc mounts the /proc of the process's own PID namespace, in its own mount namespace.
func ownProc() error {
	return errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("proc", "/proc", "proc", 0, ""))
}

// collectOrphans does what a host that is PID 1 has to do, when no tree lives.
func collectOrphans(t *testing.T) {
	t.Helper()
	until(t, "all are collected", func() bool {
		unix.Wait4(-1, nil, unix.WNOHANG, nil)
		return len(ownChildren()) == 0
	})
}

// An engine that is PID 1 becomes the parent of every orphan. Its trees leave none; but whoever was not proved gone, because
// he escaped a group or somebody killed his shim, is then the engine's child, and his host has to collect him.
func TestOnAHostOfItsOwn(t *testing.T) {
	needRoot(t)
	if !(host{flags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, enter: ownProc}).on(t) {
		return
	}
	if os.Getpid() != 1 {
		t.Fatal("not PID 1")
	}
	for _, rung := range available(t) {
		for _, end := range []string{"kill", "exit", "shim"} {
			v := daemon
			if rung == "group" {
				v = tried{name: "wide", args: []string{"10"}, ready: 11}
			}
			tree, x, told := start(t, rung, v)
			switch {
			case end == "kill":
				tree.Kill(within(t), "test")
			case end == "shim" && rung != "group":
				kill9(t, shimPid(tree))
			default:
				told.Close()
			}
			_, _, err := tree.Wait(within(t))
			var unproved *SurvivorsError
			if err != nil && (end != "shim" || !errors.As(err, &unproved)) {
				t.Fatal(rung, end, err)
			}
			if end != "shim" && rung != "group" && len(ownChildren()) > 0 {
				t.Errorf("%s, %s: left %+v", rung, end, ownChildren())
			}
			for _, p := range x.holders() {
				p.Kill()
			}
			x.end()
			collectOrphans(t)
		}
	}
}

// hidepid(5) hides the shim from the engine, and a worker that is not dumpable from both. Red on a subreaper with
// killChildren left to a blind shim alone (it walks for ever), and for the leaf with the signal 0 of mayLive left out.
func TestOnAHostThatHidesProcesses(t *testing.T) {
	hide := func() error { return unix.Mount("proc", "/proc", "proc", 0, "hidepid=2") }
	if !(host{mounts: hide, nobody: true}).on(t) {
		return
	}
	me, err := cgroup.EngineName()
	if err != nil {
		t.Fatal(err)
	}
	namespace, _, _ := strings.Cut(me, "-")
	below := t.TempDir() // a folder where a leaf would be, of an engine that is hidden: the init of the host
	leaf := filepath.Join(below, cgroup.LeafPrefix+namespace+"-1-1-x")
	if err := os.Mkdir(leaf, 0o755); err != nil {
		t.Fatal(err)
	}
	if sweepLeaves(below, me); os.Remove(leaf) != nil {
		t.Error("the leaf of a living engine was swept")
	}
	for _, rung := range available(t) {
		if rung == "group" {
			continue
		}
		for _, v := range []tried{daemon, {name: "hidden", ready: 2}} {
			tree, x, _ := start(t, rung, tried{name: v.name, ready: v.ready})
			if _, err := tree.Kill(within(t), "test"); err != nil {
				t.Errorf("%s, %s: %v", rung, v.name, err)
			}
			x.end()
		}
	}
}

// Without /proc a shim that has to walk is refused. One that is PID 1 needs none, if it is told what to execute.
func TestOnAHostWithoutProc(t *testing.T) {
	bare := func() error { return unix.Mount("none", "/proc", "tmpfs", unix.MS_RDONLY, "") }
	if !(host{mounts: bare}).on(t) {
		return
	}
	bin := os.Args[0]
	for _, rung := range Rungs() {
		tree, err := Start(t.Context(), Spec{Path: "/bin/sleep", Args: []string{"sleep", "20"}, Rung: rung, Shim: bin})
		switch rung {
		case "pidns", "group":
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tree.Kill(within(t), "test"); err != nil {
				t.Errorf("%s: %v", rung, err)
			}
		case "subreaper":
			wants(t, rung, fmt.Sprint(err), "looking for the processes of its own PID namespace in /proc: no such file")
		default:
			wants(t, rung, fmt.Sprint(err), "no such file or directory")
		}
	}
	wants(t, "without a shim named", why(t, "pidns"), "no such file")
}

// An engine in a PID namespace with the /proc of an outer one: a pid read there is another's. Red for subreaper and
// for the members with the question of OwnProc removed.
func TestOnAHostWithAnothersProc(t *testing.T) {
	needRoot(t)
	if !(host{flags: unix.CLONE_NEWPID}).on(t) {
		return
	}
	for _, rung := range Rungs() {
		tree, err := Start(t.Context(), Spec{Path: "/bin/sleep", Args: []string{"sleep", "20"}, Rung: rung, Shim: executable(t)})
		switch rung {
		case "pidns", "pidns-user", "group":
			if err != nil {
				t.Fatal(err)
			}
			if rung != "group" {
				if _, err := tree.Members(); !errors.Is(err, errNoProc) {
					t.Errorf("members: %v", err)
				}
			}
			if _, err := tree.Kill(within(t), "test"); err != nil {
				t.Errorf("%s: %v", rung, err)
			}
		case "cgroup":
			wants(t, rung, fmt.Sprint(err), errNoProc.Error())
		default:
			wants(t, rung, fmt.Sprint(err), "looking for the processes of its own PID namespace in /proc")
		}
	}
}
