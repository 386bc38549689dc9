package tree

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"coppice.dev/coppice/internal/shim"
	"coppice.dev/coppice/internal/victim"
)

// tried is a victim and what is known of it.
type tried struct {
	name    string
	args    []string
	ready   int  // how many processes say that they are ready
	escapes bool // it leaves its process group and its parents
	stays   bool // its leader cannot be told to exit
	settled func(*witness) bool
}

// daemon is settled when the process in the middle has gone, so that nothing leads back to the leader.
var daemon = tried{name: "daemon", ready: 2, escapes: true, settled: func(x *witness) bool { return len(x.holders()) == 2 }}

func victims(t *testing.T) []tried {
	t.Helper()
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	return []tried{
		{name: "sleeper", ready: 1},
		daemon,
		{name: "setsid", ready: 4, escapes: true},
		{name: "deaf", ready: 1},
		{name: "stopped", ready: 2, stays: true, settled: func(x *witness) bool {
			holders := x.holders()
			return len(holders) == 2 && !slices.ContainsFunc(holders, func(p shim.Process) bool { return p.State != 'T' })
		}},
		{name: "leaver", escapes: true},
		{name: "forker", ready: 1, escapes: true},
		{name: "wide", args: []string{"100"}, ready: 101},
		{name: "deep", args: []string{"30"}, ready: 30},
		{name: "zombies", ready: 1, settled: func(x *witness) bool { return len(x.holders()) == 1 }},
		{name: "killer", args: []string{namespace}, ready: 1},
	}
}

// start starts a victim in this process; told ends its leader.
func start(t *testing.T, rung string, v tried) (tree *Tree, x *witness, told *os.File) {
	t.Helper()
	x = newWitness(t)
	stdin, told := pipe(t)
	tree, err := Start(t.Context(), Spec{Path: executable(t), Args: victim.Args(v.name, v.args...), Rung: rung,
		Stdin: stdin, Stderr: os.Stderr, Extra: []*os.File{x.hold}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		tree.Kill(ctx, "cleanup")
	})
	x.hold.Close()
	x.ready(v.ready)
	if v.settled != nil {
		until(t, v.name+" settles", func() bool { return v.settled(x) })
	}
	return tree, x, told
}

// eachVictim runs a test for all victims on all rungs with a shim.
func eachVictim(t *testing.T, f func(t *testing.T, rung string, v tried)) {
	for _, rung := range available(t) {
		if rung == "group" {
			continue // its own tests say what it does not hold
		}
		for _, v := range victims(t) {
			t.Run(rung+"/"+v.name, func(t *testing.T) { f(t, rung, v) })
		}
	}
}

// Red with shimmed.kill returning at once. For killer on a PID namespace and on a subreaper alike, red with the calls of
// ignore removed (the shim dies of the first signal), on a subreaper also with ignore(unhandled) alone removed.
func TestKill(t *testing.T) {
	eachVictim(t, func(t *testing.T, rung string, v tried) {
		tree, x, _ := start(t, rung, v)
		seen := x.holders()
		report, err := tree.Kill(within(t), "test")
		if err != nil {
			t.Fatal(err)
		}
		x.gone(seen)
		if v.name != "leaver" && (report.Cause != "test" || v.name != "forker" && report.Seen != max(v.ready, 1)) {
			t.Errorf("cause %q, %d seen, want %d: %+v", report.Cause, report.Seen, v.ready, report)
		}
		if len(report.Named) != min(report.Seen, 16) || report.Survivors != nil || report.Rung != rung {
			t.Errorf("report: %+v", report)
		}
		if again, err := tree.Kill(within(t), "again"); err != nil || again.Cause != report.Cause {
			t.Errorf("killed again: %+v, %v", again, err)
		}
	})
}

// Red with beginCut("exit") removed.
func TestLeadersOwnExitCutsTheTree(t *testing.T) {
	eachVictim(t, func(t *testing.T, rung string, v tried) {
		if v.stays {
			return // its leader is stopped, and has no end of its own
		}
		tree, x, told := start(t, rung, v)
		seen := x.holders()
		told.Close()
		status, report, err := tree.Wait(within(t))
		if err != nil {
			t.Fatal(err)
		}
		x.gone(seen)
		if !status.Known || status.Code != 3 || report.Cause != "exit" {
			t.Errorf("status %+v, report %+v", status, report)
		}
	})
}

// Red with the engine's pidfd and the end of the socket left out of shim.watch.
func TestEnginesDeathTakesTheTree(t *testing.T) {
	eachVictim(t, func(t *testing.T, rung string, v tried) {
		x := newWitness(t)
		e := startEngine(t, x, rung, v.name, v.args...)
		e.await("starting")
		if v.name != "leaver" { // it may be over before its engine says so
			e.await("started")
			x.ready(v.ready)
			e.ask.WriteString("signal\n") // a shim that is told something has to poll again
			e.await("signalled")
		}
		e.kill()
		x.end()
	})
}

// Without a guard, a worker of the same user can blind its shim to the engine's end; the shim then ends the tree at once,
// escapees included. Red with the cut on poll's error left out of shim.watch, and on a subreaper with killChildren left out
// of cut. With a guard it cannot: red with GuardLimits left out of the rungs.
func TestBlindShimCutsTheTree(t *testing.T) {
	for _, rung := range available(t) {
		if rung == "group" {
			continue
		}
		t.Run(rung, func(t *testing.T) {
			all := victims(t)
			x := newWitness(t)
			e := startEngine(t, x, rung, "starver", all[len(all)-1].args...)
			e.await("starting")
			e.await("started")
			if guarded(t, rung) {
				x.ready(1)
			} else {
				until(t, "only the engine holds the pipe", func() bool { return len(x.holders()) == 1 })
			}
			e.kill()
			x.end()
		})
	}
}

// A namespace ends with its init, and that is proved also when nobody asked for it. Red without CLONE_NEWPID.
func TestShimsDeathTakesTheNamespace(t *testing.T) {
	eachVictim(t, func(t *testing.T, rung string, v tried) {
		if rung == "subreaper" || v.name == "leaver" {
			return // only a namespace ends with its shim, and a leaver has left by then
		}
		tree, x, _ := start(t, rung, v)
		seen := x.holders()
		kill9(t, shimPid(tree))
		status, _, err := tree.Wait(within(t))
		if err != nil || status.Known {
			t.Fatalf("%+v, %v", status, err)
		}
		if rung == "cgroup" { // its dead have been left to the host's init, whenever that collects them
			seen = slices.DeleteFunc(seen, func(p shim.Process) bool {
				now, ok := shim.Read(p.Pid)
				return ok && now.Start == p.Start && now.State == 'Z'
			})
		}
		x.gone(seen)
	})
}

// A subreaper that is killed sets free what had left the command; it must be said, and the command at least dies (red
// with Pdeathsig removed).
func TestShimsDeathFreesASubreapersTree(t *testing.T) {
	tree, x, _ := start(t, "subreaper", daemon)
	members, err := tree.Members()
	if err != nil || len(members) != 2 {
		t.Fatalf("members %+v, %v", members, err)
	}
	kill9(t, shimPid(tree))
	status, _, err := tree.Wait(within(t))
	var survivors *SurvivorsError
	if !errors.As(err, &survivors) || status.Known {
		t.Fatalf("%+v, %v", status, err)
	}
	until(t, "only the daemon is left", func() bool { return len(x.holders()) == 1 })
	if left := x.holders()[0]; left.Name != "kworker/0:0" {
		t.Errorf("left: %+v", left)
	}
}

// A worker of the same user can stop a subreaper. Red with the SIGCONT in shimmed.kill removed.
func TestKillWakesAStoppedSubreaper(t *testing.T) {
	tree, x, _ := start(t, "subreaper", tried{name: "sleeper", ready: 1})
	seen := x.holders()
	syscall.Kill(shimPid(tree), syscall.SIGSTOP)
	if _, err := tree.Kill(within(t), "test"); err != nil {
		t.Fatal(err)
	}
	x.gone(seen)
}

// The group's honest half: what stays in the group dies, and what left it but can still be found.
func TestGroupKillsTheGroupAndSweeps(t *testing.T) {
	for _, v := range victims(t) {
		if v.escapes && v.name != "setsid" || v.name == "killer" {
			continue
		}
		t.Run(v.name, func(t *testing.T) {
			tree, x, _ := start(t, "group", v)
			seen := x.holders()
			report, err := tree.Kill(within(t), "test")
			if err != nil || report.Level != Group || report.Seen != v.ready {
				t.Fatalf("%+v, %v", report, err)
			}
			x.end()
			for _, p := range seen {
				if alive(p) {
					t.Errorf("%+v survives", p)
				}
			}
		})
	}
}

// The other half: a daemon escapes, and so the level is group and no more.
func TestGroupLetsADaemonEscape(t *testing.T) {
	for _, end := range []string{"kill", "exit"} {
		t.Run(end, func(t *testing.T) {
			tree, x, told := start(t, "group", daemon)
			if end == "exit" {
				told.Close()
			}
			var err error
			if end == "kill" {
				_, err = tree.Kill(within(t), "test")
			} else {
				_, _, err = tree.Wait(within(t))
			}
			if err != nil {
				t.Fatal(err)
			}
			if left := x.holders(); len(left) != 1 || left[0].Name != "kworker/0:0" {
				t.Errorf("left: %+v", left)
			}
			if tree.Level() != Group || tree.Facts().HostDeathSafe {
				t.Errorf("level %v, %+v", tree.Level(), tree.Facts())
			}
		})
	}
}

// The leader's exit kills its group while the dead leader still keeps the group's id. Red with the kill in
// grouped.collect removed.
func TestGroupEndsWithItsLeader(t *testing.T) {
	tree, x, told := start(t, "group", tried{name: "wide", args: []string{"20"}, ready: 21})
	told.Close()
	status, _, err := tree.Wait(within(t))
	if err != nil || status.Code != 3 {
		t.Fatalf("%+v, %v", status, err)
	}
	x.end()
}

// Somebody else's process of the same user lives through every end.
func TestBystanderLives(t *testing.T) {
	bystander := newWitness(t)
	in, hold := pipe(t)
	cmd := exec.Command(executable(t), victim.Args("sleeper")[1:]...)
	cmd.Stdin, cmd.ExtraFiles = in, []*os.File{bystander.hold}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	bystander.hold.Close()
	bystander.ready(1)
	for _, rung := range available(t) {
		for _, end := range []string{"kill", "exit", "engine", "shim"} {
			x := (*witness)(nil)
			switch v := (tried{name: "setsid", ready: 4}); end {
			case "engine":
				x = newWitness(t)
				e := startEngine(t, x, rung, v.name)
				e.await("starting")
				e.await("started")
				x.ready(v.ready)
				e.kill()
			default:
				var tree *Tree
				var told *os.File
				tree, x, told = start(t, rung, v)
				switch {
				case end == "exit":
					told.Close()
				case end == "shim" && rung != "group":
					kill9(t, shimPid(tree))
				default:
					tree.Kill(within(t), "test")
				}
				<-tree.Exited()
			}
			select {
			case <-bystander.eof:
				t.Fatalf("the bystander died of %s on %s", end, rung)
			case <-time.After(time.Millisecond):
			}
			x.killHolders()
		}
	}
	hold.Close()
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 3 {
		t.Errorf("the bystander: %v", err)
	}
}
