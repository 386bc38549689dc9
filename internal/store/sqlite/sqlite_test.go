package sqlite

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
	"coppice.dev/coppice/internal/store/storetest"
)

// TestMain serves the re-exec'd children of tests, and fails the run for a goroutine that a closed store left behind.
func TestMain(m *testing.M) {
	if name := os.Getenv(childEnv); name != "" {
		os.Exit(runChild(name, os.Getenv(childPathEnv)))
	}
	if err := flag.Set("rapid.checks", modelChecks); err != nil { // the command line may say otherwise
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// reopening is a store that the suite can close and open again.
type reopening struct {
	*Store
	path string
}

func (r reopening) Reopen() (store.Store, error) {
	if err := r.Close(); err != nil {
		return nil, err
	}
	s, err := Open(context.Background(), r.path, Options{})
	return reopening{s, r.path}, err
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		path := newPath(t)
		s, err := Open(t.Context(), path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		return reopening{s, path}
	})
}

func newPath(t testing.TB) string { return filepath.Join(t.TempDir(), "coppice.db") }

// openAt opens a store and closes it at the test's end, unless the test has.
func openAt(t testing.TB, path string, o Options) *Store {
	t.Helper()
	s, err := Open(context.Background(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func receive(t testing.TB, s *Store, inbound, body string) message.ID {
	t.Helper()
	id, err := s.Receive(context.Background(), message.Incoming{Inbound: inbound, Body: []byte(body)})
	must(t, err)
	return id
}

func route(t testing.TB, s *Store, id message.ID, plans ...store.Plan) {
	t.Helper()
	must(t, s.Route(context.Background(), id, plans, message.Outcome{State: message.RunSent}))
}

// nextRun returns the handler's next run, which there must be, and its message.
func nextRun(t testing.TB, s *Store, handler string) (message.Run, message.Message) {
	t.Helper()
	next, err := s.NextRuns(context.Background(), handler, 1, 0)
	must(t, err)
	if len(next) == 0 {
		t.Fatalf("no run of handler %q is pending", handler)
	}
	return next[0].Run, next[0].On
}

// queryInt asks the writer's own connection, which sees everything and owns the settings.
func queryInt(t testing.TB, s *Store, query string, args ...any) int {
	t.Helper()
	var n int
	must(t, s.commit(context.Background(), 0, func(t *tx) error { return t.row(query, args, &n) }))
	return n
}
