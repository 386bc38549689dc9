// Package victim is the programs that misbehave in tests. A test binary calls Main first thing in its TestMain and is
// then a victim when it was executed with the arguments that Args makes. It has to be called by the main goroutine.
//
// Every victim is bounded: it ends by itself after Lifetime, and one that forks does so a fixed number of times. It holds
// descriptor Witness open, and so do all of its descendants: the pipe behind it ends when the last of them is gone. On
// it each process says Ready with one line when it has taken its place, and one that attacks tells first what came of it:
// see Attack. Cases lists the victims that a test or a comparison goes through.
package victim

import (
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"
)

// Lifetime is the longest that a victim lives, left to itself.
const Lifetime = 20 * time.Second

// Witness is the descriptor of the pipe that tells an outside observer who is left.
const Witness = 3

// Ready is the line that each process of a victim writes.
const Ready = "ready"

// Attack begins the line by which a victim tells of one attack, in the words: what it did, to whom, and Through or
// Refused with the reason. Refused or not, the victim lives on.
const (
	Attack  = "attack"
	Through = "through"
	Refused = "refused"
)

// Count begins the line of the victim that goes on writing; the time of the monotonic clock follows, in nanoseconds.
const Count = "count"

// word marks a victim's arguments; argv[0] is free for it to lie with.
const word = "coppice-victim"

// program is one victim. It ends the process by returning its exit status.
type program func(args []string) int

// Args are the arguments, argv[0] among them, that make the victim of that name of the binary.
func Args(name string, args ...string) []string {
	return append([]string{"victim", word, name}, args...)
}

// A victim's program runs on the process's first thread: some of what it does is that thread's own.
func init() {
	if called() {
		runtime.LockOSThread()
	}
}

func called() bool { return len(os.Args) >= 3 && os.Args[1] == word }

// Main is the victim that the arguments name, and then does not return.
func Main() {
	if !called() {
		return
	}
	run, ok := programs()[os.Args[2]]
	if !ok {
		fmt.Fprintf(os.Stderr, "no victim %q\n", os.Args[2])
		os.Exit(96)
	}
	time.AfterFunc(Lifetime, func() { os.Exit(95) })
	os.Exit(run(os.Args[3:]))
}

// Names lists the victims.
func Names() []string {
	return slices.Sorted(maps.Keys(programs()))
}

// untilTold waits until standard input ends, which is how a test tells the leader of a tree to leave it.
func untilTold() int {
	io.Copy(io.Discard, os.Stdin)
	return 3
}

// number is a victim's first argument.
func number(args []string) int {
	n, err := strconv.Atoi(args[0])
	if err != nil || n < 1 || n > 1000 {
		fail("count", os.ErrInvalid)
	}
	return n
}

// forEver waits for the end of the victim's lifetime.
func forEver() int {
	time.Sleep(2 * Lifetime)
	return 94
}
