package engine

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/connect/mllp"
	"coppice.dev/coppice/internal/hl7"
	"coppice.dev/coppice/internal/message"
	_ "coppice.dev/coppice/tree/shimhook"
	"go.uber.org/goleak"
)

// patience bounds every wait of these tests.
const patience = 60 * time.Second

// TestMain is also an engine, and the workers of one, for the tests that kill it: see crash_linux_test.go. After the tests it fails
// the run if a process or a goroutine is left.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		again(os.Args[1:])
	}
	code := m.Run()
	left := children()
	for limit := time.Now().Add(3 * time.Second); len(left) > 0 && time.Now().Before(limit); left = children() {
		time.Sleep(10 * time.Millisecond)
	}
	for _, child := range left {
		fmt.Fprintln(os.Stderr, "left behind:", child)
		code = 1
	}
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, "left behind:", err)
		code = 1
	}
	os.Exit(code)
}

// needPython skips a test that cannot run without.
func needPython(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("missing: python3")
	}
}

// folder makes a folder with the handlers of testdata and the given configuration.
func folder(t *testing.T, toml string) string {
	t.Helper()
	dir := t.TempDir()
	code, err := os.ReadFile(filepath.Join("testdata", "feed.py"))
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"feed.py": code, "coppice.toml": []byte(toml)} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// emr is a receiver that keeps what it gets.
type emr struct {
	*mllp.Receiver
	mu     sync.Mutex
	bodies [][]byte
}

// newEMR starts a receiver. When moody says so of a body, it hangs up on it, and has not got it.
func newEMR(t *testing.T, moody func() bool) *emr {
	t.Helper()
	e := &emr{}
	r, err := mllp.NewReceiver("127.0.0.1:0", func(body []byte) string {
		e.mu.Lock()
		defer e.mu.Unlock()
		if moody != nil && moody() {
			return mllp.HangUp
		}
		e.bodies = append(e.bodies, body)
		return hl7.AA
	})
	if err != nil {
		t.Fatal(err)
	}
	e.Receiver = r
	t.Cleanup(func() { r.Close() })
	return e
}

func (e *emr) got() [][]byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([][]byte(nil), e.bodies...)
}

// served is an engine under test.
type served struct {
	*Engine
	cfg   *config.Config
	stop  context.CancelFunc
	ended chan error
}

func serve(t *testing.T, dir string, o Options) *served {
	t.Helper()
	return serveOn(t, dir, o, func(*Engine) {})
}

// serveOn is serve with a change to the engine before it runs.
func serveOn(t *testing.T, dir string, o Options, change func(*Engine)) *served {
	t.Helper()
	cfg, err := config.Load(dir, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	e, err := Open(t.Context(), cfg, o)
	if err != nil {
		t.Fatal(err)
	}
	change(e)
	ctx, cancel := context.WithCancel(context.Background())
	s := &served{Engine: e, cfg: cfg, stop: cancel, ended: make(chan error, 1)}
	go func() { s.ended <- e.Run(ctx) }()
	t.Cleanup(func() { s.end(t) })
	eventually(t, func() bool { // an engine that starts takes no orders yet
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.running != nil || e.over || len(s.ended) > 0
	})
	return s
}

// end stops the engine, and fails the test if that went wrong. It may be called again.
func (s *served) end(t *testing.T) {
	t.Helper()
	s.stop()
	select {
	case err, first := <-s.ended:
		if !first {
			return
		}
		if err != nil {
			t.Errorf("engine ended with %v", err)
		}
		close(s.ended)
	case <-time.After(patience):
		t.Error("engine does not stop")
	}
}

// quiet waits until the engine has n messages and none of them is under way.
func (s *served) quiet(t *testing.T, n int64) map[message.Disposition]int64 {
	t.Helper()
	var counts map[message.Disposition]int64
	eventually(t, func() bool {
		var err error
		if counts, err = s.Store().Counts(t.Context()); err != nil {
			t.Fatal(err)
		}
		var all int64
		for _, c := range counts {
			all += c
		}
		return all >= n && counts[message.Received]+counts[message.Routed] == 0
	})
	return counts
}

// eventually looks until something is so; the store tells nobody when it changes.
func eventually(t *testing.T, so func() bool) {
	t.Helper()
	within(t, patience, so)
}

func within(t *testing.T, patience time.Duration, so func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for limit := time.Now().Add(patience); !so(); <-tick.C {
		if time.Now().After(limit) {
			t.Fatal("waited in vain")
		}
	}
}

func exchange(t *testing.T, c *mllp.Client, body []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ack, err := c.Exchange(ctx, body)
	if err != nil || ack.Code != hl7.AA {
		t.Fatalf("answered with %+v, %v", ack, err)
	}
}

func dial(t *testing.T, addr string) *mllp.Client {
	t.Helper()
	c, err := mllp.Dial(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
