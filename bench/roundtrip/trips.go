package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"coppice.dev/coppice/bench/contest"
)

// echo hands a body to the far end and returns what came back, which stays as it is until the next call.
type echo func(body []byte) ([]byte, error)

// peer is one way to hand it over.
type peer struct {
	name string
	own  string // the bare loop in the far end's own language
	once bool   // a process for each message: slow, so fewer runs
	goal map[string]float64
	open func() (echo, func() error, error)
}

// peers are those that this host can have; the first is the floor.
func (f *far) peers() []peer {
	const inGo, inPython, inNode = "pipe, Go", "pipe, python3", "pipe, node"
	all := []peer{{name: inGo, open: f.bareGo}}
	if f.python != "" {
		all = append(all, peer{name: inPython, open: f.barePython})
	}
	if f.node != "" {
		all = append(all, peer{name: inNode, open: f.bareNode})
	}
	all = append(all, peer{name: "Coppice, Go worker", own: inGo, open: f.coppiceGo,
		goal: map[string]float64{"1KiB": 1.5, "64KiB": 1.2, "1MiB": 1.0}})
	if f.python != "" {
		all = append(all, peer{name: "Coppice, Python worker", own: inPython, open: f.coppicePython})
	}
	if f.node != "" {
		all = append(all, peer{name: "Coppice, Node worker", own: inNode, open: f.coppiceNode})
	}
	all = append(all,
		peer{name: "go-plugin, net/rpc", open: f.pluginRPC},
		peer{name: "go-plugin, gRPC", open: f.pluginGRPC},
		peer{name: "Benthos subprocess, Go", open: f.benthos},
		peer{name: "wazero, in process", open: f.wasm},
		peer{name: "a Go process each", once: true, open: f.process(f.child, "once")})
	if f.python != "" {
		all = append(all, peer{name: "a python3 process each", once: true, open: f.process(f.python, "-I", "-c",
			"import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())")})
	}
	return all
}

// size is how large the bodies of a contest are, and how long it is.
type size struct {
	name         string
	bytes        int
	rounds, turn int
}

var sizes = []size{{"64B", 64, 60, 20}, {"1KiB", 1 << 10, 60, 20}, {"64KiB", 64 << 10, 50, 10}, {"1MiB", 1 << 20, 50, 5}}

// body makes a body that nobody can guess or compress.
func body(bytes int) []byte {
	b := make([]byte, bytes)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// timed times one echo. Whether it was one is looked at afterwards.
func timed(e echo, body []byte) (time.Duration, error) {
	began := time.Now()
	got, err := e(body)
	took := time.Since(began)
	if err == nil && !bytes.Equal(got, body) {
		err = errors.New("another body came back")
	}
	return took, err
}

// trips measures round trips of the sizes that are named, or of all.
func (f *far) trips(names []string) (err error) {
	wanted := slices.DeleteFunc(slices.Clone(sizes), func(s size) bool { return len(names) > 0 && !slices.Contains(names, s.name) })
	if len(wanted) < max(len(names), 1) {
		return fmt.Errorf("sizes %q: there are 64B, 1KiB, 64KiB, 1MiB", names)
	}
	all := f.peers()
	echoes := make([]echo, len(all))
	for i, p := range all {
		e, end, err := p.open()
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		defer func() {
			if failed := end(); failed != nil {
				fmt.Fprintf(os.Stderr, "%s: end: %v\n", p.name, failed)
			}
		}()
		echoes[i] = e
	}
	medians := make([]map[string]time.Duration, len(wanted))
	for i, s := range wanted {
		if medians[i], err = contest.Medians(s.rounds, entrants(all, echoes, s)); err != nil {
			return err
		}
	}
	tell(all, wanted, medians)
	return nil
}

func entrants(all []peer, echoes []echo, s size) []contest.Entrant {
	b := body(s.bytes)
	var out []contest.Entrant
	for i, p := range all {
		turn := s.turn
		if p.once {
			turn = 1
		}
		out = append(out, contest.Entrant{Name: p.name, Turn: turn, Run: func() (time.Duration, error) { return timed(echoes[i], b) }})
	}
	return out
}

// tell prints the table of a run.
func tell(all []peer, wanted []size, medians []map[string]time.Duration) {
	fmt.Printf("\n## Round trips\n\nMedians; the ratio to the floor, %q; in brackets that to the bare loop in the worker's own language.\n\n| |", all[0].name)
	for _, s := range wanted {
		fmt.Printf(" %s |", s.name)
	}
	fmt.Print("\n|---|" + repeat("---|", len(wanted)) + "\n")
	for _, p := range all {
		fmt.Printf("| %s |", p.name)
		for i, s := range wanted {
			m := medians[i]
			fmt.Printf(" %s %.2fx", micros(m[p.name]), ratio(m[p.name], m[all[0].name]))
			if p.own != "" && p.own != all[0].name {
				fmt.Printf(" (%.2fx)", ratio(m[p.name], m[p.own]))
			}
			if goal, ok := p.goal[s.name]; ok {
				fmt.Printf(", goal %.1fx", goal)
			}
			fmt.Print(" |")
		}
		fmt.Println()
	}
}

func repeat(s string, n int) string { return string(bytes.Repeat([]byte(s), n)) }

func ratio(a, b time.Duration) float64 { return float64(a) / float64(b) }

func micros(d time.Duration) string {
	us := float64(d.Nanoseconds()) / 1e3
	if us < 100 {
		return fmt.Sprintf("%.1f µs", us)
	}
	return fmt.Sprintf("%.0f µs", us)
}
