package tree

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"coppice.dev/coppice/internal/shim"
	"coppice.dev/coppice/internal/victim"
)

// Somebody of the same user can stop the shim. Red on a subreaper and in a cgroup with the SIGCONT in shimmed.kill removed.
func TestKillWakesAStoppedShim(t *testing.T) {
	for _, rung := range available(t) {
		if rung == "group" {
			continue
		}
		tree, x, _ := start(t, rung, daemon)
		seen := x.holders()
		syscall.Kill(shimPid(tree), syscall.SIGSTOP)
		if _, err := tree.Kill(within(t), "test"); err != nil {
			t.Fatalf("%s: %v", rung, err)
		}
		x.gone(seen)
	}
}

// A worker that reads nothing: whoever is writing to it is let go by its end, and the kill does not wait for him.
func TestKillWithAFullPipe(t *testing.T) {
	for _, rung := range available(t) {
		link, err := NewLink()
		if err != nil {
			t.Fatal(err)
		}
		tree, err := Start(t.Context(), Spec{Path: "/bin/sleep", Args: []string{"sleep", "20"}, Rung: rung, Extra: link.Files()})
		if err != nil {
			t.Fatal(err)
		}
		link.Started()
		full, wrote := make(chan struct{}), make(chan error)
		go func() {
			for {
				link.SetDeadline(time.Now().Add(20 * time.Millisecond))
				if _, err := link.Write(make([]byte, 64<<10)); errors.Is(err, os.ErrDeadlineExceeded) {
					break
				}
			}
			close(full)
			link.SetDeadline(time.Now().Add(patience))
			_, err := link.Write(make([]byte, 1<<20))
			wrote <- err
		}()
		<-full
		if _, err := tree.Kill(within(t), "test"); err != nil {
			t.Errorf("%s: %v", rung, err)
		}
		if err := <-wrote; !errors.Is(err, syscall.EPIPE) {
			t.Errorf("%s: write: %v", rung, err)
		}
		link.Close()
	}
}

// Who has no time to wait gets what is left, or the report, and the killing goes on. Red with the kill in beginCut left out.
func TestKillGoesOnWithoutItsCaller(t *testing.T) {
	for _, rung := range available(t) {
		tree, x, _ := start(t, rung, tried{name: "wide", args: []string{"50"}, ready: 51})
		seen := x.holders()
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		report, err := tree.Kill(gone, "test")
		var left *SurvivorsError
		if err != nil && (!errors.As(err, &left) || left.Reason != context.Canceled.Error()) {
			t.Errorf("%s: %v", rung, err)
		}
		if report.Cause != "test" || report.Seen != 51 {
			t.Errorf("%s: %+v", rung, report)
		}
		select {
		case <-tree.ended:
		case <-within(t).Done():
			t.Fatalf("%s: it does not go on", rung)
		}
		x.gone(slices.DeleteFunc(seen, func(p shim.Process) bool { return rung == "group" && !p.Alive() }))
	}
}

// A worker that may not fork any more, nor may its shim in the same cgroup: the kill needs neither process nor thread. Red
// on a subreaper, once in ten or so, with stock left out of the shim.
func TestKillWithTasksExhausted(t *testing.T) {
	spec := Spec{NoNewPrivileges: true, Limits: Limits{Tasks: 40}}
	name, args := "filler", []string{}
	rungs := []string{"pidns-user"}
	if os.Geteuid() == 0 { // whom no such limit binds
		place := "/sys/fs/cgroup/pids/coppicetest-" + rand.Text()
		if err := os.Mkdir(place, 0o755); err != nil {
			t.Skipf("missing: the pids controller of cgroup version 1: %v", err)
		}
		defer until(t, "the cgroup is empty", func() bool { return removeCgroup(place, 1) == nil })
		if err := os.WriteFile(place+"/pids.max", []byte("80"), 0); err != nil {
			t.Fatal(err)
		}
		name = "joiner"
		args, rungs, spec.Limits = []string{place + "/cgroup.procs"}, available(t), Limits{}
	}
	for _, rung := range rungs {
		if rung == "group" {
			continue // its parent is the engine, which would go along
		}
		x := newWitness(t)
		stdin, _ := pipe(t)
		spec.Path, spec.Args, spec.Rung = executable(t), victim.Args(name, args...), rung
		spec.Stdin, spec.Extra = stdin, []*os.File{x.hold}
		tree, err := Start(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		x.hold.Close()
		x.ready(2)
		report, err := tree.Kill(within(t), "test")
		if err != nil || report.Seen < 10 {
			t.Errorf("%s: %d seen, %v", rung, report.Seen, err)
		}
		x.end()
	}
}
