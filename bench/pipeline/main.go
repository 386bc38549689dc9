// Command pipeline measures whole pipelines, from a sender that waits for its acknowledgement to a receiver, over MLLP on this
// host:
//
//	cd bench && CGO_ENABLED=0 go run ./pipeline                    all of it, about twenty minutes
//	cd bench && CGO_ENABLED=0 go run ./pipeline -quick             the same in short, to see that it works
//	cd bench && CGO_ENABLED=0 go run ./pipeline -dir /disk rate    one part on a disk: rate, stored, large
//	cd bench && CGO_ENABLED=0 go run ./pipeline -profile DIR rate  CPU profiles of this process, one for each system
//
// The floor is a bare queue in SQLite (floor.go) that makes the same commits. Each has the same senders, receivers, transports,
// messages and disk in one run, turn by turn. Linux alone; it builds the far ends with the go command. Without python3 that
// worker is named and left out.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"

	_ "coppice.dev/coppice/tree/shimhook"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "pipeline:", err)
		os.Exit(1)
	}
}

// far is what a run has: its folder, the programs at the far ends, and how much is measured.
type far struct {
	dir         string
	child, bare string // built
	python      bool
	profiles    string // a folder; empty for none

	rounds        int
	oneLane, each int // messages of a turn: with one lane, and in each of eight
	stored        int // messages
}

// report is all that was measured; its parts are nil where they were not run.
type report struct {
	Host   string      `json:"host"`
	Rates  []rates     `json:"rates,omitempty"`
	Stored *stored     `json:"stored,omitempty"`
	Large  []besideBig `json:"large,omitempty"`
	Goals  []goal      `json:"goals"`
}

func run() (err error) {
	disk := flag.String("dir", "", "folder on the `disk` to measure; default: a temporary one")
	quick := flag.Bool("quick", false, "short, to see that it works: its figures mean little")
	count := flag.Int("stored", 0, "`messages` that the large store has; default: 1,000,000, with -quick 20,000")
	asJSON := flag.Bool("json", false, "print JSON")
	profiles := flag.String("profile", "", "write CPU profiles of rate into a `folder`")
	flag.Parse()
	f := &far{profiles: *profiles, rounds: 12, oneLane: 1000, each: 250, stored: 1_000_000}
	if *quick {
		f.rounds, f.oneLane, f.each, f.stored = 3, 200, 50, 20_000
	}
	if *count > 0 {
		f.stored = *count
	}
	if f.dir, err = os.MkdirTemp(*disk, "coppice-pipeline"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(f.dir)) }()
	if err := f.build(); err != nil {
		return err
	}
	r := &report{Host: fmt.Sprintf("%s/%s, %d cores, %s, store in %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), filepath.Dir(f.dir))}
	if err := f.parts(r, flag.Args()); err != nil {
		return err
	}
	r.Goals = r.judge()
	if *asJSON {
		out := json.NewEncoder(os.Stdout)
		out.SetIndent("", "  ")
		return out.Encode(r)
	}
	r.tell()
	return nil
}

// parts runs those that are named, or all.
func (f *far) parts(r *report, names []string) error {
	all := map[string]func(*report) error{"rate": f.rate, "stored": f.keep, "large": f.besideLarge}
	order := []string{"rate", "large", "stored"}
	for _, name := range names {
		if all[name] == nil {
			return fmt.Errorf("no part %q: there are rate, large, stored", name)
		}
	}
	for _, name := range order {
		if len(names) > 0 && !slices.Contains(names, name) {
			continue
		}
		if err := all[name](r); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (f *far) build() error {
	f.child, f.bare = filepath.Join(f.dir, "child"), filepath.Join(f.dir, "bare")
	for out, pkg := range map[string]string{f.child: "pipeline/child", f.bare: "roundtrip/child"} {
		cmd := exec.Command("go", "build", "-o", out, "coppice.dev/coppice/bench/"+pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go build: %w\n%s", err, text)
		}
	}
	_, err := exec.LookPath("python3")
	if f.python = err == nil; !f.python {
		fmt.Fprintln(os.Stderr, "missing: python3")
	}
	return nil
}

// folder makes a folder of the run for one system.
func (f *far) folder(name string) (string, error) { return os.MkdirTemp(f.dir, name) }
