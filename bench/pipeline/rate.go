package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"time"

	"coppice.dev/coppice/bench/contest"
	"coppice.dev/coppice/internal/connect/mllp"
)

// The systems, as tables name them.
const (
	floorName   = "bare SQLite queue: the floor"
	offName     = "Coppice, sandbox off"
	goName      = "Coppice, Go worker"
	pythonName  = "Coppice, Python worker"
	benthosName = "Benthos subprocess, not durable"
)

// system is one way to take messages to their receivers.
type system struct {
	name string
	open func(b *bed, dir string) (*served, error)
}

func (f *far) systems() []system {
	all := []system{{floorName, openBare}, {offName, openOff}, {goName, f.openGo}}
	if f.python {
		all = append(all, system{pythonName, f.openPython})
	}
	return append(all, system{benthosName, f.openBenthos})
}

// rates are what one system did with so many lanes. Times are medians and 99th percentiles over all rounds.
type rates struct {
	System string  `json:"system"`
	Lanes  int     `json:"lanes"`
	Rate   float64 `json:"messages_per_second"` // median of the rounds; a sender sends as soon as it is acknowledged
	Ack    times   `json:"ack"`                 // meanwhile
	End    times   `json:"end"`                 // meanwhile: it waits behind those that were sent before
	Single times   `json:"end_single"`          // one message at a time in each lane
	Alone  times   `json:"ack_single"`
	// What a message costs at full speed, with its sender and receiver: CPU time of this process, and bytes for the disk.
	CPU     time.Duration `json:"cpu_ns_per_message"`
	Written int64         `json:"bytes_written_per_message"`
}

type times struct {
	P50 time.Duration `json:"p50_ns"`
	P99 time.Duration `json:"p99_ns"`
}

func timesOf(all []time.Duration) times { return times{quantile(all, 0.5), quantile(all, 0.99)} }

// entrant is a system that is open, with what was measured of it so far.
type entrant struct {
	system
	bed     *bed
	served  *served
	senders []*mllp.Client
	rates   []float64
	cpu     []time.Duration // a message's, by round
	written []float64

	acks, ends, singleAcks, singleEnds []time.Duration
}

func (f *far) rate(r *report) error {
	for _, lanes := range []int{1, 8} {
		all, err := f.contest(lanes)
		if err != nil {
			return err
		}
		r.Rates = append(r.Rates, all...)
	}
	return nil
}

// contest opens all systems, and gives each its turn in every round, in an order that chance decides.
func (f *far) contest(lanes int) (_ []rates, err error) {
	var all []*entrant
	defer func() {
		for _, e := range all {
			err = errors.Join(err, e.close())
		}
	}()
	for _, s := range f.systems() {
		e, err := f.enter(s, lanes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		all = append(all, e)
	}
	n := f.each
	if lanes == 1 {
		n = f.oneLane
	}
	for range f.rounds {
		for _, i := range rand.Perm(len(all)) {
			if err := f.profiled(all[i], func() error { return all[i].turn(n) }); err != nil {
				return nil, fmt.Errorf("%s: %w", all[i].name, err)
			}
		}
	}
	var out []rates
	for _, e := range all {
		out = append(out, rates{System: e.name, Lanes: lanes, Rate: middle(e.rates), Ack: timesOf(e.acks), End: timesOf(e.ends),
			Single: timesOf(e.singleEnds), Alone: timesOf(e.singleAcks), CPU: contest.Median(e.cpu), Written: int64(middle(e.written))})
	}
	return out, nil
}

// enter opens a system, and has each lane take its first messages, which wait for workers to start.
func (f *far) enter(s system, lanes int) (e *entrant, err error) {
	e = &entrant{system: s}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	dir, err := f.folder("system")
	if err != nil {
		return e, err
	}
	if e.bed, err = newBed(lanes); err != nil {
		return e, err
	}
	if e.served, err = s.open(e.bed, dir); err != nil {
		return e, err
	}
	if e.senders, err = dial(e.served.addrs); err != nil {
		return e, err
	}
	_, err = e.bed.run(e.senders, 10, messageSize, false)
	return e, err
}

func (e *entrant) close() error {
	hangUp(e.senders)
	var err error
	if e.served != nil {
		err = e.served.end()
	}
	if e.bed != nil {
		err = errors.Join(err, e.bed.close())
	}
	return err
}

// messageSize is that of every message but the large ones.
const messageSize = 1 << 10

// turn is one load at full speed, and a tenth of it one message at a time.
func (e *entrant) turn(n int) error {
	runtime.GC() // nobody pays for the garbage of the one before
	before, err := costSoFar()
	if err != nil {
		return err
	}
	t, err := e.bed.run(e.senders, n, messageSize, false)
	if err != nil {
		return err
	}
	now, err := costSoFar()
	if err != nil {
		return err
	}
	messages, took := n*e.bed.lanes, now.since(before)
	e.cpu, e.written = append(e.cpu, took.cpu/time.Duration(messages)), append(e.written, float64(took.written)/float64(messages))
	e.rates = append(e.rates, t.rate())
	e.acks, e.ends = append(e.acks, t.acks()...), append(e.ends, t.ends()...)
	if t, err = e.bed.run(e.senders, max(n/10, 10), messageSize, true); err != nil {
		return err
	}
	e.singleAcks, e.singleEnds = append(e.singleAcks, t.acks()...), append(e.singleEnds, t.ends()...)
	return nil
}

// profiled does something, with a CPU profile of it where profiles are wanted: the last round's stays.
func (f *far) profiled(e *entrant, do func() error) error {
	if f.profiles == "" {
		return do()
	}
	out, err := os.Create(filepath.Join(f.profiles, fmt.Sprintf("%s, %d lanes.pprof", e.name, e.bed.lanes)))
	if err != nil {
		return err
	}
	defer out.Close()
	if err := pprof.StartCPUProfile(out); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	return do()
}
