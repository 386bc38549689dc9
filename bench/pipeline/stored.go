package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"coppice.dev/coppice/bench/pipeline/echo"
	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
	"coppice.dev/coppice/internal/store/sqlite"
)

// few is what the small store has.
const few = 1000

// stored is what an engine takes, and how long a search does, by how many messages are stored.
type stored struct {
	Few      int     `json:"few"`
	Many     int     `json:"many"`
	FewMem   memory  `json:"few_memory"`
	ManyMem  memory  `json:"many_memory"`
	Search   times   `json:"search"`       // newest 50 of one inbound, today, ERROR
	Found    int     `json:"search_found"` // of them
	Nothing  times   `json:"search_none"`  // the same where today has none
	PerSec   float64 `json:"filled_per_second"`
	DiskSize int64   `json:"disk_bytes"`
}

// memory is that of an engine which has just moved messages.
type memory struct {
	RSS  int64 `json:"rss_bytes"`
	Heap int64 `json:"heap_bytes"` // in use, after a collection
}

// keep measures an engine on a store with few messages and on one with many, and then searches that one.
func (f *far) keep(r *report) error {
	s := &stored{Few: few, Many: f.stored}
	var err error
	if s.FewMem, _, err = f.engineOn(few, s); err != nil {
		return err
	}
	var path string
	if s.ManyMem, path, err = f.engineOn(f.stored, s); err != nil {
		return err
	}
	r.Stored = s
	if info, err := os.Stat(path); err == nil {
		s.DiskSize = info.Size()
	}
	return s.search(path)
}

// engineOn fills a store, and says what an engine in a process of its own takes there, and where the store is.
func (f *far) engineOn(n int, s *stored) (_ memory, path string, err error) {
	b, err := newWatchingBed(8)
	if err != nil {
		return memory{}, "", err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	dir, err := f.folder("stored")
	if err != nil {
		return memory{}, "", err
	}
	if err := f.configure(b, dir, func(int) string { return fmt.Sprintf("command = [%q, \"worker\"]", f.child) }); err != nil {
		return memory{}, "", err
	}
	cfg, err := config.Load(dir, os.LookupEnv)
	if err != nil {
		return memory{}, "", err
	}
	began := time.Now()
	if err := fill(cfg.Store.Path, n); err != nil {
		return memory{}, "", fmt.Errorf("fill: %w", err)
	}
	s.PerSec = float64(n) / time.Since(began).Seconds()
	m, err := f.memoryOf(b, dir)
	return m, cfg.Store.Path, err
}

// fillers is how many messages are on their way into a store at once.
const fillers = 512

// fill has n messages go through a store, over the last ten days, the newest now: one in ten is delivered, one in fifty is an
// error, and the others, which take the store less to do, end UNROUTED. Memory and search do not depend on how they ended.
func fill(path string, n int) (err error) {
	ctx := context.Background()
	db, err := sqlite.Open(ctx, path, sqlite.Options{Readers: 8})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var next atomic.Int64
	errs := make([]error, fillers)
	var work sync.WaitGroup
	began := time.Now()
	for i := range fillers {
		own := fmt.Sprintf("fill%d", i)
		work.Go(func() {
			for k := int(next.Add(1)) - 1; k < n && errs[i] == nil; k = int(next.Add(1)) - 1 {
				errs[i] = settled(ctx, db, own, k, began.Add(-tenDays*time.Duration(n-k)/time.Duration(n)))
			}
		})
	}
	work.Wait()
	return errors.Join(errs...)
}

const tenDays = 240 * time.Hour

// settled has message k go through a store, by a handler and an outbound of its filler's own.
func settled(ctx context.Context, db store.Store, own string, k int, received time.Time) error {
	control := fmt.Sprintf("F%d", k)
	id, err := db.Receive(ctx, message.Incoming{Inbound: echo.Inbound(k % 8), Type: "ADT^A01", ControlID: control, Received: received,
		Body: hl7Body(control, messageSize)})
	if err != nil {
		return err
	}
	if k/8%50 == 0 && k%8 != 7 { // lane 7 has none, to be searched for in vain
		return db.FailRoute(ctx, id, message.Outcome{State: message.RunError, Reason: "it raised", Attempts: 1,
			Fault: &message.Fault{Kind: "handler", Type: "ValueError", Text: "it raised"}})
	}
	if k/8%10 != 1 {
		return db.Route(ctx, id, nil, message.Outcome{State: message.RunSent})
	}
	if err := db.Route(ctx, id, []message.Plan{{Handler: own, To: []string{own}}}, message.Outcome{State: message.RunSent}); err != nil {
		return err
	}
	next, err := db.NextRuns(ctx, own, 1, 0)
	if err != nil {
		return err
	}
	sends := []message.Send{{To: own, Body: next[0].On.Body}}
	if err := db.EndRun(ctx, next[0].Run.ID, message.Outcome{State: message.RunSent, Attempts: 1, Sends: sends}); err != nil {
		return err
	}
	heads, err := db.Heads(ctx, own, 1)
	if err != nil {
		return err
	}
	return db.Delivered(ctx, heads[0].ID, message.Receipt{Text: "AA"})
}

// memoryOf runs an engine on the folder, moves the same messages whatever is stored there, and looks.
func (f *far) memoryOf(b *bed, dir string) (m memory, err error) {
	cmd := exec.Command(f.child, "engine", dir)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return m, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return m, err
	}
	if err := cmd.Start(); err != nil {
		return m, err
	}
	defer func() {
		err = errors.Join(err, in.Close())
		late := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
		err = errors.Join(err, cmd.Wait())
		late.Stop()
	}()
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		return m, errors.New("the engine did not start")
	}
	senders, err := dial(strings.Fields(lines.Text()))
	if err != nil {
		return m, err
	}
	defer hangUp(senders)
	if _, err := b.run(senders, 4*f.each, messageSize, false); err != nil {
		return m, err
	}
	if _, err := io.WriteString(in, "heap\n"); err != nil {
		return m, err
	}
	if !lines.Scan() {
		return m, errors.New("the engine has ended")
	}
	if m.Heap, err = strconv.ParseInt(lines.Text(), 10, 64); err != nil {
		return m, err
	}
	m.RSS, err = rss(cmd.Process.Pid)
	return m, err
}

// rss is what a process has in memory.
func rss(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, tail, _ := strings.Cut(string(text), "VmRSS:")
	var kib int64
	_, err = fmt.Sscan(tail, &kib)
	return kib << 10, err
}

// search asks the large store for the newest 50 errors of today, of an inbound that has some and of one that has none.
func (s *stored) search(path string) (err error) {
	ctx := context.Background()
	db, err := sqlite.Open(ctx, path, sqlite.Options{MustExist: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	now := time.Now()
	today := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, now.Location())
	ask := func(inbound string) (int, []time.Duration, error) {
		var took []time.Duration
		found := 0
		for range 200 {
			began := time.Now()
			list, err := db.Messages(ctx, store.Query{Inbound: inbound, Disposition: message.Error, Since: today, Limit: 50})
			if err != nil {
				return 0, nil, err
			}
			took, found = append(took, time.Since(began)), len(list)
		}
		return found, took, nil
	}
	found, took, err := ask(echo.Inbound(3))
	if err != nil {
		return err
	}
	s.Found, s.Search = found, timesOf(took)
	found, took, err = ask(echo.Inbound(7))
	if err == nil && found > 0 {
		err = fmt.Errorf("%d errors are found where there are none", found)
	}
	if err != nil {
		return err
	}
	s.Nothing = timesOf(took)
	return nil
}
