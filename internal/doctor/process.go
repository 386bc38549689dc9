package doctor

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"time"

	"coppice.dev/coppice/internal/shim"
)

// Process is one process as the system showed it. Pid and Start together are its identity.
type Process struct {
	Pid   int    `json:"pid"`
	Start uint64 `json:"start"` // in clock ticks since boot
	Name  string `json:"name"`  // chosen by the process itself: print it quoted
}

// told are the processes for the report.
func told(list []shim.Process) (out []Process) {
	for _, p := range list {
		out = append(out, Process{Pid: p.Pid, Start: p.Start, Name: p.Name})
	}
	return out
}

// marked are the living processes that have the token among their arguments.
func marked(token string) (out []shim.Process) {
	for _, p := range shim.All() {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(p.Pid) + "/cmdline") // of the dead it is empty
		if err == nil && bytes.Contains(b, []byte("\x00"+token+"\x00")) {
			out = append(out, p)
		}
	}
	return out
}

// union is every process of both.
func union(a, b []shim.Process) []shim.Process {
	for _, p := range b {
		if !slices.ContainsFunc(a, func(q shim.Process) bool { return q.Pid == p.Pid && q.Start == p.Start }) {
			a = append(a, p)
		}
	}
	return a
}

// still are those that live yet.
func still(known []shim.Process) []shim.Process {
	return slices.DeleteFunc(slices.Clone(known), func(p shim.Process) bool { return !p.Alive() })
}

// orphanPatience is how long the dead get from the end of the witness, which they let go of first, to be dead.
const orphanPatience = 200 * time.Millisecond

// collectOrphans collects the dead that came to this process because it is the first of its namespace, as the program of
// a container may be. Nobody else will.
func collectOrphans() {
	if os.Getpid() != 1 {
		return
	}
	for until := time.Now().Add(orphanPatience); time.Now().Before(until); time.Sleep(time.Millisecond) {
		left := false
		for _, p := range shim.All() {
			if p.Parent != 1 {
				continue
			}
			left = true
			if handle, err := os.FindProcess(p.Pid); err == nil && p.Dead() {
				handle.Wait() // it has ended: this returns at once
			}
		}
		if !left {
			return
		}
	}
}
