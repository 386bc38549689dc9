package doctor

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"coppice.dev/coppice/internal/confine"
	"coppice.dev/coppice/internal/shim"
	"coppice.dev/coppice/tree"
)

// TestHere: the report of this host, whatever it is, agrees with package tree and with itself.
//
// Red with the kill's look at the witness removed (the group's escapee is not seen), with the engine not killed, and with
// the hostile tree's daemon left out.
func TestHere(t *testing.T) {
	x := run(t, nil, wordExamine)
	r := x.Report
	if x.Living != 0 || x.Dead != 0 {
		t.Errorf("the doctor has %d living and %d dead children when it is done", x.Living, x.Dead)
	}
	if len(r.Faults) > 0 {
		t.Errorf("faults: %q", r.Faults)
	}
	var names, features []string
	for _, rung := range r.Rungs {
		names = append(names, rung.Name)
		checkRung(t, rung)
	}
	for _, f := range r.Features {
		features = append(features, f.Name)
		if f.Works == (f.Reason != "") {
			t.Errorf("%s works: %v, reason %q", f.Name, f.Works, f.Reason)
		}
	}
	if !slices.Equal(names, tree.Rungs()) || !slices.Equal(features, confine.Probes()) {
		t.Errorf("rungs %q and features %q", names, features)
	}
	spec := hostile(executable(t), "", "", nil, nil)
	spec.Args = argv(roleDaemon, "plain")
	plain, err := tree.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Kill(t.Context(), "test")
	if plain.Facts().Rung != r.Rung || plain.Level() != r.Level {
		t.Errorf("the doctor says %s (%s), a tree %s (%s)", r.Rung, r.Level, plain.Facts().Rung, plain.Level())
	}
	if r.Atomic() != (plain.Level() == tree.Atomic) {
		t.Errorf("atomic: %v", r.Atomic())
	}
}

func checkRung(t *testing.T, r Rung) {
	t.Helper()
	if r.Facts == nil {
		if r.Works || r.Reason == "" || r.Kill != nil || r.HostDeath != nil {
			t.Errorf("%s was refused: %+v", r.Name, r)
		}
		return
	}
	if r.Kill == nil || !r.Kill.Proved || r.Kill.Took <= 0 || r.Kill.Seen < 1 {
		t.Errorf("%s: kill %+v", r.Name, r.Kill)
	}
	if r.HostDeath == nil || r.HostDeath.Error != "" {
		t.Fatalf("%s: host death %+v", r.Name, r.HostDeath)
	}
	if r.Level >= tree.Tracked && (r.Kill.Held || r.Kill.Seen != cast) || r.Facts.HostDeathSafe && r.HostDeath.Survived {
		t.Errorf("%s, level %s: kill %+v, host death %+v", r.Name, r.Level, r.Kill, r.HostDeath)
	}
	// The control: the same tree does escape from a process group, and does outlive its engine there.
	if r.Level == tree.Group && runtime.GOOS == "linux" &&
		(!r.Kill.Held || r.Kill.Seen != 1 || len(r.Kill.Escaped) != 1 || !r.HostDeath.Survived || len(r.HostDeath.Survivors) != cast) {
		t.Errorf("%s: nothing escaped: kill %+v, host death %+v", r.Name, r.Kill, r.HostDeath)
	}
}

// TestKilled: a doctor that is killed leaves nothing either, not even a daemon that has escaped from a process group: it is
// on the leash. Red with the leash not read in stay.
func TestKilled(t *testing.T) {
	needsProc(t)
	for range 10 { // on a busy machine a look now and then may miss the moment
		cmd := exec.Command(executable(t), wordExamine)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		over := make(chan struct{})
		go func() {
			cmd.Wait()
			close(over)
		}()
		caught, done := false, false
		for !caught && !done {
			select {
			case <-over:
				done = true
			case <-time.After(time.Millisecond):
				caught = len(playing("group")) > 0 && len(playing(roleDaemon)) > 0
			}
		}
		cmd.Process.Kill()
		<-over
		eventually(t, "the end of all", func() bool { return len(children()) == 0 })
		if caught {
			return
		}
	}
	t.Error("no examination was caught with an engine of a process group and its daemon")
}

// playing are the children that have a word among their arguments.
func playing(word string) []shim.Process {
	return slices.DeleteFunc(children(), func(p shim.Process) bool {
		return len(slices.DeleteFunc(marked(word), func(q shim.Process) bool { return q.Pid != p.Pid })) == 0
	})
}

// TestStopped: when its context ends, Run returns the cause, and nothing is left.
func TestStopped(t *testing.T) {
	needsProc(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("enough")
	go func() {
		for len(playing(roleDaemon)) == 0 && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		cancel(stop)
	}()
	if r, err := Run(ctx); !errors.Is(err, stop) {
		t.Errorf("%+v, %v", r, err)
	}
	if left := children(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestHangs: a check that does not end is given up and told of; one that ends when it is told to may still answer. Red
// with the second wait of bounded without a bound: the bubble is deadlocked.
func TestHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		let := make(chan struct{})
		_, err := bounded(t.Context(), func(context.Context) int { <-let; return 1 })
		if !errors.Is(err, errSlow) || !strings.Contains(err.Error(), "does not end") || time.Since(began) != checkTimeout+unwind {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		close(let)
		n, err := bounded(t.Context(), func(ctx context.Context) int { <-ctx.Done(); return 2 })
		if n != 2 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	})
}

// TestContradictions: what a rung claims and what was seen.
func TestContradictions(t *testing.T) {
	good := Rung{Name: "a", Works: true, Level: tree.Atomic, Facts: &tree.Facts{HostDeathSafe: true},
		Kill: &Kill{Proved: true}, HostDeath: &HostDeath{}}
	held, survived, unlooked, group := good, good, good, good
	held.Kill = &Kill{Proved: true, Held: true}
	survived.HostDeath = &HostDeath{Survived: true}
	unlooked.HostDeath = &HostDeath{Error: "hangs"}
	group.Level, group.Facts, group.Kill, group.HostDeath = tree.Group, &tree.Facts{}, held.Kill, survived.HostDeath
	refused := Rung{Name: "a", Reason: "no"}
	for _, c := range []struct {
		name   string
		rung   Rung
		faults int
		atomic bool
	}{
		{"good", good, 0, true}, {"held", held, 1, false}, {"survived", survived, 1, true}, {"unlooked", unlooked, 1, true},
		{"group", group, 0, false}, {"refused", refused, 0, false},
	} {
		r := Report{Rung: "a", Level: c.rung.Level, Rungs: []Rung{c.rung}}
		if faults := contradictions(r.Rungs); len(faults) != c.faults || r.Atomic() != c.atomic {
			t.Errorf("%s: faults %q, atomic %v", c.name, faults, r.Atomic())
		}
	}
}

func executable(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}
