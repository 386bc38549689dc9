package tree

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"coppice.dev/coppice/internal/victim"
	_ "coppice.dev/coppice/tree/shimhook"
	"go.uber.org/goleak"
)

// TestMain is, by the arguments, a victim, an engine that will be killed, or the tests. These fail if anything is left
// of them: a goroutine, a descriptor, a process.
func TestMain(m *testing.M) {
	victim.Main()
	engineMain()
	before := openDescriptors()
	code := m.Run()
	if code == 0 {
		code = leftovers(before)
	}
	os.Exit(code)
}

func leftovers(before int) int {
	code := 0
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, "left behind:", err)
		code = 1
	}
	// The runtime's poller may have come meanwhile: an epoll and an event descriptor. On Windows each thread has handles.
	slack := 2
	if runtime.GOOS == "windows" {
		slack = 4 * 16
	}
	if after := openDescriptors(); after > before+slack {
		fmt.Fprintf(os.Stderr, "left behind: %d descriptors became %d\n", before, after)
		code = 1
	}
	for _, c := range ownChildren() {
		fmt.Fprintf(os.Stderr, "left behind: process %+v\n", c)
		code = 1
	}
	return code
}
