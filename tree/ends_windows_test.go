package tree

import (
	"fmt"
	"os"
	"testing"
	"time"

	"coppice.dev/coppice/internal/victim"
	"golang.org/x/sys/windows"
)

// Red with the TerminateJobObject of jobbed.kill removed.
func TestKill(t *testing.T) {
	eachVictim(t, func(t *testing.T, rung string, v tried) {
		tree, x, _ := start(t, rung, v)
		report, err := tree.Kill(within(t), "test")
		if err != nil {
			t.Fatal(err)
		}
		x.gone()
		if v.name != "leaver" {
			// A console may be a process of its own in the tree.
			if report.Cause != "test" || v.name != "hopper" && report.Seen < v.ready {
				t.Errorf("cause %q, %d seen, want %d: %+v", report.Cause, report.Seen, v.ready, report)
			}
			if status := tree.Status(); status.Known {
				t.Errorf("status %+v", status)
			}
		}
		if len(report.Named) != min(report.Seen, named) || report.Survivors != nil || report.Rung != rung || report.Level != Atomic {
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
		tree, x, told := start(t, rung, v)
		told.Close()
		status, report, err := tree.Wait(within(t))
		if err != nil {
			t.Fatal(err)
		}
		x.gone()
		if !status.Known || status.Code != 3 || report.Cause != "exit" {
			t.Errorf("status %+v, report %+v", status, report)
		}
	})
}

// Red with JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE left out of newJob.
func TestEnginesDeathTakesTheTree(t *testing.T) {
	eachVictim(t, func(t *testing.T, rung string, v tried) {
		x := newWitness(t)
		e := startEngine(t, x, rung, v.name, v.args...)
		x.ready(v.ready)
		e.kill()
		x.end()
		x.gone()
	})
}

// The control of the test before: with no job object all victims outlive the engine, and so are what a job object ends.
func TestWithoutAJobObjectTheySurvive(t *testing.T) {
	for _, v := range victims(t) {
		if v.ready == 0 || v.name == "hopper" {
			continue // nobody of them stays
		}
		t.Run(v.name, func(t *testing.T) {
			x := newWitness(t)
			e := startEngine(t, x, noRung, v.name, v.args...)
			x.ready(v.ready)
			e.kill()
			if left := x.living(); len(left) != v.ready {
				t.Errorf("%d of %d survive", len(left), v.ready)
			}
			select {
			case <-x.eof:
				t.Error("nobody holds the pipe")
			default:
			}
			x.killAll() // by handle; the console's own process may hold the pipe for a while
		})
	}
}

// The last handle's close alone is an end.
func TestLastHandleClosedTakesTheTree(t *testing.T) {
	for _, v := range victims(t) {
		if v.name != "daemon" && v.name != "nested" && v.name != "wide" {
			continue // the engine's death, above, is the same to the system
		}
		t.Run(v.name, func(t *testing.T) {
			x := newWitness(t)
			stdin, _ := pipe(t)
			s := &Spec{Path: executable(t), Args: victim.Args(v.name, v.args...), Stdin: stdin, Stderr: os.Stderr, Extra: []*os.File{x.hold}}
			files, null, err := s.files()
			if err != nil {
				t.Fatal(err)
			}
			defer null.Close()
			limits, _ := jobLimits(s)
			job, err := newJob(limits)
			if err != nil {
				t.Fatal(err)
			}
			p, err := create(s, files, job, 0)
			x.hold.Close()
			if err != nil {
				windows.CloseHandle(job)
				t.Fatal(err)
			}
			windows.CloseHandle(p.Thread)
			windows.CloseHandle(p.Process)
			x.ready(v.ready)
			windows.CloseHandle(job)
			x.end()
			x.gone()
		})
	}
}

// An engine may be a member of another's job object, and itself be cut with all that it has started.
func TestTreeInATree(t *testing.T) {
	for _, rung := range Rungs() {
		x := newWitness(t)
		stdin, _ := pipe(t)
		out, say := pipe(t)
		outer, err := Start(t.Context(), Spec{Path: executable(t), Args: []string{"engine", engineWord, rung, "daemon"},
			Stdin: stdin, Stdout: say, Stderr: x.hold})
		if err != nil {
			t.Fatal(err)
		}
		say.Close()
		x.hold.Close()
		b := make([]byte, 100)
		if n, err := out.Read(b); string(b[:n]) != "started <nil>\n" {
			t.Fatalf("engine in a job object says %q, %v", b[:n], err)
		}
		x.ready(2)
		until(t, "three members", func() bool { m, _ := outer.Members(); return len(m) == 3 })
		if _, err := outer.Kill(within(t), "test"); err != nil {
			t.Fatal(err)
		}
		x.gone()
	}
}

// What no job object holds, and why no rung says that it is guarded: a member that may open another process of its user
// can have that one for the parent of a new process.
func TestReparentedProcessEscapes(t *testing.T) {
	bystander := newWitness(t)
	other, _, _ := startBystander(t, bystander)
	tree, x, _ := start(t, "job", tried{name: "reparent", args: []string{fmt.Sprint(other)}, ready: 2})
	if _, err := tree.Kill(within(t), "test"); err != nil {
		t.Fatal(err)
	}
	until(t, "the command is gone", func() bool { return len(x.living()) <= 1 })
	if left := x.living(); len(left) != 1 || tree.Facts().Guarded || tree.Facts().Unguarded == "" {
		t.Errorf("left %v, facts %+v", left, tree.Facts())
	}
	bystander.killAll() // it holds the witness as well
}

// startBystander starts a process that belongs to no tree.
func startBystander(t *testing.T, x *witness) (pid int, process windows.Handle, told *os.File) {
	t.Helper()
	stdin, told := pipe(t)
	s := &Spec{Path: executable(t), Args: victim.Args("sleeper"), Stdin: stdin, Extra: []*os.File{x.hold}}
	files, null, err := s.files()
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	p, err := create(s, files, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	x.hold.Close()
	stdin.Close()
	windows.CloseHandle(p.Thread)
	t.Cleanup(func() { windows.CloseHandle(p.Process) })
	x.ready(1)
	return int(p.ProcessId), p.Process, told
}

// Somebody else's process of the same user lives through every end.
func TestBystanderLives(t *testing.T) {
	for _, rung := range Rungs() {
		bystander := newWitness(t)
		_, process, told := startBystander(t, bystander)
		for _, end := range []string{"kill", "exit", "engine"} {
			v := tried{name: "daemon", ready: 2}
			switch end {
			case "engine":
				x := newWitness(t)
				e := startEngine(t, x, rung, v.name)
				x.ready(v.ready)
				e.kill()
				x.end()
			default:
				tree, x, asked := start(t, rung, v)
				if end == "exit" {
					asked.Close()
				} else {
					tree.Cut("test")
				}
				if _, _, err := tree.Wait(within(t)); err != nil {
					t.Fatal(err)
				}
				x.gone()
			}
			if len(bystander.living()) != 1 {
				t.Fatalf("the bystander died of %s on %s", end, rung)
			}
		}
		told.Close()
		var code uint32
		if event, err := windows.WaitForSingleObject(process, uint32(patience/time.Millisecond)); err != nil || event != 0 {
			t.Fatal("the bystander does not end", event, err)
		}
		if windows.GetExitCodeProcess(process, &code); code != 3 {
			t.Errorf("the bystander: %d", code)
		}
	}
}
