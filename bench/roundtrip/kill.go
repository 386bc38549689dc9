package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"coppice.dev/coppice/bench/contest"
	"coppice.dev/coppice/sandbox"
	"coppice.dev/coppice/wire"
)

// death is a way in which a message costs its worker.
type death struct {
	name, handler string
	timeout       time.Duration
	as            func(error) bool
}

var deaths = []death{
	{"exit", "exit", time.Minute, func(err error) bool {
		_, ok := errors.AsType[*sandbox.CrashError](err)
		return ok
	}},
	{"deadline", "hang", 20 * time.Millisecond, func(err error) bool {
		_, ok := errors.AsType[*sandbox.DeadlineError](err)
		return ok
	}},
}

// by sends a message that the worker does not survive.
func (d death) by(w *watched) error {
	w.costs++
	_, err := w.Dispatch(context.Background(), sandbox.Request{Phase: wire.PhaseHandle, Name: d.handler, Message: 1, Timeout: d.timeout})
	if !d.as(err) {
		return fmt.Errorf("message %q: %w", d.handler, errors.Join(err, errors.New("the worker did not die of it")))
	}
	return nil
}

// aftermath is the message after a kill, again and again: from the failed dispatch's return to the proof that the worker is
// gone, and from there to the answer.
type aftermath struct {
	death
	pool          *watched
	proof, answer []time.Duration
}

// run returns the sum of both, which is what a caller waits.
func (a *aftermath) run(body []byte) (time.Duration, error) {
	if err := a.pool.settled(); err != nil {
		return 0, err
	}
	if err := a.by(a.pool); err != nil {
		return 0, err
	}
	began := time.Now()
	took, err := timed(dispatch(a.pool.Pool), body)
	if err != nil {
		return 0, err
	}
	proved, err := a.pool.proof()
	if err != nil {
		return 0, fmt.Errorf("there is an answer, but %w", err)
	}
	wait := max(proved.Sub(began), 0) // it may have been gone by then
	a.proof, a.answer = append(a.proof, wait), append(a.answer, took-wait)
	return took, nil
}

// kill measures the message after a worker was cut, with a standby and without, against those that meet a worker at rest.
func (f *far) kill(rounds int) error {
	b := body(1 << 10)
	var all []contest.Entrant
	var after []*aftermath
	pools := []struct {
		name     string
		standbys int
	}{{"a standby", 1}, {"no standby", 0}}
	for _, p := range pools {
		w, err := watch(sandbox.Spec{Name: p.name, Command: []string{f.child, "worker"}, Standbys: p.standbys}, 1+p.standbys)
		if err != nil {
			return err
		}
		defer closing(w.Pool)
		all = append(all, contest.Entrant{Name: p.name, Turn: 20, Run: func() (time.Duration, error) {
			if err := w.settled(); err != nil {
				return 0, err
			}
			return timed(dispatch(w.Pool), b)
		}})
		for _, d := range deaths {
			a := &aftermath{death: d, pool: w}
			after = append(after, a)
			all = append(all, contest.Entrant{Name: p.name + ", " + d.name, Run: func() (time.Duration, error) { return a.run(b) }})
		}
	}
	m, err := contest.Medians(rounds, all)
	if err != nil {
		return err
	}
	fmt.Printf("\n## The message after a kill\n\nMedians of %d kills each, 1KiB, %s; the ratio to a dispatch of the same pool that meets a worker at rest.\n"+
		"Goal: within 3x, with a standby.\n\n", rounds, after[0].pool.where)
	fmt.Print("| | a dispatch | return to proof | return to answer | proof to answer |\n|---|---|---|---|---|\n")
	for i, a := range after {
		pool := pools[i/len(deaths)].name
		name, normal, answer := pool+", "+a.name, m[pool], contest.Median(a.answer)
		fmt.Printf("| %s | %s | %s | %s %.2fx | %s %.2fx |\n", name, micros(normal), micros(contest.Median(a.proof)),
			micros(m[name]), ratio(m[name], normal), micros(answer), ratio(answer, normal))
	}
	return nil
}
