package tree

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"coppice.dev/coppice/internal/shim"
	"coppice.dev/coppice/internal/victim"
	"golang.org/x/sys/unix"
)

// bystander is somebody else's process that has been given a number which was a tree's. Three children of it have groups of
// their own. All of them have every signal at its default: whoever gets one dies of it, or stops.
type bystander struct {
	*witness
	cmd  *exec.Cmd
	told *os.File
}

// lend makes a bystander with that pid, which is its group's number too. The number has to be free.
func lend(t *testing.T, pid int) *bystander {
	t.Helper()
	for limit := time.Now().Add(patience); time.Now().Before(limit); {
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(pid-1)), 0); err != nil {
			t.Fatal(err)
		}
		b := &bystander{witness: newWitness(t)}
		in, told := pipe(t)
		b.told = told
		b.cmd = exec.Command(executable(t), victim.Args("setsid")[1:]...)
		b.cmd.Stdin, b.cmd.ExtraFiles, b.cmd.SysProcAttr = in, []*os.File{b.hold}, &syscall.SysProcAttr{Setpgid: true}
		if err := b.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		b.hold.Close()
		t.Cleanup(func() { b.cmd.Process.Kill(); b.cmd.Wait() })
		if b.cmd.Process.Pid == pid {
			b.ready(4)
			return b
		}
		b.cmd.Process.Kill() // a thread has been quicker
		b.cmd.Wait()
		b.fell()
	}
	t.Fatalf("%d is not to be had", pid)
	return nil
}

// fell kills those that are left of it.
func (b *bystander) fell() {
	for _, p := range b.holders() {
		p.Kill()
	}
}

// unharmed fails the test unless all four live, unstopped, and the first ends as it was told.
func (b *bystander) unharmed() {
	b.t.Helper()
	for _, p := range b.holders() {
		if p.State == 'T' {
			b.t.Errorf("%+v has been stopped", p)
		}
	}
	if n := len(b.holders()); n != 4 {
		b.t.Errorf("%d of 4 bystanders are left", n)
	}
	b.told.Close()
	if b.cmd.Wait(); b.cmd.ProcessState.ExitCode() != 3 {
		b.t.Errorf("the bystander: %v", b.cmd.ProcessState)
	}
	b.fell()
	b.end()
	collectOrphans(b.t)
}

// namespaced runs the test in a PID namespace of its own, in which it may give away numbers.
func namespaced(t *testing.T) bool {
	t.Helper()
	needRoot(t)
	return host{flags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, enter: ownProc}.on(t)
}

// everything calls all that a tree offers, and what its holder does, on a tree that has ended.
func everything(t *testing.T, tree *Tree) {
	t.Helper()
	h := tree.hold
	h.kill()
	h.signal(syscall.SIGTERM)
	tree.Cut("again")
	tree.Signal(syscall.SIGTERM)
	if _, err := tree.Kill(within(t), "again"); err != nil {
		t.Error(err)
	}
	if _, _, err := tree.Wait(within(t)); err != nil {
		t.Error(err)
	}
	for _, members := range []func() ([]Member, error){h.members, tree.Members} {
		if m, err := members(); err != nil || len(m) != 0 {
			t.Errorf("members: %+v, %v", m, err)
		}
	}
	if u, err := tree.Usage(); err != nil || u.Processes != 0 || u.Tasks != 0 {
		t.Errorf("usage: %+v, %v", u, err)
	}
}

// The number of a group is another's before its tree has even looked at the command's end. Red with each question for
// reaped removed from grouped, and with another removed from allDead or from groupMembers: the end is never seen, or the
// bystander is a member.
func TestGroupsNumberIsAnothers(t *testing.T) {
	if !namespaced(t) {
		return
	}
	h, err := startGroup(t.Context(), &Spec{Path: "/bin/true", Args: []string{"true"}, Env: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	g := h.(*grouped)
	<-g.done
	b := lend(t, g.process.Pid)
	everything(t, newTree(h, processGroup(), nil, hostOOM()))
	b.unharmed()
}

// The shim's number is another's. Red with the question for dead removed from shimmed.members and from usage.
func TestShimsNumberIsAnothers(t *testing.T) {
	if !namespaced(t) {
		return
	}
	for _, rung := range available(t) {
		if rung == "group" {
			continue
		}
		tree, x, _ := start(t, rung, daemon)
		if _, err := tree.Kill(within(t), "test"); err != nil {
			t.Fatal(err)
		}
		x.end()
		b := lend(t, shimPid(tree))
		everything(t, tree)
		b.unharmed()
	}
}

// The command's number is another's while its shim still holds the rest of the tree: a signal for the command goes to nobody.
// Red with the question for ended removed from shim.order.
func TestCommandsNumberIsAnothers(t *testing.T) {
	if !namespaced(t) {
		return
	}
	for _, r := range []rung{subreaper(), cgroupLeaf()} {
		t.Run(r.name, func(t *testing.T) {
			for !signalAfterTheCommand(t, r) {
			}
		})
	}
}

// signalAfterTheCommand is false if the shim was quicker to cut than the test to stop it.
func signalAfterTheCommand(t *testing.T, r rung) bool {
	x := newWitness(t)
	stdin, told := pipe(t)
	held, err := r.start(t.Context(), &Spec{Path: executable(t), Args: victim.Args("setsid"), Env: []string{}, Stdin: stdin,
		Extra: []*os.File{x.hold}})
	if err != nil {
		t.Skipf("missing: rung %s: %v", r.name, err)
	}
	h := held.(*shimmed)
	defer func() { h.kill(); h.empty() }()
	x.hold.Close()
	x.ready(4)
	command := 0
	for _, p := range shim.Descendants(h.process.Pid) {
		if p.Parent == h.process.Pid {
			command = p.Pid
		}
	}
	told.Close()
	<-h.first
	syscall.Kill(h.process.Pid, syscall.SIGSTOP)
	if until(t, "the shim is stopped", func() bool {
		p, ok := shim.Read(h.process.Pid)
		return !ok || p.State == 'T' || p.State == 'Z'
	}); len(x.holders()) != 3 {
		return false
	}
	b := lend(t, command)
	if err := h.order(shim.OrderSignal, byte(syscall.SIGTERM)); err != nil {
		t.Fatal(err)
	}
	h.kill() // wakes it, and comes behind the signal
	if err := h.empty(); err != nil {
		t.Error(err)
	}
	x.end()
	b.unharmed()
	return true
}

// Between the look at a process and its kill its number can have become another's. Red with the comparison of start times
// removed from shim.Process.Kill.
func TestNumberIsAnothersBetweenLookAndKill(t *testing.T) {
	if !namespaced(t) {
		return
	}
	x := newWitness(t)
	in, told := pipe(t)
	cmd := exec.Command(executable(t), victim.Args("sleeper")[1:]...)
	cmd.Stdin, cmd.ExtraFiles = in, []*os.File{x.hold}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	x.hold.Close()
	x.ready(1)
	seen, ok := shim.Read(cmd.Process.Pid)
	if !ok {
		t.Fatal("it is not to be seen")
	}
	told.Close()
	cmd.Wait()
	until(t, "the clock that dates processes has ticked", func() bool { return ticks(t) > seen.Start })
	b := lend(t, seen.Pid)
	if now, _ := shim.Read(seen.Pid); now.Start == seen.Start {
		t.Fatal("both were born within a clock tick")
	}
	seen.Kill()
	if lives(member(seen)) {
		t.Error(fmt.Sprint(seen.Pid, " is taken for the one that has ended"))
	}
	b.unharmed()
}

// ticks is what the clock says by which the kernel dates processes, in the hundredths of a second of /proc/PID/stat (proc(5), starttime).
func ticks(t *testing.T) uint64 {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		t.Fatal(err)
	}
	return uint64(now.Nano() / (1e9 / 100))
}
