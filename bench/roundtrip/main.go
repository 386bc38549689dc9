// Command roundtrip measures what it costs to hand a message to somebody else's code and to get the answer:
//
//	cd bench && go run ./roundtrip                   all of it
//	cd bench && go run ./roundtrip trips 1KiB        round trips of one size
//	cd bench && go run ./roundtrip idle 500          what idle sessions cost the engine
//	cd bench && go run ./roundtrip sessions 8        sessions at once, against so many bare pipes
//	cd bench && go run ./roundtrip kill 60           the message after a kill, in so many rounds
//	cd bench && go run ./roundtrip fresh 30          a fresh worker for each message, in so many rounds
//	cd bench && go run ./roundtrip profile DIR       CPU profiles of both sides, Coppice with a Go worker
//
// Everybody echoes: the body that goes in has to come out. Linux alone; it builds the far ends with the go command.
// What the host lacks (python3, node) is named and left out.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	_ "coppice.dev/coppice/tree/shimhook"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == pluginWord {
		servePlugin()
		return
	}
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "roundtrip:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	f, err := build()
	if err != nil {
		return err
	}
	defer os.RemoveAll(f.dir)
	if len(args) == 0 {
		for _, part := range [][]string{{"trips"}, {"sessions", "8"}, {"idle", "500"}, {"kill", "60"}, {"fresh", "30"}} {
			if err := f.part(part[0], part[1:]...); err != nil {
				return err
			}
		}
		return nil
	}
	return f.part(args[0], args[1:]...)
}

func (f *far) part(name string, args ...string) error {
	counted := map[string]func(int) error{"sessions": f.sessions, "idle": f.idle, "kill": f.kill, "fresh": f.fresh}[name]
	switch {
	case name == "trips":
		return f.trips(args)
	case len(args) != 1:
	case name == "profile":
		return f.profile(args[0])
	case counted != nil:
		n, err := strconv.Atoi(args[0])
		if err != nil || n < 1 {
			return fmt.Errorf("%s: a number from 1, not %q", name, args[0])
		}
		return counted(n)
	}
	return fmt.Errorf("no part %q with %d words: there are trips [SIZE...], sessions N, idle N, kill N, fresh N, profile DIR", name, len(args))
}

// far is what stands at the far ends.
type far struct {
	dir          string // for files of the run
	child, guest string // built
	python, node string // interpreters; empty if the host lacks them
}

func build() (*far, error) {
	dir, err := os.MkdirTemp("", "coppice-roundtrip")
	if err != nil {
		return nil, err
	}
	f := &far{dir: dir, child: filepath.Join(dir, "child"), guest: filepath.Join(dir, "guest.wasm")}
	err = goBuild([]string{"CGO_ENABLED=0"}, "-o", f.child, "coppice.dev/coppice/bench/roundtrip/child")
	if err == nil {
		err = goBuild([]string{"GOOS=wasip1", "GOARCH=wasm"}, "-buildmode=c-shared", "-o", f.guest, "coppice.dev/coppice/bench/roundtrip/guest")
	}
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	f.python = told("python3", "-c", "import sys; print(sys.executable)")
	f.node = told("node", "-p", "process.execPath")
	return f, nil
}

func goBuild(env []string, args ...string) error {
	cmd := exec.Command("go", append([]string{"build"}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// told asks an interpreter for its own path: what is on the PATH may be a version manager's script.
func told(name string, args ...string) string {
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		fmt.Println("missing:", name)
		return ""
	}
	return strings.TrimSpace(string(out))
}
