package engine

import (
	"cmp"
	"context"
	"encoding/csv"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"coppice.dev/coppice/internal/connect/mllp"
	"coppice.dev/coppice/internal/hl7"
	"coppice.dev/coppice/internal/message"
)

// TestSoak has one engine move many messages in the world of the crashes, where a handler makes its workers end, loop and leave
// processes behind all along, and looks at the engine's process from outside: what it has open, runs, keeps in memory and in its
// log on disk at the end must be what it was at the beginning. Then it stops, leaves nothing running, and the books are right.
// COPPICE_SOAK says how many messages, COPPICE_SOAK_CSV and COPPICE_SOAK_PICTURE where the samples and a picture of them go.
//
// Red with a file that is opened, a process that is started or 1 MiB that is kept at each cut, in the Cut of runChild.
func TestSoak(t *testing.T) {
	w := newWorld(t, "COPPICE_SOAK", soakMessages)
	s := &soak{world: w, total: w.rounds, moved: sync.NewCond(&sync.Mutex{})}
	w.rounds = 0 // nothing is killed but workers: no repeats are allowed
	w.place(t, t.TempDir())
	s.run(t)
	s.keep(t)
	s.judge(t)
	w.settle(t)
}

// soak is one engine under a load that it keeps up with.
type soak struct {
	*world
	total   int
	child   *childEngine
	samples []sample

	moved *sync.Cond // more is done, or the end has come
	given int        // messages to senders; with moved's lock, as the two below
	done  int
	ended bool
}

// sample is the engine at one moment.
type sample struct {
	at          time.Duration
	done, under int // messages
	cuts        int
	descriptors int
	threads     int
	processes   int // all below the engine
	rss, heap   int64
	wal         int64
}

// window is how many messages may be under way: the load is steady, and as much as there is.
const window = 300

func (s *soak) run(t *testing.T) {
	s.child = startChild(t, s.dir)
	began := time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	var senders sync.WaitGroup
	end := func() {
		s.moved.L.Lock()
		s.ended = true
		s.moved.L.Unlock()
		s.moved.Broadcast()
		cancel()
		senders.Wait()
	}
	defer end() // also where watch ends the test
	counts := map[string]*int{}
	share := s.total / len(s.child.addrs)
	for name, addr := range s.child.addrs {
		n := new(int)
		counts[name] = n
		senders.Go(func() { s.feed(ctx, t, addr, n, share) })
	}
	s.watch(t, began, share*len(s.child.addrs))
	end()
	for name, n := range counts {
		s.sent[name] = *n
	}
	s.stop(t)
}

// feed sends so many messages to one inbound, each once there is room for it.
func (s *soak) feed(ctx context.Context, t *testing.T, addr string, n *int, share int) {
	client, err := mllp.Dial(ctx, addr)
	if err != nil {
		t.Error(err)
		return
	}
	defer client.Close()
	for *n < share && s.room() {
		ack, err := client.Exchange(ctx, numberedMessage(*n))
		if ctx.Err() != nil {
			return
		}
		if err != nil || ack.Code != hl7.AA {
			t.Errorf("message %d is answered with %+v, %v", *n, ack, err)
			return
		}
		*n++
	}
}

// room waits until one more may be under way; false at the end.
func (s *soak) room() bool {
	s.moved.L.Lock()
	defer s.moved.L.Unlock()
	for !s.ended && s.given-s.done >= window {
		s.moved.Wait()
	}
	s.given++
	return !s.ended
}

// watch takes samples until all is done, for as long as the engine gets on.
func (s *soak) watch(t *testing.T, began time.Time, total int) {
	every := 100 * time.Millisecond
	if s.total > 20_000 {
		every = time.Second
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for limit := time.Now().Add(patience); ; <-tick.C {
		now := s.look(t, began)
		s.samples = append(s.samples, now)
		s.moved.L.Lock()
		if now.done > s.done {
			limit = time.Now().Add(patience)
		}
		s.done = now.done
		s.moved.L.Unlock()
		s.moved.Broadcast()
		switch {
		case now.done >= total:
			return
		case t.Failed() || time.Now().After(limit):
			t.Errorf("the engine does not get on: %+v", now)
			return
		}
	}
}

// look takes one sample: from outside what can be seen there, and the rest from the engine.
func (s *soak) look(t *testing.T, began time.Time) sample {
	t.Helper()
	if _, err := s.child.in.Write([]byte("figures\n")); err != nil {
		t.Fatalf("the engine has ended: %v", err)
	}
	line, err := s.child.out.ReadString('\n')
	if err != nil {
		t.Fatalf("the engine has ended: %v", err)
	}
	now := sample{at: time.Since(began)}
	if _, err := fmt.Sscan(line, &now.heap, &now.done, &now.under, &now.cuts); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	pid := s.child.cmd.Process.Pid
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	now.descriptors = len(open)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	now.threads = int(statusField(status, "Threads:"))
	now.rss = statusField(status, "VmRSS:") << 10
	now.processes = len(descendants(pid))
	if info, err := os.Stat(filepath.Join(s.dir, "var", "coppice.db-wal")); err == nil {
		now.wal = info.Size()
	}
	return now
}

// sayFigures is the engine's part of a sample: bytes of its heap in use, messages that are done and under way, cuts.
func sayFigures(e *Engine, cuts int64) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	counts, err := e.Store().Counts(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	under := counts[message.Received] + counts[message.Routed]
	var all int64
	for n := range maps.Values(counts) {
		all += n
	}
	fmt.Println(m.HeapInuse, all-under, under, cuts)
}

func statusField(status []byte, name string) (n int64) {
	_, tail, _ := strings.Cut(string(status), name)
	fmt.Sscan(tail, &n)
	return n
}

// descendants are the processes below one, as /proc has them while it is read.
func descendants(root int) []int {
	below := map[int][]int{}
	all, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		_, tail, _ := strings.Cut(string(text), ") ")
		var state string
		var parent int
		fmt.Sscan(tail, &state, &parent)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		below[parent] = append(below[parent], pid)
	}
	out := slices.Clone(below[root])
	for i := 0; i < len(out); i++ {
		out = append(out, below[out[i]]...)
	}
	return out
}

// stop ends the engine as an operator would, and looks for what it leaves.
func (s *soak) stop(t *testing.T) {
	t.Helper()
	left := descendants(s.child.cmd.Process.Pid)
	s.child.in.Close()
	late := time.AfterFunc(patience, func() { s.child.cmd.Process.Kill() })
	defer late.Stop()
	s.child.once.Do(func() {
		if err := s.child.cmd.Wait(); err != nil {
			t.Errorf("the engine ended with %v", err)
		}
	})
	var alive []string
	for _, pid := range left {
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
			name, _, _ := strings.Cut(string(text), ") ")
			alive = append(alive, name+")")
		}
	}
	if len(alive) > 0 {
		t.Errorf("the engine has ended and leaves %q", alive)
	}
}

// figure is what must be flat: its last fifth may be above its second one by a factor, and so much more. In a short run the caches
// of SQLite still grow, up to 24 MiB: 16 of the writer, 2 of each reader.
type figure struct {
	name   string
	unit   string
	of     func(sample) float64
	factor float64
	more   float64
}

const residentMemory = "resident memory"

func figures() []figure {
	const mib = 1 << 20
	return []figure{
		{"open descriptors", "", func(s sample) float64 { return float64(s.descriptors) }, 1, 24},
		{"threads", "", func(s sample) float64 { return float64(s.threads) }, 1.5, 8},
		{"processes below the engine", "", func(s sample) float64 { return float64(s.processes) }, 1, 12},
		{residentMemory, "MiB", func(s sample) float64 { return float64(s.rss) / mib }, 1.25, 24},
		{"heap in use", "MiB", func(s sample) float64 { return float64(s.heap) / mib }, 1.5, 16},
		{"log of the store (WAL)", "MiB", func(s sample) float64 { return float64(s.wal) / mib }, 1.5, 8},
	}
}

// judge compares the second fifth of the samples with the last one.
func (s *soak) judge(t *testing.T) {
	t.Helper()
	last := s.samples[len(s.samples)-1]
	t.Logf("%d messages, %d cuts, %d samples in %v", last.done, last.cuts, len(s.samples), last.at.Round(time.Second))
	if len(s.samples) < 25 {
		t.Errorf("%d samples say nothing", len(s.samples))
		return
	}
	if last.cuts < last.done/50 {
		t.Errorf("%d workers were cut in %d messages: this is no soak", last.cuts, last.done)
	}
	for _, f := range figures() {
		early, late := f.fifth(s.samples, 1), f.fifth(s.samples, 4)
		t.Logf("%-28s %8.1f then %8.1f %s", f.name, early, late, f.unit)
		if late > early*f.factor+f.more && (soakMemory || f.name != residentMemory) {
			t.Errorf("%s grew from %.1f to %.1f %s", f.name, early, late, f.unit)
		}
	}
}

// fifth is the median of the figure in one fifth of the samples, from 0.
func (f figure) fifth(all []sample, n int) float64 {
	var values []float64
	for _, s := range all[len(all)*n/5 : len(all)*(n+1)/5] {
		values = append(values, f.of(s))
	}
	slices.SortFunc(values, cmp.Compare)
	return values[len(values)/2]
}

// keep writes the samples where the environment says.
func (s *soak) keep(t *testing.T) {
	t.Helper()
	if path := os.Getenv("COPPICE_SOAK_CSV"); path != "" {
		if err := s.writeCSV(path); err != nil {
			t.Error(err)
		}
	}
	if path := os.Getenv("COPPICE_SOAK_PICTURE"); path != "" {
		if err := os.WriteFile(path, drawSoak(s.samples), 0o644); err != nil {
			t.Error(err)
		}
	}
}

func (s *soak) writeCSV(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	out := csv.NewWriter(f)
	out.Write([]string{"seconds", "done", "under_way", "cuts", "descriptors", "threads", "processes", "rss_bytes", "heap_bytes", "wal_bytes"})
	for _, n := range s.samples {
		var line []string
		for _, v := range []any{fmt.Sprintf("%.2f", n.at.Seconds()), n.done, n.under, n.cuts, n.descriptors, n.threads, n.processes, n.rss, n.heap, n.wal} {
			line = append(line, fmt.Sprint(v))
		}
		out.Write(line)
	}
	out.Flush()
	return out.Error()
}
