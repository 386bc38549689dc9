package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"coppice.dev/coppice/internal/shim"
	"coppice.dev/coppice/internal/victim"
	"coppice.dev/coppice/internal/victim/observer"
)

func TestMain(m *testing.M) {
	victim.Main()
	os.Exit(m.Run())
}

// tortured runs the command as a shell would, and fails the test if it leaves anything.
func tortured(t *testing.T, ctx context.Context, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	t.Setenv("TMPDIR", t.TempDir())
	os.Chmod(os.Getenv("TMPDIR"), 0o755)
	var out, errs bytes.Buffer
	status = run(ctx, args, &out, &errs)
	if left, _ := filepath.Glob(os.Getenv("TMPDIR") + "/*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if left := shim.Descendants(os.Getpid()); len(left) > 0 {
		t.Errorf("left behind: %+v", left)
	}
	return status, out.String(), errs.String()
}

// A tool that holds nothing is found out, and one that kills what it started is believed. Red for the first with Outlive
// returning nobody.
func TestTimeoutLeavesWhatHasLeftIt(t *testing.T) {
	if _, err := exec.LookPath("timeout"); err != nil {
		t.Skip("missing: timeout(1)")
	}
	status, out, errs := tortured(t, t.Context(), "--victims", "sleeper,deaf", "--ends", "exit,term",
		"--deadline-in-tool", "2s", "--", "timeout", "-k", "0.2", "2")
	if status != 0 || !strings.Contains(out, "exit 0 of 2, term 0 of 2, deadline 0 of 2") {
		t.Errorf("%d\n%s%s", status, out, errs)
	}
	status, out, errs = tortured(t, t.Context(), "--victims", "daemon", "--ends", "exit,kill", "--patience", "300ms", "--json",
		"--", "timeout", "60")
	var got struct {
		Tool     []string
		Outcomes []observer.Outcome
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || status != someLeft || len(got.Tool) != 2 || len(got.Outcomes) != 2 {
		t.Fatalf("%d, %v\n%s%s", status, err, out, errs)
	}
	for i, want := range []int{1, 2} { // kill frees the leader as well
		if x := got.Outcomes[i]; len(x.Left) != want || x.Left[0] == "" {
			t.Errorf("%+v, want %d left", x, want)
		}
	}
}

func TestUsage(t *testing.T) {
	for name, args := range map[string][]string{
		"no tool":     {},
		"no such end": {"--ends", "hope", "--", "env"},
		"deadline":    {"--ends", "deadline", "--", "env"},
		"no victim":   {"--victims", "nobody", "--", "env"},
		"no flag":     {"--cut", "--", "env"},
		"not there":   {"--victims", "sleeper", "--", "/none"},
		"no victims":  {"--victims", "sleeper", "--", "true"},
	} {
		if status, out, errs := tortured(t, t.Context(), args...); status != noResult || out != "" || errs == "" {
			t.Errorf("%s: %d %q %q", name, status, out, errs)
		}
	}
	if status, _, errs := tortured(t, t.Context(), "--help"); status != 0 || !strings.Contains(errs, "Usage: torture") {
		t.Errorf("help: %d %q", status, errs)
	}
}

// The victim's words go where {} stands.
func TestPlace(t *testing.T) {
	status, out, errs := tortured(t, t.Context(), "--victims", "sleeper", "--ends", "exit", "--", "sh", "-c", `exec "$@"`, "sh", "{}")
	if status != 0 {
		t.Errorf("%d %q %q", status, out, errs)
	}
}

// Who interrupts it finds nothing left either.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if status, _, errs := tortured(t, ctx, "--victims", "daemon", "--", "env"); status != noResult || !strings.Contains(errs, "cancel") {
		t.Errorf("%d %q", status, errs)
	}
}
