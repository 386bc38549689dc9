// Package doctor finds out what this host can enforce, by doing it and not by version numbers: it starts a hostile tree on
// each rung and kills it, kills a real engine and looks who is left, makes namespaces, restricts children. It tells what
// works, why something does not, and what would lift that.
//
// It leaves nothing behind: every process that it starts holds a leash, a pipe that ends when the doctor ends, however that
// comes about, and lets go of life then.
package doctor

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"coppice.dev/coppice/internal/confine"
	"coppice.dev/coppice/tree"
)

// Schema is the version of Report as JSON. Fields may be added to a version; none changes its meaning.
const Schema = 1

// Report is what was found out.
type Report struct {
	Schema int    `json:"schema"`
	OS     string `json:"os"`
	Arch   string `json:"arch"`
	Host   Host   `json:"host"`
	// Rung is where this user stands: the best rung that could be had; empty if there is none. Level is its level.
	Rung  string     `json:"rung"`
	Level tree.Level `json:"level,omitempty"`
	// Rungs are all that this system has, best first.
	Rungs []Rung `json:"rungs"`
	// Features are what rungs and confinement rest on.
	Features []Feature `json:"features"`
	// Faults are where what was seen contradicts what a rung claims, and where something could not be cleaned up.
	Faults []string `json:"faults"`
}

// Atomic says whether this user stands on a rung of level atomic whose kill was seen to leave nothing.
func (r *Report) Atomic() bool {
	for _, rung := range r.Rungs {
		if rung.Name == r.Rung {
			return r.Level == tree.Atomic && rung.Works && len(rung.Kill.Escaped) == 0 && !rung.Kill.Held
		}
	}
	return false
}

// Rung is one way to hold a tree, tried.
type Rung struct {
	Name string `json:"name"`
	// Works: a tree could be started on it, and its Kill proved it empty.
	Works bool `json:"works"`
	// Level and Facts are what the tree reported, if it could be started.
	Level tree.Level  `json:"level,omitempty"`
	Facts *tree.Facts `json:"facts,omitempty"`
	// Reason says why it does not work, and Hint what would lift that.
	Reason string `json:"reason,omitempty"`
	Hint   string `json:"hint,omitempty"`
	// Kill and HostDeath are what was seen, if a tree could be started.
	Kill      *Kill      `json:"kill,omitempty"`
	HostDeath *HostDeath `json:"host_death,omitempty"`
}

// Kill is what was seen of one Kill of a hostile tree: a command, and a daemon that it had forked twice into a session of
// its own.
type Kill struct {
	Proved bool          `json:"proved"`  // Kill said that the tree is empty
	Seen   int           `json:"seen"`    // processes, right before the cut
	Took   time.Duration `json:"took_ns"` // from the cut to the proof
	// Held: some process still held the tree's pipe after Kill had returned. Escaped are those that could be found.
	Held    bool      `json:"held"`
	Escaped []Process `json:"escaped,omitempty"`
	Error   string    `json:"error,omitempty"`
}

// HostDeath is what was seen when an engine that held such a tree was killed with SIGKILL.
type HostDeath struct {
	// Survived: a process of the tree was still there after Waited. Survivors are those that could be found.
	Survived  bool          `json:"survived"`
	Survivors []Process     `json:"survivors,omitempty"`
	Waited    time.Duration `json:"waited_ns"` // until the last one was gone, or until the look was given up
	Error     string        `json:"error,omitempty"`
}

// Feature is something of the host that a rung or a layer of confinement rests on.
type Feature struct {
	Name   string `json:"name"`
	Works  bool   `json:"works"`
	Detail string `json:"detail,omitempty"` // what was seen, if it works
	Reason string `json:"reason,omitempty"` // what was refused, if not
	Hint   string `json:"hint,omitempty"`   // what would lift that
}

// The bounds of one check: what it may take, and what it gets to clean up after that, which is more than what end, sweep
// and a glance take. Machines are busy: a check takes a few milliseconds on one that is not.
const (
	checkTimeout = 8 * time.Second
	unwind       = 2*endPatience + glance + time.Second
)

var errSlow = fmt.Errorf("hangs: not done in %v", checkTimeout)

// Run finds out. The caller's program must call Child first thing when its arguments begin with ChildVerb, and import
// package shimhook. It takes a few seconds. Its error is ctx's cause, or its own failure to look at all; what the host
// does not give is in the report.
func Run(ctx context.Context) (*Report, error) {
	exe, err := program()
	if err != nil {
		return nil, err
	}
	d := &doctor{exe: exe}
	r := &Report{Schema: Schema, OS: runtime.GOOS, Arch: runtime.GOARCH, Host: look(), Features: []Feature{}}
	for _, name := range confine.Probes() {
		r.Features = append(r.Features, d.feature(ctx, name, r.Host))
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	for _, name := range tree.Rungs() {
		r.Rungs = append(r.Rungs, d.rung(ctx, name, r.Features, r.Host))
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	for _, rung := range r.Rungs {
		if r.Rung == "" && rung.Facts != nil {
			r.Rung, r.Level = rung.Name, rung.Level
		}
	}
	r.Faults = append(contradictions(r.Rungs), d.faults...)
	return r, nil
}

// doctor is one examination.
type doctor struct {
	exe    string
	faults []string
}

// feature probes one feature.
func (d *doctor) feature(ctx context.Context, name string, h Host) Feature {
	type answer struct {
		detail string
		err    error
	}
	a, err := bounded(ctx, func(ctx context.Context) answer {
		detail, err := confine.Probe(ctx, name, d.exe, argv(roleProbe, name))
		return answer{detail, err}
	})
	if err == nil {
		err = a.err
	}
	if err != nil {
		return Feature{Name: name, Reason: err.Error(), Hint: hint(name, err, h)}
	}
	return Feature{Name: name, Works: true, Detail: a.detail}
}

// rung tries one rung.
func (d *doctor) rung(ctx context.Context, name string, features []Feature, h Host) Rung {
	r := Rung{Name: name}
	a, err := bounded(ctx, func(ctx context.Context) killed { return d.kill(ctx, name) })
	if err == nil {
		err = a.refused
	}
	if err != nil {
		r.Reason, r.Hint = err.Error(), rungHint(name, err, features, h)
		return r
	}
	d.faults = append(d.faults, a.faults...)
	r.Level, r.Facts, r.Kill = a.level, &a.facts, &a.kill
	r.Works = a.kill.Proved
	if !r.Works {
		r.Reason, r.Hint = a.kill.Error, rungHint(name, nil, features, h)
	}
	b, err := bounded(ctx, func(ctx context.Context) died { return d.hostDeath(ctx, name, a.facts.HostDeathSafe) })
	if err != nil {
		b.death.Error = err.Error()
	}
	d.faults = append(d.faults, b.faults...)
	r.HostDeath = &b.death
	return r
}

// contradictions are claims that did not hold.
func contradictions(rungs []Rung) (out []string) {
	out = []string{} // a list for machines too when it is empty
	for _, r := range rungs {
		switch {
		case r.Facts == nil:
			continue
		case r.Level >= tree.Tracked && r.Kill.Proved && r.Kill.Held:
			out = append(out, fmt.Sprintf("%s says %s, but something was left after its kill", r.Name, r.Level))
		}
		if r.Facts.HostDeathSafe && r.HostDeath != nil && (r.HostDeath.Survived || r.HostDeath.Error != "") {
			out = append(out, fmt.Sprintf("%s says host-death-safe, but that was not seen when an engine was killed", r.Name))
		}
	}
	return out
}

// bounded runs one check, and gives up one that does not end although its time is over.
func bounded[T any](ctx context.Context, check func(context.Context) T) (answer T, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, checkTimeout, errSlow)
	defer cancel()
	done := make(chan T, 1)
	go func() { done <- check(ctx) }()
	select {
	case answer = <-done:
		return answer, nil
	case <-ctx.Done():
	}
	select {
	case answer = <-done:
		return answer, nil
	case <-time.After(unwind):
		return answer, fmt.Errorf("%w, and does not end when it is told to", context.Cause(ctx))
	}
}
