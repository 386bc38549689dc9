package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"coppice.dev/coppice/internal/shim"
	_ "coppice.dev/coppice/tree/shimhook"
)

// The first arguments by which this test binary is something else than the tests.
const (
	wordExamine = "examine"  // the doctor: prints an examined
	wordSituate = "situated" // makes the named situation, then the doctor in it
)

// examined is what a doctor in a process of its own tells.
type examined struct {
	Report *Report
	// Dead and Living are the children that it has when it is done.
	Dead, Living int
}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case ChildVerb:
			if Child(os.Args[2:]) != nil {
				os.Exit(1)
			}
			return
		case wordExamine:
			examine()
			return
		case wordSituate:
			situate(os.Args[2])
		}
	}
	os.Exit(m.Run())
}

func examine() {
	r, err := Run(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	x := examined{Report: r}
	for _, p := range shim.All() {
		switch {
		case p.Parent != os.Getpid():
		case p.Dead():
			x.Dead++
		default:
			x.Living++
		}
	}
	json.NewEncoder(os.Stdout).Encode(x)
}

// doctorTimeout bounds a whole examination, which takes a few seconds.
const doctorTimeout = time.Minute

// run has this binary, or another command, examine the host in a process of its own.
func run(t *testing.T, change func(*exec.Cmd), args ...string) examined {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), doctorTimeout)
	defer cancel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, exe, args...)
	cmd.Stderr, cmd.WaitDelay = os.Stderr, time.Second
	if change != nil {
		change(cmd)
	}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the doctor: %v", err)
	}
	var x examined
	if err := json.Unmarshal(out, &x); err != nil {
		t.Fatalf("%v in %.200s", err, out)
	}
	if left := children(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	return x
}

// children are the processes of any doctor that this test binary was.
func children() (out []shim.Process) {
	exe, _ := os.Executable()
	for _, p := range shim.All() {
		if other, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.Pid)); err == nil && other == exe && p.Pid != os.Getpid() {
			out = append(out, p)
		}
	}
	return out
}

// eventually waits for what no event tells of.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for limit := time.Now().Add(doctorTimeout / 2); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

func needsProc(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("missing: /proc")
	}
}
