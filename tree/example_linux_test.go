package tree_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"coppice.dev/coppice/tree"
	_ "coppice.dev/coppice/tree/shimhook" // in the main package: the program can then be a tree's shim
)

// The command leaves two processes behind, one of them in a session of its own. When Wait returns, both are gone.
func Example() {
	t, err := tree.Start(context.Background(), tree.Spec{
		Path:   "/bin/sh",
		Args:   []string{"sh", "-c", "sleep 60 & setsid sleep 60 & exit 3"},
		Env:    os.Environ(),
		Stderr: os.Stderr,
		Level:  tree.Group, // refuse less; tree.Atomic refuses all but the best
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	status, report, err := t.Wait(ctx)
	if ctx.Err() != nil { // it takes too long: end it, and all of it
		report, err = t.Kill(context.Background(), "too slow")
	}
	for _, m := range report.Named { // what was left behind, as the look before the cut showed it
		fmt.Fprintf(os.Stderr, "cut %d %q\n", m.Pid, m.Name)
	}
	fmt.Printf("%v; proved gone: %v\n", status, err == nil)
	// Output: exit status 3; proved gone: true
}

// A level that the host does not give is an error that says why, rung by rung.
func ExampleLevelError() {
	_, err := tree.Start(context.Background(), tree.Spec{Path: "/bin/true", Rung: "group", Level: tree.Atomic})
	var missing *tree.LevelError
	if errors.As(err, &missing) {
		for _, tried := range missing.Tried {
			fmt.Println(tried.Rung+":", tried.Reason)
		}
	}
	// Output: group: its level is group only
}
