package tree

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"coppice.dev/coppice/internal/victim"
)

const tracedWord = "coppice-traced-engine"

// tracedLifetime bounds an engine that is stopped at each of its calls, on a machine that may be busy.
const tracedLifetime = time.Minute

// tracedMain is, by its arguments, an engine for a tracer: it starts a victim once it is told to. Descriptors are those
// of engineMain. As "dies" it ends then, leaving the tree to itself. As "lives" it proves that tree, and says what a start
// that was hit has left in it.
func tracedMain() {
	if len(os.Args) != 5 || os.Args[1] != tracedWord {
		return
	}
	time.AfterFunc(tracedLifetime, func() { os.Exit(95) })
	exe, _ := os.Executable()
	told := os.NewFile(4, "told")
	spec := Spec{Path: exe, Args: victim.Args(os.Args[4]), Stdin: told, Extra: []*os.File{os.NewFile(3, "witness")}}
	// One start before, so that what the runtime opens once is open.
	warm, err := Start(context.Background(), Spec{Path: "/bin/true", Rung: os.Args[3]})
	if err == nil {
		warm.Wait(context.Background())
	}
	before := openDescriptors()
	fmt.Println("starting")
	if in := bufio.NewScanner(os.Stdin); !in.Scan() {
		os.Exit(1)
	}
	spec.Rung, spec.NoNewPrivileges = os.Args[3], os.Args[2] == "dies"
	tree, err := Start(context.Background(), spec)
	startOver()
	if os.Args[2] == "dies" {
		os.Exit(0)
	}
	fmt.Println(outcome(tree, err))
	fmt.Println(halfStarted(before))
	os.Exit(0)
}

// outcome is the start's error, or the tree's end.
func outcome(tree *Tree, err error) string {
	if err != nil {
		return "refused: " + err.Error()
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err = tree.Kill(ctx, "test")
	if _, _, e := tree.Wait(ctx); err == nil {
		err = e
	}
	var unproved *SurvivorsError
	switch {
	case err == nil:
		return "proved"
	case errors.As(err, &unproved) && ctx.Err() == nil && len(unproved.Report.Survivors) == 0:
		return "unproved: " + unproved.Reason
	}
	return "bad: " + err.Error()
}

// halfStarted is what this process still has of a start: children, dead ones too, and descriptors.
func halfStarted(before int) string {
	for limit := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		children, after := ownChildren(), openDescriptors()
		switch {
		case len(children) == 0 && after <= before:
			return "clean"
		case time.Now().After(limit):
			return fmt.Sprintf("left %+v, %d descriptors of %d", children, after, before)
		}
	}
}

// The engine is killed at each boundary of the system calls of its start, on each rung that promises to be host-death-safe:
// nobody is left, neither of the worker's nor a shim. Red on the PID namespaces with shim.cut doing
// nothing once the engine is dead.
func TestEngineKilledAtEachCall(t *testing.T) {
	for _, rung := range hostDeathSafe(t) {
		t.Run(rung, func(t *testing.T) {
			eachBoundary(t, rung, "dies", "daemon", func(t *testing.T, _ watched) {})
		})
	}
}

// Whoever is about to become the worker (the shim, and the forked child before it is executed) is killed at
// each boundary of its system calls. The engine lives, and gets an error or a tree that it can prove; where a shim without
// its guard was killed, it is told that nothing is proved. It keeps no child, dead or alive, and no descriptor. Red
// with abandon left out of startShim.
func TestShimKilledAtEachCall(t *testing.T) {
	for _, rung := range available(t) {
		t.Run(rung, func(t *testing.T) {
			said := map[string]int{}
			eachBoundary(t, rung, "lives", "sleeper", func(t *testing.T, e watched) {
				line := <-e.said // it has ended: what it said is there, or the channel is closed
				outcome, _, _ := strings.Cut(line, ":")
				said[outcome]++
				if outcome == "" || outcome == "bad" || outcome == "unproved" && rung != "subreaper" && rung != "cgroup" {
					t.Errorf("engine says %q", line)
				}
				e.await("clean")
			})
			t.Logf("outcomes: %v", said)
		})
	}
}

// faults is how many boundaries of a start are tried unless all are asked for.
const faults = 4

// eachBoundary runs starts of a victim and kills at one boundary in each. COPPICE_TEST_STRIDE says how far apart they are, 1
// being all of them; otherwise they are spread over the start from a random one on.
func eachBoundary(t *testing.T, rung, manner, name string, check func(*testing.T, watched)) {
	_, total := faulted(t, rung, manner, name, 0, check)
	stride, err := strconv.Atoi(os.Getenv("COPPICE_TEST_STRIDE"))
	if err != nil || stride < 1 {
		stride = total/faults + 1
	}
	first := 1 + rand.IntN(stride)
	t.Logf("%d boundaries, every %d. from %d on", total, stride, first)
	places := map[string]bool{}
	hits := 0
	for at := first; ; at += stride {
		hit, _ := faulted(t, rung, manner, name, at, check)
		if t.Failed() {
			t.Fatalf("hit at boundary %d, %s", at, hit)
		}
		if hit == "" {
			break
		}
		hits++
		places[hit] = true
	}
	if hits == 0 {
		t.Error("nothing was hit")
	}
	t.Logf("%d hits in %d places: %v", hits, len(places), slices.Sorted(func(yield func(string) bool) {
		for place := range places {
			if !yield(place) {
				return
			}
		}
	}))
}

// faulted is one start that is hit at a boundary, or not at all. Nobody may be left of it.
func faulted(t *testing.T, rung, manner, name string, at int, check func(*testing.T, watched)) (hit string, passed int) {
	t.Run(fmt.Sprint(at), func(t *testing.T) {
		x := newWitness(t)
		e := startEngineIn(t, x, nil, tracedWord, manner, rung, name)
		e.await("starting")
		hit, passed = traced(t, e, manner == "lives", at)
		x.end()
		until(t, "nobody is left in the engine's session", func() bool { return len(inSession(e.cmd.Process.Pid)) == 0 })
		check(t, e)
	})
	return hit, passed
}

// inSession are the living processes of a session, as the kernel counts it in this namespace.
func inSession(session int) []string {
	var out []string
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])) // from the state on
		if len(fields) > 3 && fields[3] == strconv.Itoa(session) && fields[0] != "Z" {
			out = append(out, string(b))
		}
	}
	return out
}

// hostDeathSafe are the rungs here whose trees, asked for with NoNewPrivileges, do not outlive the engine.
func hostDeathSafe(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, rung := range available(t) {
		tree, err := Start(t.Context(), Spec{Path: "/bin/true", Rung: rung, NoNewPrivileges: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := tree.Wait(within(t)); err != nil {
			t.Fatal(err)
		}
		if tree.Facts().HostDeathSafe {
			out = append(out, rung)
		}
	}
	return out
}
