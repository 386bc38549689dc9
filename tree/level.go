package tree

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Level is what a host really enforces for one tree: how sure a Kill is to end all of it.
type Level int

// The levels, weakest first, so that they compare with < and >.
const (
	// Direct: one process, and nothing is known of its descendants.
	Direct Level = iota + 1
	// Group: the process group. A descendant that calls setsid or setpgid escapes the kill.
	Group
	// Tracked: every orphan comes back to the tree, but the kill is a loop.
	Tracked
	// Atomic: the kernel kills all of it at once; nothing can be born meanwhile or step outside.
	Atomic
)

var levelNames = [...]string{Direct: "direct", Group: "group", Tracked: "tracked", Atomic: "atomic"}

// String returns the level's name, as configuration and output spell it.
func (l Level) String() string {
	if l < Direct || l > Atomic {
		return fmt.Sprintf("level(%d)", int(l))
	}
	return levelNames[l]
}

// MarshalText makes the level's name of it, for JSON.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads a level's name, from JSON.
func (l *Level) UnmarshalText(b []byte) (err error) {
	*l, err = ParseLevel(string(b))
	return err
}

// ParseLevel reads a level's name.
func ParseLevel(s string) (Level, error) {
	for l := Direct; l <= Atomic; l++ {
		if s == levelNames[l] {
			return l, nil
		}
	}
	return 0, fmt.Errorf("no level %q: there are %s", s, strings.Join(levelNames[Direct:], ", "))
}

// Facts stand beside the level.
type Facts struct {
	// Rung is the way in which the tree is held: "pidns", "pidns-user", "cgroup", "subreaper", "group", "job" or
	// "job-late".
	Rung string `json:"rung"`
	// HostDeathSafe: no process of the tree outlives the engine, however the engine dies, at any moment of the start.
	HostDeathSafe bool `json:"host_death_safe"`
	// BornInside: the command was a member before its first instruction.
	BornInside bool `json:"born_inside"`
	// Transparent: the command sees the world that it would see without Coppice: user ids, mounts, process ids, and
	// whom it may signal or trace.
	Transparent bool `json:"transparent"`
	// Guarded: no process of the tree can leave what holds it, nor signal, stop, trace or, by prlimit(2), starve what kills
	// it. Where that is not so, Unguarded says why.
	Guarded   bool   `json:"guarded"`
	Unguarded string `json:"unguarded,omitempty"`
	// Limited: the limits, NoNewPrivileges and DropCapabilities of the Spec are set, as far as they were asked for. Where
	// there is no shim, nobody sets them.
	Limited bool `json:"limited"`
	// Tried are the rungs that were tried before and could not be had.
	Tried []Tried `json:"tried,omitempty"`
}

// Tried is one rung that could not be had, and why.
type Tried struct {
	Rung   string `json:"rung"`
	Reason string `json:"reason"`
	Err    error  `json:"-"` // what Reason is made of, nil for a level that is too low
}

// ErrNoShim is the reason of a rung that needs a shim in a program without one: see package shimhook and Spec.Shim.
var ErrNoShim = errors.New("this program has no shim: import coppice.dev/coppice/tree/shimhook, or name one in Spec.Shim")

// LevelError says that the host cannot give the level that was demanded. Nothing was executed.
type LevelError struct {
	Wanted Level  // 0 if only a rung was demanded, by its name
	Rung   string // the rung that was demanded, if any
	Tried  []Tried
}

// Is finds ErrNoShim among the rungs' reasons, and no other error of theirs: what a rung lacks is not what the command lacks.
func (e *LevelError) Is(target error) bool {
	return target == ErrNoShim && slices.ContainsFunc(e.Tried, func(t Tried) bool { return errors.Is(t.Err, ErrNoShim) })
}

func (e *LevelError) Error() string {
	var b strings.Builder
	if e.Rung != "" {
		fmt.Fprintf(&b, "rung %q is not to be had here", e.Rung)
	} else {
		fmt.Fprintf(&b, "level %s is not to be had here", e.Wanted)
	}
	for i, t := range e.Tried {
		sep := "; "
		if i == 0 {
			sep = ": "
		}
		fmt.Fprintf(&b, "%s%s: %s", sep, t.Rung, t.Reason)
	}
	return b.String()
}
