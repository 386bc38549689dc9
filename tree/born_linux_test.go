package tree

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"coppice.dev/coppice/internal/victim"
	"golang.org/x/sys/unix"
)

// output runs a command on a rung and returns its lines "name: value".
func output(t *testing.T, spec Spec) map[string]string {
	t.Helper()
	r, w := pipe(t)
	spec.Stdout, spec.Stderr = w, os.Stderr
	tree, err := Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	r.SetReadDeadline(time.Now().Add(patience))
	out := map[string]string{}
	s := bufio.NewScanner(r)
	for s.Scan() {
		name, value, _ := strings.Cut(s.Text(), ":")
		out[name] = strings.TrimSpace(value)
	}
	status, _, err := tree.Wait(within(t))
	if err != nil || !status.Success() || s.Err() != nil {
		t.Fatalf("%v, %v, %v", status, err, s.Err())
	}
	return out
}

// A command is born with every signal at its default and none blocked, but for those that this very process was started
// with ignored, as under nohup(1): these stay so over every exec. Red for SigIgn with ignore(unhandled) moved
// before the fork: the signals that stop it stay ignored, and ^Z does nothing.
func TestBornWithDefaultSignals(t *testing.T) {
	for _, rung := range available(t) {
		have := output(t, Spec{Path: "/bin/cat", Args: []string{"cat", "/proc/self/status"}, Rung: rung})
		want := map[string]string{"SigIgn": ownStatus(t, "SigIgn")}
		for _, field := range []string{"SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd"} {
			if have[field] != cmp.Or(want[field], "0000000000000000") {
				t.Errorf("%s: %s %s", rung, field, have[field])
			}
		}
		if rung == "pidns-user" || os.Geteuid() != 0 {
			continue
		}
		if have["CapEff"] == "0000000000000000" || have["NoNewPrivs"] != "0" {
			t.Errorf("%s: not asked for, and yet: capabilities %s, no_new_privs %s", rung, have["CapEff"], have["NoNewPrivs"])
		}
	}
}

// ownStatus reads one field of this process's own status.
func ownStatus(t *testing.T, field string) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("no %s in /proc/self/status", field)
	return ""
}

// Red with shim.renounce left out.
func TestBornWithoutCapabilities(t *testing.T) {
	for _, rung := range available(t) {
		if rung == "group" {
			continue
		}
		have := output(t, Spec{Path: "/bin/cat", Args: []string{"cat", "/proc/self/status"}, Rung: rung,
			DropCapabilities: true, NoNewPrivileges: rung != "subreaper"})
		sets := []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"}
		if rung == "subreaper" && os.Geteuid() != 0 {
			// Who has no capability may not empty the bounding set, but then gains nothing by it.
			sets = []string{"CapInh", "CapPrm", "CapEff", "CapAmb"}
			if have["NoNewPrivs"] != "1" {
				t.Error("a set-user-id program could give the capabilities back")
			}
		}
		for _, set := range sets {
			if have[set] != "0000000000000000" {
				t.Errorf("%s: %s %s", rung, set, have[set])
			}
		}
		if rung != "subreaper" && have["NoNewPrivs"] != "1" {
			t.Errorf("%s: NoNewPrivs %s", rung, have["NoNewPrivs"])
		}
	}
}

// The engine's open descriptor that is not close-on-exec is not the command's: red with the shim's close_range removed.
// The data limit is far below the shim's own size, which must do no harm.
func TestBornWithItsOwnAlone(t *testing.T) {
	leak, err := unix.Open("/dev/null", unix.O_RDONLY, 0) // on purpose without O_CLOEXEC
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leak)
	dir := t.TempDir()
	if os.Geteuid() == 0 {
		os.Chmod(dir, 0o755)
	}
	extra, _ := pipe(t)
	t.Setenv("COPPICE_TEST_SECRET", "of the engine")
	for _, rung := range available(t) {
		if rung == "group" {
			continue
		}
		have := output(t, Spec{Path: executable(t), Args: victim.Args("inspect"), Env: []string{"A=1"}, Dir: dir, Rung: rung,
			Extra: []*os.File{extra, nil}, NewSession: true,
			Limits: Limits{NoCore: true, Files: 64, Data: 1 << 40, File: 1 << 20, Tasks: 100}})
		for name, want := range map[string]string{
			"Descriptors": "[0 1 2 3 4]", "Environment": `["A=1"]`, "Dir": dir, "Session": "true", "Group": "true",
			"Terminal": syscall.ENXIO.Error(), "Limit-core": "0", "Limit-files": "64", "Limit-data": fmt.Sprint(1 << 40),
			"Limit-file": fmt.Sprint(1 << 20)} {
			if have[name] != want {
				t.Errorf("%s: %s is %s, want %s", rung, name, have[name], want)
			}
		}
		if tasks := have["Limit-tasks"]; rung == "pidns-user" && tasks != fmt.Sprint(100+shimTasks) {
			t.Errorf("%s: tasks %s", rung, tasks)
		}
	}
}

// Limits that Go's runtime could not live with are the command's alone: its shim does its work all the same, and a kill is a
// kill. Red with the limits set on the shim: it cannot even fork.
func TestLowestLimits(t *testing.T) {
	for _, rung := range available(t) {
		if rung == "group" {
			continue
		}
		for range 5 {
			tree, err := Start(t.Context(), Spec{Path: "/bin/sh", Args: []string{"sh", "-c", "sleep 20 & sleep 20 & sleep 20; true"},
				Env: []string{"PATH=/bin:/usr/bin"}, Rung: rung, Limits: Limits{Data: 1 << 20, Files: 16, File: 1, NoCore: true}})
			if err != nil {
				t.Fatal(err)
			}
			until(t, "four processes", func() bool { m, _ := tree.Members(); return len(m) == 4 })
			if _, err := tree.Kill(within(t), "test"); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A pipe ends with the command's use of it, though the shim was born with it too. Red with letGo removed.
func TestShimHoldsNoPipe(t *testing.T) {
	for _, rung := range available(t) {
		r, w := pipe(t)
		stdout, stdoutW := pipe(t)
		tree, err := Start(t.Context(), Spec{Path: "/bin/sh", Args: []string{"sh", "-c", "exec 1>&- 3>&-; sleep 20"},
			Env: []string{"PATH=/bin:/usr/bin"}, Rung: rung, Stdout: stdoutW, Extra: []*os.File{w}})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range []*os.File{w, stdoutW} {
			f.Close()
		}
		for _, f := range []*os.File{r, stdout} {
			f.SetReadDeadline(time.Now().Add(patience))
			if _, err := f.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("%s: %v", rung, err)
			}
		}
		select {
		case <-tree.Exited():
			t.Errorf("%s: the command has ended", rung)
		default:
		}
		if _, err := tree.Kill(within(t), "test"); err != nil {
			t.Fatal(err)
		}
	}
}

// What the guards cost and what not. A domain that only keeps a command from signalling and tracing leaves mount(2) alone;
// one that keeps it from leaving its cgroup takes it away. Red with an access to files handled for every guard.
func TestGuardsAndMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("missing: root, to mount")
	}
	for _, rung := range available(t) {
		if !guarded(t, rung) || rung == "pidns-user" {
			continue
		}
		r, w := pipe(t)
		tree, err := Start(t.Context(), Spec{Path: "/bin/sh", Args: []string{"sh", "-c",
			"unshare -m sh -c 'mount -t tmpfs none \"$0\" && echo mounted' \"$0\" || echo refused", t.TempDir()},
			Env: []string{"PATH=/usr/bin:/bin:/usr/sbin:/sbin"}, Rung: rung, Stdout: w})
		w.Close()
		if err != nil {
			t.Fatal(err)
		}
		r.SetReadDeadline(time.Now().Add(patience))
		said, _ := io.ReadAll(r)
		if _, _, err := tree.Wait(within(t)); err != nil {
			t.Fatal(err)
		}
		want := "mounted\n"
		if rung == "cgroup" {
			want = "refused\n"
		}
		if string(said) != want {
			t.Errorf("%s: mount was %q", rung, said)
		}
	}
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if e := out.Close(); err == nil {
		err = e
	}
	return err
}
