package sandbox_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"coppice.dev/coppice/sandbox"
	_ "coppice.dev/coppice/tree/shimhook" // in main: without it, Linux is left with level group
	"coppice.dev/coppice/wire"
)

// Package main also imports _ "coppice.dev/coppice/tree/shimhook": without it, Linux is left with level group, which a
// process that calls setsid escapes.
//
// The command is a program that calls worker.Main; here it is this test binary, executed again.
func Example() {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	pool, err := sandbox.New(sandbox.Spec{Name: "greet", Command: []string{self, "victim", "example", "-"}})
	if err != nil {
		panic(err)
	}
	defer pool.Close(context.Background())

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	result, err := pool.Dispatch(ctx, sandbox.Request{Phase: wire.PhaseHandle, Name: "greet", Message: 1, Body: []byte("world")})
	if err != nil {
		panic(err) // sandbox.Blame(err) says whose fault it is
	}
	for _, send := range result.Sends {
		fmt.Printf("to %s: %s\n", send.To, send.Body)
	}
	// Output: to greetings: hello, world
}
