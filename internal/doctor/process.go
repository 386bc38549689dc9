package doctor

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Process is one process as the system showed it. Pid and Start together are its identity.
type Process struct {
	Pid   int    `json:"pid"`
	Start uint64 `json:"start"` // in clock ticks since boot
	Name  string `json:"name"`  // chosen by the process itself: print it quoted

	parent int
	dead   bool
}

// procIsOurs says whether there is a /proc whose pids are those of this process's own system calls. In a PID namespace
// without a /proc of its own they are another's, and must not be used.
func procIsOurs() bool {
	self, err := os.Readlink("/proc/self")
	return runtime.GOOS == "linux" && err == nil && self == strconv.Itoa(os.Getpid())
}

// processes are all that can be seen; none where /proc does not tell.
func processes() (out []Process) {
	if !procIsOurs() {
		return nil
	}
	dirs, _ := filepath.Glob("/proc/[0-9]*") // an error only for a bad pattern
	for _, dir := range dirs {
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
			if p, ok := readProcess(pid); ok {
				out = append(out, p)
			}
		}
	}
	return out
}

// readProcess reads proc_pid_stat(5): pid (name) state ppid ... starttime, the 22nd. The name may hold anything.
func readProcess(pid int) (Process, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if err != nil || open < 0 || end < open {
		return Process{}, false
	}
	fields := strings.Fields(string(b[end+1:]))
	if len(fields) < 20 {
		return Process{}, false
	}
	p := Process{Pid: pid, Name: string(b[open+1 : end]), dead: fields[0] == "Z" || fields[0] == "X"}
	p.parent, _ = strconv.Atoi(fields[1])
	p.Start, err = strconv.ParseUint(fields[19], 10, 64)
	return p, err == nil
}

// marked are the living processes that have the token among their arguments.
func marked(token string) (out []Process) {
	for _, p := range processes() {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(p.Pid) + "/cmdline") // of the dead it is empty
		if err == nil && bytes.Contains(b, []byte("\x00"+token+"\x00")) {
			out = append(out, p)
		}
	}
	return out
}

// below are the living descendants of a process.
func below(root int) (out []Process) {
	children := map[int][]Process{}
	for _, p := range processes() {
		children[p.parent] = append(children[p.parent], p)
	}
	for next := []int{root}; len(next) > 0; next = next[1:] {
		for _, p := range children[next[0]] {
			if !p.dead {
				out = append(out, p)
			}
			next = append(next, p.Pid)
		}
		delete(children, next[0]) // a torn read could show a loop
	}
	return out
}

// still are those that live yet.
func still(known []Process) []Process {
	return slices.DeleteFunc(slices.Clone(known), func(p Process) bool {
		now, ok := readProcess(p.Pid)
		return !ok || now.Start != p.Start || now.dead
	})
}

// union is every process of both.
func union(a, b []Process) []Process {
	for _, p := range b {
		if !slices.ContainsFunc(a, func(q Process) bool { return q.Pid == p.Pid && q.Start == p.Start }) {
			a = append(a, p)
		}
	}
	return a
}

// kill kills the process if it is still the same one.
func (p Process) kill() {
	if p.Pid <= 1 || p.Pid == os.Getpid() {
		return
	}
	handle, err := os.FindProcess(p.Pid) // a pidfd, which pins whoever has the pid now; only then is it compared
	if err != nil {
		return
	}
	defer handle.Release()
	if len(still([]Process{p})) == 1 {
		handle.Kill() // an error if it has ended meanwhile
	}
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
		for _, p := range processes() {
			if p.parent != 1 {
				continue
			}
			left = true
			if handle, err := os.FindProcess(p.Pid); err == nil && p.dead {
				handle.Wait() // it has ended: this returns at once
			}
		}
		if !left {
			return
		}
	}
}
