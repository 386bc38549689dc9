package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"sync"
	"time"

	"coppice.dev/coppice/bench/contest"
	"coppice.dev/coppice/sandbox"
	"coppice.dev/coppice/wire"
)

// sessions measures so many sessions at once, each with a message under way all the time, against so many bare pipes.
func (f *far) sessions(n int) error {
	crowds := map[string]func() (echo, func() error, error){"pipe, Go": f.bareGo, "Coppice, Go worker": f.coppiceGo}
	echoes := map[string][]echo{}
	for name, open := range crowds {
		for range n {
			e, end, err := open()
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			defer end()
			echoes[name] = append(echoes[name], e)
		}
	}
	fmt.Printf("\n## %d at once over %d cores\n\nMessages a second, from the median of the rounds.\n\n", n, runtime.GOMAXPROCS(0))
	fmt.Print("| | pipe, Go | Coppice, Go worker | time, to the pipes' |\n|---|---|---|---|\n")
	for _, s := range sizes {
		b := body(s.bytes)
		var all []contest.Entrant
		for name := range crowds {
			all = append(all, contest.Entrant{Name: name, Run: func() (time.Duration, error) { return burst(echoes[name], b, 10*s.turn) }})
		}
		m, err := contest.Medians(30, all)
		if err != nil {
			return err
		}
		rate := func(name string) float64 { return float64(n*10*s.turn) / m[name].Seconds() }
		fmt.Printf("| %s | %.0f | %.0f | %.2fx |\n", s.name, rate("pipe, Go"), rate("Coppice, Go worker"),
			ratio(m["Coppice, Go worker"], m["pipe, Go"]))
	}
	return nil
}

// burst has each echo make so many trips, all at once.
func burst(echoes []echo, body []byte, each int) (time.Duration, error) {
	failed := make(chan error, len(echoes))
	var all sync.WaitGroup
	began := time.Now()
	for _, e := range echoes {
		all.Go(func() {
			for range each {
				if _, err := timed(e, body); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	select {
	case err := <-failed:
		return 0, err
	default:
		return took, nil
	}
}

// idle measures what sessions cost the engine that have served one message each and wait for the next.
func (f *far) idle(n int) error {
	before := measure()
	all := make([]*sandbox.Pool, n)
	defer func() {
		eachOf(n, func(i int) error {
			if all[i] == nil {
				return nil
			}
			return closing(all[i])
		})
	}()
	err := eachOf(n, func(i int) (err error) {
		all[i], err = session(sandbox.Spec{Name: "idle", Command: []string{f.child, "worker"}, StartTimeout: time.Minute})
		if err == nil {
			_, err = timed(dispatch(all[i]), []byte("x"))
		}
		return err
	})
	if err != nil {
		return err
	}
	after := measure()
	per := func(a, b int) float64 { return float64(a-b) / float64(n) }
	fmt.Printf("\n## %d idle sessions: what each costs the engine\n\nGoal: resident under 64 KiB.\n\n", n)
	fmt.Print("| resident | heap | goroutines' stacks | goroutines | descriptors | threads, all |\n|---|---|---|---|---|---|\n")
	fmt.Printf("| %.1f KiB | %.1f KiB | %.1f KiB | %.1f | %.1f | %d |\n", per(after.resident, before.resident)/1024,
		per(after.heap, before.heap)/1024, per(after.stacks, before.stacks)/1024, per(after.goroutines, before.goroutines),
		per(after.descriptors, before.descriptors), after.threads)
	return nil
}

// eachOf does something for each of n, eight at a time, and returns the first error.
func eachOf(n int, do func(i int) error) error {
	next, failed := make(chan int), make(chan error, n)
	var all sync.WaitGroup
	for range min(n, 8) {
		all.Go(func() {
			for i := range next {
				if err := do(i); err != nil {
					failed <- err
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	all.Wait()
	close(failed)
	return <-failed
}

// cost is what this process uses.
type cost struct{ resident, heap, stacks, goroutines, descriptors, threads int }

func measure() cost {
	for range 2 { // what has a finalizer goes with the second
		runtime.GC()
	}
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	c := cost{heap: int(m.HeapAlloc), stacks: int(m.StackInuse), goroutines: runtime.NumGoroutine()}
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		var kb int
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kb); err == nil {
			c.resident = kb << 10
		}
		fmt.Sscanf(line, "Threads: %d", &c.threads)
	}
	list, _ := os.ReadDir("/proc/self/fd")
	c.descriptors = len(list)
	return c
}

// profile writes CPU profiles of both sides: the engine's, and the worker's own.
func (f *far) profile(dir string) error {
	for _, s := range []size{sizes[1], sizes[3]} {
		path := func(side string) string { return fmt.Sprintf("%s/%s-%s.pprof", dir, side, s.name) }
		spec := sandbox.Spec{Name: "profile", Command: []string{f.child, "worker"}, Env: []string{"COPPICE_BENCH_PROFILE=" + path("worker")}}
		if err := profiled(spec, path("engine"), body(s.bytes)); err != nil {
			return err
		}
	}
	return nil
}

func profiled(spec sandbox.Spec, path string, body []byte) error {
	s, err := session(spec)
	if err != nil {
		return err
	}
	defer closing(s)
	e := dispatch(s)
	to, err := os.Create(path)
	if err != nil {
		return err
	}
	defer to.Close()
	if err := pprof.StartCPUProfile(to); err != nil {
		return err
	}
	n, began := 0, time.Now()
	for ; time.Since(began) < 5*time.Second; n++ {
		if _, err := timed(e, body); err != nil {
			return err
		}
	}
	pprof.StopCPUProfile()
	fmt.Printf("%s: %d trips of %d bytes, %s each\n", path, n, len(body), micros(time.Since(began)/time.Duration(n)))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err = s.Dispatch(ctx, sandbox.Request{Phase: wire.PhaseHandle, Name: "end profile", Message: 1})
	return err
}
