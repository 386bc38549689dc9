package sandbox

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	_ "coppice.dev/coppice/tree/shimhook"
	"go.uber.org/goleak"
)

// TestMain runs the tests, or a victim: the test binary is executed again as a worker that misbehaves by the name of its
// second argument. After the tests it fails the run if a process, a goroutine or a descriptor is left.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "victim" {
		victim(os.Args[2])
	}
	before := descriptors()
	code := m.Run()
	for _, leak := range leaks(before) {
		fmt.Fprintln(os.Stderr, "left behind:", leak)
		code = 1
	}
	os.Exit(code)
}

func leaks(before int) (out []string) {
	for limit := time.Now().Add(3 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		out = nil
		for _, p := range victims("") {
			out = append(out, "process "+p.String())
		}
		if now := descriptors(); now > before {
			out = append(out, fmt.Sprintf("%d descriptors, there were %d", now, before))
		}
		if len(out) == 0 || time.Now().After(limit) {
			break
		}
	}
	if err := goleak.Find(); err != nil {
		out = append(out, err.Error())
	}
	return out
}

// descriptors counts the open ones, without those of the runtime's poller; 0 where that cannot be read.
func descriptors() int {
	list, _ := os.ReadDir("/proc/self/fd")
	n := 0
	for _, f := range list {
		if to, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && !strings.HasPrefix(to, "anon_inode:[event") {
			n++
		}
	}
	return n
}
