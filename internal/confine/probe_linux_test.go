package confine

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"coppice.dev/coppice/internal/cgroup"
	"golang.org/x/sys/unix"
)

// probeEnv makes this test binary a probe's child.
const probeEnv = "COPPICE_TEST_PROBE"

// TestProbeChild is the child, and nothing else.
func TestProbeChild(t *testing.T) {
	switch name := os.Getenv(probeEnv); name {
	case "": // it is for the tests below
	case "dumb":
		os.Exit(7)
	case "flood":
		os.Stdout.Write(make([]byte, 10*probeOutput))
	case "stuck":
		time.Sleep(probeLife)
	default:
		if err := ProbeChild(name, os.Stdin, os.Stdout); err != nil {
			t.Fatal(err)
		}
	}
}

func tryProbe(t *testing.T, ctx context.Context, name, child string) (string, error) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(probeEnv, child)
	return Probe(ctx, name, exe, []string{"probe", "-test.run=^TestProbeChild$"})
}

// TestProbes: each one works, or is refused with a reason; no cgroup is left, and no process. What there is by other signs
// has to work; for namespaces, package doctor asks another program.
//
// Red with what a probe looks for taken away: Landlock's restriction, its scope, the filter, UseCgroupFD.
func TestProbes(t *testing.T) {
	for _, name := range Probes() {
		detail, err := tryProbe(t, t.Context(), name, name)
		t.Logf("%s: %q, %v", name, detail, err)
		if (detail == "") != (err != nil) {
			t.Errorf("%s: %q, %v", name, detail, err)
		}
		if there, known := signs(t)[name]; known && there != (err == nil) {
			t.Errorf("%s: by other signs it is %v, but %v", name, there, err)
		}
	}
	noLeaf(t)
}

// signs are what can be seen of features without having them.
func signs(t *testing.T) map[string]bool {
	t.Helper()
	_, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{"landlock": errno == 0, "seccomp": strings.Contains(string(status), "Seccomp_filters:")}
	p, err := cgroup.Own()
	if err != nil {
		return out
	}
	dir := filepath.Join(p.Dir, "coppice-test-"+rand.Text())
	if os.Mkdir(dir, 0o700) != nil {
		out["cgroup-leaf"] = false
		return out
	}
	defer os.Remove(dir)
	_, err = os.Stat(filepath.Join(dir, "cgroup.kill"))
	out["cgroup-leaf"] = err == nil
	return out
}

func noLeaf(t *testing.T) {
	t.Helper()
	if p, err := cgroup.Own(); err == nil {
		mine, err := leafName() // another package's tests may be making theirs at this moment
		if err != nil {
			t.Fatal(err)
		}
		if left, _ := filepath.Glob(filepath.Join(p.Dir, mine+"*")); len(left) > 0 {
			t.Errorf("cgroups are left: %v", left)
		}
	}
	if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); !errors.Is(err, unix.ECHILD) {
		t.Errorf("a child is left: %v", err)
	}
}

// TestProbeBadChild: a child that says nothing, too much or never anything is an error, and its cgroup goes all the same.
func TestProbeBadChild(t *testing.T) {
	features := []string{"seccomp"}
	if _, err := tryProbe(t, t.Context(), "cgroup-leaf", "cgroup-leaf"); err == nil {
		features = append(features, "cgroup-leaf")
	} else {
		t.Run("cgroup-leaf", func(t *testing.T) { t.Skipf("missing: a cgroup to make leaves in: %v", err) })
	}
	for _, feature := range features {
		if _, err := tryProbe(t, t.Context(), feature, "dumb"); err == nil || !strings.Contains(err.Error(), "exit status 7") {
			t.Errorf("%s, dumb: %v", feature, err)
		}
		if _, err := tryProbe(t, t.Context(), feature, "flood"); err == nil {
			t.Errorf("%s, flood: no error", feature)
		}
		enough := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, enough)
		began := time.Now()
		if _, err := tryProbe(t, ctx, feature, "stuck"); !errors.Is(err, enough) || time.Since(began) > probeLife/2 {
			t.Errorf("%s, stuck: %v after %v", feature, err, time.Since(began))
		}
		cancel()
	}
	noLeaf(t)
	if _, err := Probe(t.Context(), "no such feature", "/bin/true", nil); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("unknown: %v", err)
	}
}
