package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// child asks for the status and says what came of it: it is this program, started by a test.
func child(path string) int {
	c, err := Dial(context.Background(), path)
	if err == nil {
		_, err = c.Status(context.Background())
	}
	fmt.Println("refused:", errors.Is(err, ErrRefused), err)
	return 0
}

// askAs has a child ask.
func askAs(t *testing.T, path string, attr *syscall.SysProcAttr) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = []string{"COPPICE_CONTROL_CHILD=" + path}
	cmd.SysProcAttr = attr
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// TestOwnProcesses: a process below the engine gives no orders, although it is the engine's user. Red without descends.
func TestOwnProcesses(t *testing.T) {
	e := &engine{}
	path := serve(t, e)
	out := askAs(t, path, nil)
	if !strings.HasPrefix(out, "refused: true ") || !strings.Contains(out, "is one of its own") || e.asked != "" {
		t.Errorf("the child says %q; the engine was asked %q", out, e.asked)
	}
	if _, err := dial(t, path).Status(t.Context()); err != nil {
		t.Error("the engine's own process:", err)
	}
}

// TestRefusalsAreFewInTheLog: a worker that asks all the time does not fill the disk by the log. Red without the look at told.
func TestRefusalsAreFewInTheLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer // which Accept alone writes to, and is read after its end
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, &engine{}, slog.New(slog.NewTextHandler(&log, nil))) }()
	for range 3 {
		if out := askAs(t, path, nil); !strings.HasPrefix(out, "refused: true ") {
			t.Errorf("the child says %q", out)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := strings.Count(log.String(), "control: refused"); n != 1 {
		t.Errorf("the log has it %d times:\n%s", n, &log)
	}
	var later strings.Builder
	s := &screened{log: slog.New(slog.NewTextHandler(&later, nil)), told: time.Unix(0, 0), untold: 2}
	if s.tell(ErrRefused, time.Unix(0, 0).Add(tellEvery)); !strings.Contains(later.String(), "more_before=2") {
		t.Errorf("and later: %s", &later)
	}
}

// TestOtherUsers: another user gives no orders, even where the socket lets him in. Red without the look at Uid in mayOrder:
// the refusal then has another reason.
func TestOtherUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("missing: root, to be another user")
	}
	path := serve(t, &engine{})
	for name, mode := range map[string]os.FileMode{filepath.Dir(path): 0o711, path: 0o666} {
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
	}
	out := askAs(t, path, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}})
	if !strings.HasPrefix(out, "refused: true ") || !strings.Contains(out, "it runs as user 65534") {
		t.Errorf("the child says %q", out)
	}
}

// TestLongPath: a folder may lie deeper than a socket's address is long. Red with shorten returning the path.
func TestLongPath(t *testing.T) {
	dir := t.TempDir()
	for range 4 {
		dir = filepath.Join(dir, strings.Repeat("a", 60))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := dial(t, serveAt(t, &engine{}, filepath.Join(dir, "control"))).Status(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestDescends: of processes that are there, and of those that are not.
func TestDescends(t *testing.T) {
	for _, c := range []struct {
		pid, ancestor int
		want          bool
	}{
		{os.Getpid(), os.Getpid(), false},
		{os.Getpid(), os.Getppid(), true},
		{1, os.Getpid(), false},
	} {
		if got, err := descends(c.pid, c.ancestor); got != c.want || err != nil {
			t.Errorf("descends(%d, %d) is %t, %v", c.pid, c.ancestor, got, err)
		}
	}
	cmd := exec.Command("/bin/true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if _, err := descends(cmd.Process.Pid, os.Getpid()); err == nil {
		t.Error("a process that has ended is told")
	}
}
