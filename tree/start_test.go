//go:build linux || windows

package tree

import (
	"context"
	"errors"
	"maps"
	"os"
	"testing"
	"time"

	"coppice.dev/coppice/internal/victim"
)

// patience bounds every wait of these tests for something that must come.
const patience = victim.Lifetime / 2

// within bounds a wait for what a tree does by itself or by order. It is shorter than a victim's own lifetime: what a
// victim left to itself would come to as well proves nothing.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// until waits for a condition that no event tells of.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for limit := time.Now().Add(patience); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// pipe is closed with the test.
func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

func executable(t testing.TB) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

// tried is a victim and what is known of it.
type tried struct {
	name    string
	args    []string
	ready   int                 // how many processes say that they are ready
	settled func(*witness) bool // when it has come to where the test wants it; nil: when it is ready
}

// start starts a victim in this process; told ends its leader.
func start(t *testing.T, rung string, v tried) (tree *Tree, x *witness, told *os.File) {
	t.Helper()
	x = newWitness(t)
	stdin, told := pipe(t)
	tree, err := Start(t.Context(), Spec{Path: executable(t), Args: victim.Args(v.name, v.args...), Rung: rung,
		Stdin: stdin, Stderr: os.Stderr, Extra: []*os.File{x.hold}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		tree.Kill(ctx, "cleanup")
	})
	stdin.Close()
	x.hold.Close()
	x.ready(v.ready)
	if v.settled != nil {
		until(t, v.name+" settles", func() bool { return v.settled(x) })
	}
	return tree, x, told
}

// badStart is a start that has to fail.
type badStart struct {
	ctx  context.Context // nil: the test's
	spec Spec
	want error
	path string // that is blamed, if not empty
}

// startErrors tries them on the rungs, and on each what is refused by every system. exe is a program that could be executed.
func startErrors(t *testing.T, rungs []string, exe string, cases map[string]badStart) {
	closed, _ := pipe(t)
	closed.Close()
	cancelled, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("changed my mind")
	cancel(cause)
	maps.Copy(cases, map[string]badStart{
		"closed":    {spec: Spec{Path: exe, Extra: []*os.File{closed}}, want: os.ErrClosed},
		"cancelled": {ctx: cancelled, spec: Spec{Path: exe}, want: cause},
	})
	for _, rung := range rungs {
		for name, c := range cases {
			t.Run(rung+"/"+name, func(t *testing.T) {
				ctx := c.ctx
				if ctx == nil {
					ctx = t.Context()
				}
				c.spec.Rung = rung
				tree, err := Start(ctx, c.spec)
				if tree != nil || !errors.Is(err, c.want) {
					t.Fatalf("error %v, want %v", err, c.want)
				}
				var blamed *os.PathError
				if c.path != "" && (!errors.As(err, &blamed) || blamed.Path != c.path) {
					t.Errorf("error %v blames another than %s", err, c.path)
				}
			})
		}
	}
}
