package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"coppice.dev/coppice/internal/doctor"
	"coppice.dev/coppice/tree"
)

// TestDoctor: for people and for machines it says the same, and so does the exit status. Red with the status taken from
// the level alone, on a report that is not atomic; and with another rung marked.
func TestDoctor(t *testing.T) {
	out, code := doctorSays(t, "doctor", "--json")
	var r doctor.Report
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if want := map[bool]int{true: 0, false: 1}[r.Atomic()]; code != want || r.Schema != doctor.Schema {
		t.Errorf("exit status %d, not %d; schema %d", code, want, r.Schema)
	}
	text, again := doctorSays(t, "doctor")
	if again != code {
		t.Errorf("exit status %d, then %d", code, again)
	}
	var marked []string
	for line := range strings.Lines(string(text)) {
		if strings.HasSuffix(line, "<== you stand here\n") {
			marked = append(marked, line)
		}
	}
	if len(marked) != 1 || !strings.Contains(marked[0], " "+r.Rung+" ") || !strings.Contains(marked[0], r.Level.String()) {
		t.Errorf("marked %q, but the rung is %s", marked, r.Rung)
	}
	for _, name := range tree.Rungs() {
		if !bytes.Contains(text, []byte(name)) {
			t.Errorf("no word of %s", name)
		}
	}
}

// doctorSays runs the program itself.
func doctorSays(t *testing.T, args ...string) ([]byte, int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "coppice", args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || said.Len() > 0 {
		t.Fatalf("%v: %s", err, said.String())
	}
	return out, cmd.ProcessState.ExitCode()
}

// TestReport: the whole picture of a host that is made up, with a process that has chosen an evil name.
func TestReport(t *testing.T) {
	r := &doctor.Report{
		OS: "linux", Arch: "amd64",
		Host: doctor.Host{Kernel: "6.1", User: 1000, Container: "docker", Evidence: "/.dockerenv exists", Filtered: true},
		Rung: "subreaper", Level: tree.Tracked,
		Rungs: []doctor.Rung{
			{Name: "pidns", Reason: "needs root", Hint: "run as root"},
			{Name: "pidns-user", Reason: "operation not permitted", Hint: "allow it"},
			{Name: "subreaper", Works: true, Level: tree.Tracked,
				Facts:     &tree.Facts{BornInside: true, Transparent: true, Limited: true, Unguarded: "no Landlock"},
				Kill:      &doctor.Kill{Proved: true, Seen: 2, Took: 1500 * time.Microsecond},
				HostDeath: &doctor.HostDeath{Waited: 2 * time.Millisecond}},
			{Name: "group", Works: true, Level: tree.Group, Facts: &tree.Facts{BornInside: true, Transparent: true},
				Kill:      &doctor.Kill{Proved: true, Seen: 1, Took: time.Millisecond, Held: true, Escaped: []doctor.Process{{Pid: 7, Name: "\x1b[31m"}}},
				HostDeath: &doctor.HostDeath{Survived: true, Waited: time.Second}},
		},
		Features: []doctor.Feature{
			{Name: "user-namespace", Reason: "start a child: operation not permitted", Hint: "allow it"},
			{Name: "seccomp", Works: true, Detail: "a filter refused a call"},
		},
		Faults: []string{"something\x07 is wrong"},
	}
	const want = `linux/amd64, kernel 6.1, uid 1000, container docker (/.dockerenv exists), under a seccomp filter

           ___  pidns       not to be had
        ___|    pidns-user  not to be had
     ___|       subreaper   tracked   born inside, transparent, limits   <== you stand here
  ___|          group       group     born inside, transparent

WHAT WAS SEEN ON EACH RUNG
  pidns               no     needs root
                             hint: run as root
  pidns-user          no     operation not permitted
                             hint: allow it
  subreaper           kill         2 processes gone in 1.5ms, and nobody holds its pipe
                      host death   engine killed with -9; nothing was left after 2ms
                      not guarded  no Landlock
  group               kill         1 process gone in 1ms; escaped: 7 "\x1b[31m"
                      host death   engine killed with -9; after 1s these lived on: somebody who holds the tree's pipe

WHAT THE HOST GIVES
  user-namespace      no     start a child: operation not permitted
  seccomp             works  a filter refused a call

FAULT  something\x07 is wrong

You stand on subreaper, level tracked: orphans come back to their tree, which is killed in a loop. The hints above say what would give more.
`
	var b bytes.Buffer
	if err := printReport(&b, r); err != nil {
		t.Fatal(err)
	}
	if got := b.String(); got != want {
		t.Errorf("got:\n%s", got)
	}
}

// TestVerdict: what claims to be atomic and was not seen to be is not relied on.
func TestVerdict(t *testing.T) {
	held := doctor.Rung{Name: "pidns", Works: true, Level: tree.Atomic, Facts: &tree.Facts{}, Kill: &doctor.Kill{Proved: true, Held: true}}
	for want, r := range map[string]*doctor.Report{
		"No tree can be held here.": {},
		"You stand on pidns, which says atomic, but that was not seen: do not rely on it.": {Rung: "pidns", Level: tree.Atomic,
			Rungs: []doctor.Rung{held}},
	} {
		if got := lastLine(r); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}
