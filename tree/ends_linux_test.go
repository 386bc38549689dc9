package tree

import (
	"errors"
	"slices"
	"testing"

	"coppice.dev/coppice/internal/shim"
	"coppice.dev/coppice/internal/victim"
)

// daemon is settled when the process in the middle has ended, so that nothing leads back to the leader. A process lets go of its
// descriptors before its children get another parent, so that who holds the witness does not tell.
var daemon = tried{name: "daemon", ready: 2, settled: func(x *witness) bool {
	held := x.holders()
	return len(held) == 2 && !begotten(held[0], held[1]) && !begotten(held[1], held[0])
}}

// begotten: p's parent is q's child, or has gone since p was read.
func begotten(p, q shim.Process) bool {
	parent, ok := shim.Read(p.Parent)
	return p.Parent != 0 && (!ok || parent.Parent == q.Pid)
}

// Without a guard, a worker of the same user can blind its shim to the engine's end; the shim then ends the tree at once,
// escapees included. Red with the cut on poll's error left out of shim.watch, and on a subreaper with killChildren left out
// of cut: to be seen as another user (.ci/unprivileged), where a rung that does not ask for no_new_privs has no guard. With one it
// cannot; that GuardLimits sees to that on the PID namespaces is TestMatrix's, which is red without it.
func TestBlindShimCutsTheTree(t *testing.T) {
	cases, err := victim.Cases()
	if err != nil {
		t.Fatal(err)
	}
	starver := cases[slices.IndexFunc(cases, func(c victim.Case) bool { return c.Name == "starver" })]
	for _, rung := range available(t) {
		if rung == "group" {
			continue
		}
		t.Run(rung, func(t *testing.T) {
			x := newWitness(t)
			e := startEngine(t, x, rung, starver.Name, starver.Args...)
			e.await("starting")
			if guarded(t, rung) {
				x.ready(starver.Ready)
				e.kill()
			}
			x.end()
		})
	}
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
