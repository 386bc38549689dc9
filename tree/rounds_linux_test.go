package tree

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"coppice.dev/coppice/internal/cgroup"
	"coppice.dev/coppice/internal/victim"
	"coppice.dev/coppice/internal/victim/observer"
)

// round is one start and its end, drawn at random.
type round struct {
	rung  string
	v     victim.Case
	end   string
	early bool // it does not wait until the victim has taken its place
	wait  time.Duration
}

// TestMixedRoundsLeaveNothing draws victim, rung and end at random, four at once. COPPICE_TEST_MIX asks for more rounds,
// COPPICE_SEED for the same again. It found that a start which was given up could set a forker free: red, under load, with
// the look at the descendants left out of shimmed.abandon.
func TestMixedRoundsLeaveNothing(t *testing.T) {
	rounds := 30
	if n, err := strconv.Atoi(os.Getenv("COPPICE_TEST_MIX")); err == nil {
		rounds = n
	}
	seed := rand.Uint64()
	if n, err := strconv.ParseUint(os.Getenv("COPPICE_SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	safe, all := hostDeathSafe(t), available(t)
	nasty := mixed(t)
	stayers := []string{"sleeper", "deaf", "stopped", "wide", "deep", "zombies", "leaderless"} // who do not leave their group
	guards := map[string]bool{}
	for _, rung := range all {
		guards[rung] = guarded(t, rung)
	}
	draw := func() round {
		r := round{rung: all[random.IntN(len(all))], early: random.IntN(3) == 0, wait: time.Duration(random.Int64N(int64(20 * time.Millisecond)))}
		ends := []string{"kill", "cut", "exit", "many", "given up", "asked"}
		if slices.Contains(safe, r.rung) {
			ends = append(ends, "engine", "engine")
		}
		if strings.HasPrefix(r.rung, "pidns") || r.rung == "cgroup" && guards[r.rung] {
			ends = append(ends, "shim")
		}
		r.end = ends[random.IntN(len(ends))]
		for {
			r.v = nasty[random.IntN(len(nasty))]
			if (r.rung != "group" || slices.Contains(stayers, r.v.Name)) && !(r.v.Stays && r.end == "exit") {
				return r
			}
		}
	}
	for range 8 { // the first ones may open what the runtime keeps
		t.Run("warm", func(t *testing.T) { draw().run(t) })
	}
	before := own(t)
	work := make(chan round)
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for r := range work {
				t.Run(fmt.Sprintf("%s/%s/%s/%v", r.rung, r.v.Name, r.end, r.early), r.run)
			}
		})
	}
	for range rounds {
		if t.Failed() {
			break
		}
		work <- draw()
	}
	close(work)
	workers.Wait()
	if slices.Contains(all, "cgroup") {
		sweepOnce(t)
	}
	var after map[string]int
	until(t, "this process is as it was", func() bool {
		after = own(t)
		for what, n := range after {
			if n > before[what] {
				return false
			}
		}
		return true
	})
	t.Logf("%d rounds: %v before, %v after", rounds, before, after)
}

// mixed are the victims, fewer in the crowds, without those whose attack is allowed to succeed somewhere: the matrix has them.
func mixed(t *testing.T) []victim.Case {
	t.Helper()
	all, err := victim.Cases()
	if err != nil {
		t.Fatal(err)
	}
	var out []victim.Case
	for _, c := range all {
		switch {
		case c.Attacks || c.Tasks > 0 || c.Name == "captor" || c.Name == "mover":
			continue
		case c.Name == "wide":
			c.Args, c.Ready, c.Holders = []string{"40"}, 41, 41
		case c.Name == "deep":
			c.Args, c.Ready, c.Holders = []string{"20"}, 20, 20
		}
		out = append(out, c)
	}
	return out
}

// own is what this process has of things that could leak, with some threads for the runtime to come.
func own(t *testing.T) map[string]int {
	t.Helper()
	out := map[string]int{"descriptors": openDescriptors(), "goroutines": runtime.NumGoroutine(), "children": len(ownChildren())}
	names, _ := filepath.Glob("/proc/self/fd/*")
	for _, name := range names {
		if target, _ := os.Readlink(name); strings.HasPrefix(target, "socket:") {
			out["sockets"]++
		}
	}
	threads, _ := os.ReadDir("/proc/self/task")
	out["threads beyond 64"] = max(0, len(threads)-64)
	if me, err := cgroup.EngineName(); err == nil {
		if own, err := cgroup.Own(); err == nil {
			out["cgroups"] = len(leaves(t, own.Dir, me))
		}
	}
	return out
}

func (r round) run(t *testing.T) {
	x := newWitness(t)
	if r.end == "engine" {
		e := startEngineIn(t, x, nil, append([]string{engineWord, r.rung + "+", "0", r.v.Name}, r.v.Args...)...)
		e.await("starting")
		if !r.early && r.v.Name != "leaver" {
			e.await("started")
		}
		time.Sleep(r.wait) // not for anything: the kill comes at a random moment
		e.kill()
		x.end()
		return
	}
	ctx := t.Context()
	if r.end == "given up" {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.wait)
		defer cancel()
	}
	stdin, told := pipe(t)
	tree, err := Start(ctx, Spec{Path: executable(t), Args: victim.Args(r.v.Name, r.v.Args...), Rung: r.rung, Stdin: stdin,
		Extra: []*os.File{x.hold}})
	x.hold.Close()
	if err != nil {
		if r.end != "given up" || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		x.end()
		return
	}
	if !r.early {
		if err := x.Settle(within(t), r.v); err != nil && !errors.Is(err, observer.ErrUnsettled) {
			t.Error(err)
		}
	}
	r.finish(t, tree, told)
	status, report, err := tree.Wait(within(t))
	if err != nil || report.Survivors != nil {
		t.Errorf("%+v, %+v, %v", status, report, err)
	}
	x.end()
}

// finish begins the end.
func (r round) finish(t *testing.T, tree *Tree, told *os.File) {
	switch r.end {
	case "exit":
		told.Close()
	case "cut":
		tree.Cut("test")
	case "shim":
		tree.hold.(*shimmed).process.Kill()
	case "asked":
		tree.Signal(syscall.SIGTERM)
		tree.Members()
		tree.Usage()
		tree.Cut("test")
	case "many":
		var kills sync.WaitGroup
		for range 10 {
			kills.Go(func() {
				if _, err := tree.Kill(within(t), "test"); err != nil {
					t.Error(err)
				}
			})
		}
		kills.Wait()
	default:
		if _, err := tree.Kill(within(t), "test"); err != nil {
			t.Error(err)
		}
	}
}

// The engine is killed at a random moment in the first 12 ms of its start. COPPICE_TEST_ROUNDS asks for more rounds. No
// cgroup is left once another start has swept. Red with leaf.remove doing nothing (cgroups), and on the PID namespaces with shim.cut
// doing nothing once the engine is dead.
func TestEngineKilledInStart(t *testing.T) {
	rounds := 30
	if n, err := strconv.Atoi(os.Getenv("COPPICE_TEST_ROUNDS")); err == nil {
		rounds = n
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for _, rung := range hostDeathSafe(t) {
		names := map[string]bool{}
		for i := range rounds {
			t.Run(fmt.Sprintf("%s/%d", rung, i), func(t *testing.T) {
				x := newWitness(t)
				e := startEngineIn(t, x, nil, engineWord, rung+"+", "0", "daemon")
				e.await("starting")
				if rung == "cgroup" {
					names[e.identity(t)] = true
				}
				time.Sleep(time.Duration(random.Int64N(int64(12 * time.Millisecond)))) // the random moment
				e.kill()
				x.end()
			})
		}
		t.Logf("%s: %d rounds", rung, rounds)
		if rung != "cgroup" {
			continue
		}
		own, err := cgroup.Own()
		if err != nil {
			t.Fatal(err)
		}
		sweepOnce(t)
		for _, name := range slices.Sorted(maps.Keys(names)) {
			if left := leaves(t, own.Dir, name); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		}
	}
}
