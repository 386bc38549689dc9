package sandbox

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// process is one as /proc shows it: seen from outside, whatever the code under test says.
type process struct {
	pid   int
	start string
}

func (p process) String() string {
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
	return fmt.Sprintf("%d (since %s): %q", p.pid, p.start, line)
}

// alive says whether this very process still lives; a zombie does not.
func (p process) alive() bool {
	now, state := look(p.pid)
	return now == p && state != "Z"
}

func look(pid int) (process, string) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, ""
	}
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(f) < 20 {
		return process{}, ""
	}
	return process{pid, f[19]}, f[0]
}

// mark begins every token of this run, in whatever language the victim is written that carries it among its arguments.
func mark() string { return fmt.Sprintf("t%d-", os.Getpid()) }

// carries says whether these are the arguments of a victim with the token; of any victim if it is empty.
func carries(args []string, token string) bool {
	if token != "" {
		return slices.Contains(args, token)
	}
	return len(args) > 2 && args[0] == program() && args[1] == "victim" ||
		slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, mark()) })
}

// victims are the living victims with the token; all of them if it is empty.
func victims(token string) []process {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var out []process
	for _, dir := range dirs {
		line, _ := os.ReadFile(dir + "/cmdline")
		if !carries(strings.Split(string(line), "\x00"), token) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(dir))
		if p, state := look(pid); p.pid != 0 && state != "Z" {
			out = append(out, p)
		}
	}
	return out
}

// outside notes every process of a test's workers, for as long as the test lasts.
type outside struct {
	token string
	mu    sync.Mutex
	seen  map[process]bool
}

func watchOutside(t *testing.T, token string) *outside {
	o := &outside{token: token, seen: map[process]bool{}}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(40 * time.Millisecond)
		defer tick.Stop()
		for {
			o.note()
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-stopped })
	return o
}

func (o *outside) note() {
	list := victims(o.token)
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range list {
		o.seen[p] = true
	}
}

// all are the processes seen until now.
func (o *outside) all() []process {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Keys(o.seen))
}

// living are those of the given processes that still live.
func living(list []process) []process {
	return slices.DeleteFunc(slices.Clone(list), func(p process) bool { return !p.alive() })
}

// eventually waits for a condition, and fails the test if it does not come.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for limit := time.Now().Add(10 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}
