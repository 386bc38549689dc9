package victim_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"coppice.dev/coppice/internal/shim"
	"coppice.dev/coppice/internal/victim"
	"coppice.dev/coppice/internal/victim/observer"
)

const keeperWord = "coppice-keeper"

func TestMain(m *testing.M) {
	victim.Main()
	keeperMain()
	os.Exit(m.Run())
}

// keeperMain is, by its arguments, a process between the test and its victim, for attackers to attack.
func keeperMain() {
	if len(os.Args) < 3 || os.Args[1] != keeperWord {
		return
	}
	time.AfterFunc(victim.Lifetime, func() { os.Exit(95) })
	cmd := exec.Command("/proc/self/exe", os.Args[2:]...)
	cmd.Stdin, cmd.Stderr, cmd.ExtraFiles = os.Stdin, os.Stderr, []*os.File{os.NewFile(victim.Witness, "witness")}
	if err := cmd.Run(); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// run starts a victim with nobody to hold its tree, but for a keeper.
func run(t *testing.T, c victim.Case) (*observer.Observer, *exec.Cmd) {
	t.Helper()
	o, err := observer.New()
	if err != nil {
		t.Fatal(err)
	}
	args := victim.Args(c.Name, c.Args...)[1:]
	if c.Attacks {
		args = append([]string{keeperWord}, args...)
	}
	cmd := exec.Command("/proc/self/exe", args...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr, cmd.ExtraFiles = os.Stderr, []*os.File{o.Hold}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	o.Hold.Close()
	ctx, cancel := context.WithTimeout(t.Context(), victim.Lifetime/2)
	t.Cleanup(func() {
		stdin.Close()
		ctx, cancel := context.WithTimeout(context.Background(), victim.Lifetime/2)
		defer cancel()
		cmd.Process.Kill() // a keeper may not hold the pipe any more
		if err := o.Clear(ctx); err != nil {
			t.Error(err)
		}
		cmd.Wait()
	})
	defer cancel()
	if err := o.Settle(ctx, c); err != nil {
		t.Fatal(err)
	}
	return o, cmd
}

// Each victim is what its name says, on a host that grants it everything it tries.
func TestVictims(t *testing.T) {
	cases, err := victim.Cases()
	if err != nil {
		t.Fatal(err)
	}
	checks := map[string]func(*testing.T, *observer.Observer, *exec.Cmd){
		"daemon": isDaemon, "leaderless": isLeaderless, "forker": forksOften, "nested": isNested, "adopter": adopts,
		"captor": isCaptor, "filler": fills, "scribbler": scribbles, "stopper": keeperIs('T'), "tracer": keeperIs('t'),
		"killer": keeperIs(0), "choker": letThrough("choke"), "starver": letThrough("starve"), "rewriter": letThrough("rewrite"),
		"zombies": hasZombies,
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			o, cmd := run(t, c)
			if check := checks[c.Name]; check != nil {
				check(t, o, cmd)
			}
			for _, line := range o.Told() {
				t.Log(line)
			}
		})
		delete(checks, c.Name)
	}
	if len(checks) > 0 {
		t.Errorf("checks of victims that are not there: %v", checks)
	}
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for limit := time.Now().Add(victim.Lifetime / 2); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

func isDaemon(t *testing.T, o *observer.Observer, cmd *exec.Cmd) {
	until(t, "an orphan without an environment, under a kernel thread's name", func() bool {
		holders := o.Holders()
		i := slices.IndexFunc(holders, func(p shim.Process) bool { return p.Pid != cmd.Process.Pid })
		if i < 0 || len(holders) != 2 {
			return false
		}
		d := holders[i]
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", d.Pid))
		return err == nil && len(env) == 0 && d.Name == "kworker/0:0" && d.Parent != cmd.Process.Pid && d.Group != cmd.Process.Pid
	})
}

func isLeaderless(t *testing.T, o *observer.Observer, cmd *exec.Cmd) {
	p, ok := shim.Read(cmd.Process.Pid)
	if !ok || p.State != 'Z' || p.Dead() || !p.Alive() || len(o.Holders()) != 1 {
		t.Errorf("%+v, %d holders", p, len(o.Holders()))
	}
}

// The kernel numbers all that is born: so the numbers tell how many. Others' births on the host count too.
func forksOften(t *testing.T, o *observer.Observer, cmd *exec.Cmd) {
	holders := o.Holders()
	i := slices.IndexFunc(holders, func(p shim.Process) bool { return p.Parent == cmd.Process.Pid })
	born := func() (n int) {
		b, _ := os.ReadFile("/proc/sys/kernel/ns_last_pid")
		fmt.Sscan(string(b), &n)
		return n
	}
	first, begun := born(), time.Now()
	until(t, "300 births", func() bool { return born()-first >= 300 || born() < first })
	t.Logf("300 births in %v", time.Since(begun))
	if i < 0 || !holders[i].Alive() {
		t.Errorf("the parent has gone: %+v", holders)
	}
}

func isNested(t *testing.T, o *observer.Observer, _ *exec.Cmd) {
	if strings.Contains(strings.Join(o.Told(), " "), victim.Refused) {
		t.Skip("missing: user and PID namespaces")
	}
	spaces := map[string]bool{}
	for _, p := range o.Holders() {
		ns, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", p.Pid))
		spaces[ns] = true
	}
	if len(spaces) != 5 {
		t.Errorf("%d namespaces: %v", len(spaces), spaces)
	}
}

func adopts(t *testing.T, o *observer.Observer, cmd *exec.Cmd) {
	for _, p := range o.Holders() {
		if p.Pid != cmd.Process.Pid && p.Parent != cmd.Process.Pid {
			t.Errorf("not adopted: %+v", p)
		}
	}
}

func isCaptor(t *testing.T, o *observer.Observer, _ *exec.Cmd) {
	if !slices.ContainsFunc(o.Holders(), func(p shim.Process) bool { return p.State == 't' }) {
		t.Errorf("nobody is traced: %+v, %v", o.Holders(), o.Told())
	}
}

func fills(t *testing.T, o *observer.Observer, _ *exec.Cmd) {
	if n := len(o.Holders()); n < 20 {
		t.Errorf("%d processes", n)
	}
}

func scribbles(t *testing.T, o *observer.Observer, _ *exec.Cmd) {
	first := o.LastCount()
	until(t, "it writes on", func() bool { return o.LastCount() > first })
}

func hasZombies(t *testing.T, _ *observer.Observer, cmd *exec.Cmd) {
	dead := 0
	for _, p := range shim.Descendants(cmd.Process.Pid) {
		if p.Dead() {
			dead++
		}
	}
	if dead != 20 {
		t.Errorf("%d dead", dead)
	}
}

// keeperIs waits for what comes of the process above the victim; 0 is dead.
func keeperIs(state byte) func(*testing.T, *observer.Observer, *exec.Cmd) {
	return func(t *testing.T, o *observer.Observer, cmd *exec.Cmd) {
		until(t, fmt.Sprintf("keeper in state %q", state), func() bool {
			p, ok := shim.Read(cmd.Process.Pid)
			return ok && (state == 0 && p.Dead() || state != 0 && p.State == state)
		})
	}
}

func letThrough(what string) func(*testing.T, *observer.Observer, *exec.Cmd) {
	return func(t *testing.T, o *observer.Observer, _ *exec.Cmd) {
		until(t, what+" told", func() bool { return len(o.Told()) > 0 })
		if line := o.Told()[0]; !strings.HasPrefix(line, what+" ") || !strings.HasSuffix(line, " "+victim.Through) {
			t.Errorf("%q", line)
		}
	}
}

// An attacker whose way up does not end at the one that it spares attacks nobody: what is above an orphan, or above a
// victim of somebody else, is the host's own. Red with the way's end left out of above: to be tried in a PID
// namespace of its own alone (unshare --pid --fork --mount-proc), since it attacks who is above then.
func TestAttackersSpareOthers(t *testing.T) {
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	nobody := []string{namespace, "0"} // the way up to init does not pass it
	for _, name := range []string{"killer", "stopper", "tracer", "rewriter", "starver", "choker"} {
		o, cmd := run(t, victim.Case{Name: name, Args: nobody, Ready: 2, Attacks: true})
		if told := o.Told(); len(told) != 1 || !strings.Contains(told[0], victim.Refused) {
			t.Errorf("%s: %q", name, told)
		}
		if p, ok := shim.Read(cmd.Process.Pid); !ok || p.State != 'S' && p.State != 'R' {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

// What the observer says is left and what it kills is by identity: a process that has another start time is another.
func TestObserverKnowsByIdentity(t *testing.T) {
	o, cmd := run(t, victim.Case{Name: "sleeper", Ready: 1, Holders: 1})
	p := o.Holders()[0]
	if p.Pid != cmd.Process.Pid {
		t.Fatalf("%+v", p)
	}
	other := p
	other.Start++
	other.Kill()
	if _, there := other.Now(); there || !p.Alive() {
		t.Error("taken for another")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if left, _ := o.Outlive(ctx); len(left) != 1 || left[0].Pid != p.Pid {
		t.Errorf("left: %+v", left)
	}
	if err := o.Await(ctx, 2); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("await: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), victim.Lifetime/2)
	defer cancel()
	if err := o.Clear(ctx); err != nil {
		t.Errorf("cleared: %v", err)
	}
	until(t, "it is dead, a moment after it has let go of the pipe", func() bool { return !p.Alive() })
}
