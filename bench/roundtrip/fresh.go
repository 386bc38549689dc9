package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"coppice.dev/coppice/bench/contest"
	"coppice.dev/coppice/sandbox"
)

// fresh measures workers that serve one message each: what a message waits, and how many there are in a second.
func (f *far) fresh(rounds int) error {
	if err := f.freshWait(rounds); err != nil {
		return err
	}
	return f.freshRate(rounds)
}

// freshPool makes a pool that has served one message, and is at rest with its standbys and nobody else.
func (f *far) freshPool(standbys int) (*watched, error) {
	w, err := watch(sandbox.Spec{Name: "fresh", Command: []string{f.child, "worker"}, Fresh: true, Standbys: standbys}, standbys)
	if err == nil {
		_, err = timed(w.spend, []byte("x"))
	}
	if err == nil {
		err = w.settled()
	}
	if err != nil && w.Pool != nil {
		err = errors.Join(err, closing(w.Pool))
	}
	return w, err
}

// spend is an echo that costs a worker.
func (w *watched) spend(body []byte) ([]byte, error) {
	w.costs++
	return dispatch(w.Pool)(body)
}

// bareStart is an echo by a process that is started for it and waited for: the floor of what can be had fresh.
func (f *far) bareStart(body []byte) ([]byte, error) {
	e, end, err := f.bareGo()
	if err != nil {
		return nil, err
	}
	answer, err := e(body)
	return answer, errors.Join(err, end())
}

// freshWait measures the message that finds the pool at rest.
func (f *far) freshWait(rounds int) error {
	const normal, bare = "a dispatch, worker shared", "a bare start and its end"
	b := body(1 << 10)
	shared, end, err := f.coppiceGo()
	if err != nil {
		return err
	}
	defer end()
	all := []contest.Entrant{
		{Name: normal, Turn: 20, Run: func() (time.Duration, error) { return timed(shared, b) }},
		{Name: bare, Run: func() (time.Duration, error) { return timed(f.bareStart, b) }},
	}
	var where string
	for _, way := range []struct {
		name     string
		standbys int
		boot     bool
	}{{"2 standbys ready", 2, false}, {"1 standby ready", 1, false}, {"booted ahead, nothing starts beside", 0, true}, {"no standby", 0, false}} {
		w, err := f.freshPool(way.standbys)
		if err != nil {
			return err
		}
		defer closing(w.Pool)
		where = w.where
		all = append(all, contest.Entrant{Name: "fresh, " + way.name, Turn: 5, Run: func() (time.Duration, error) {
			err := w.settled()
			if err == nil && way.boot {
				err = w.Boot(context.Background())
			}
			if err != nil {
				return 0, err
			}
			return timed(w.spend, b)
		}})
	}
	m, err := contest.Medians(rounds, all)
	if err != nil {
		return err
	}
	fmt.Printf("\n## A fresh worker for each message\n\nMedians of %d rounds, 1KiB, %s. Goal: within 3x, with standbys ready.\n\n", rounds, where)
	fmt.Print("| | a message | to a dispatch |\n|---|---|---|\n")
	for _, e := range all {
		fmt.Printf("| %s | %s | %.2fx |\n", e.Name, micros(m[e.Name]), ratio(m[e.Name], m[normal]))
	}
	return nil
}

// freshRate has each core's pool serve one message after the other, against as many who start a bare process for each.
func (f *far) freshRate(rounds int) error {
	const each, bare = 25, "bare starts"
	cores := runtime.GOMAXPROCS(0)
	b := body(1 << 10)
	var starters []echo
	for range cores {
		starters = append(starters, f.bareStart)
	}
	all := []contest.Entrant{{Name: bare, Run: func() (time.Duration, error) { return burst(starters, b, each) }}}
	for _, standbys := range []int{0, 1, 2} {
		var pools []*watched
		for range cores {
			w, err := f.freshPool(standbys)
			if err != nil {
				return err
			}
			defer closing(w.Pool)
			pools = append(pools, w)
		}
		all = append(all, contest.Entrant{Name: fmt.Sprintf("fresh, standbys: %d", standbys),
			Run: func() (time.Duration, error) { return spree(pools, b, each) }})
	}
	m, err := contest.Medians(rounds, all)
	if err != nil {
		return err
	}
	rate := func(name string) float64 { return each / m[name].Seconds() }
	fmt.Printf("\n%d at once over %d cores, from the median of %d rounds of %d messages each. Goal: 0.9x of the bare starts.\n\n", cores, cores, rounds, each)
	fmt.Print("| | messages a second and core | to bare starts |\n|---|---|---|\n")
	for _, e := range all {
		fmt.Printf("| %s | %.1f | %.2fx |\n", e.Name, rate(e.Name), rate(e.Name)/rate(bare))
	}
	return nil
}

// spree has each pool serve so many messages, all at once, and times it until all are at rest again: the standbys that were there
// at the begin are no gift, and the next turn does not pay for what this one has left to do.
func spree(pools []*watched, body []byte, each int) (time.Duration, error) {
	var echoes []echo
	for _, w := range pools {
		echoes = append(echoes, w.spend)
	}
	began := time.Now()
	if _, err := burst(echoes, body, each); err != nil {
		return 0, err
	}
	for _, w := range pools {
		if err := w.settled(); err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
}
