package tree

import (
	"fmt"
	"strings"
	"syscall"
	"time"
)

// Member is one process of a tree, as one read of the system showed it.
type Member struct {
	Pid    int    `json:"pid"` // as the engine sees it
	Parent int    `json:"parent"`
	Name   string `json:"name"`  // chosen by the process itself: print it quoted
	Start  uint64 `json:"start"` // with Pid its identity; in units of the system's own
}

// named is the most members that a report lists: to name them must not slow a kill.
const named = 16

// Report tells how a tree ended.
type Report struct {
	// Cause is what Kill was given first, or "exit" when the command's own end came before any Kill.
	Cause string `json:"cause"`
	Level Level  `json:"level"`
	Rung  string `json:"rung"`
	// Seen is how many processes one read of the tree showed right before the cut, the command among them if it still
	// lived; the shim is not counted. While a tree forks, this is a lower bound.
	Seen int `json:"seen"`
	// Unseen says why nobody could be counted, if that is so: Seen is 0 then, whatever was cut.
	Unseen string `json:"unseen,omitempty"`
	// Named are at most 16 of them.
	Named []Member `json:"named,omitempty"`
	// Took is the time from the cut to the proof that the tree is empty.
	Took time.Duration `json:"took_ns"`
	// Survivors are those that a Kill which could not finish in time saw last; nil once the tree is proved empty.
	Survivors []Member `json:"survivors,omitempty"`
}

// SurvivorsError is the error of a Kill that could not prove the tree empty.
type SurvivorsError struct {
	Report Report
	Reason string
}

func (e *SurvivorsError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "tree not proved empty: %s", e.Reason)
	for i, m := range e.Report.Survivors {
		if i == 0 {
			b.WriteString("; last seen:")
		}
		fmt.Fprintf(&b, " %d %q", m.Pid, m.Name)
	}
	return b.String()
}

// Status is how a tree's command ended.
type Status struct {
	// Known is false when the command died with its tree, so that nobody collected its status.
	Known  bool
	Code   int            // exit status, if it exited
	Signal syscall.Signal // the signal that it died of; 0 if it exited
	OOM    OOM            // whether the kernel killed it for want of memory, as far as that can be known
	// User and System are the CPU time of the command and of the descendants that it waited for; MaxRSS its most
	// resident memory, in bytes. Zero where the system does not tell.
	User, System time.Duration
	MaxRSS       int64
}

// Success says whether the command exited with status 0.
func (s Status) Success() bool { return s.Known && s.Code == 0 && s.Signal == 0 }

// String says it in the shell's words: "exit status 3", "signal: killed"; "no status" of a command that still runs, or that
// died with its tree. Behind it stands ", out of memory" or ", perhaps out of memory" where OOM says so.
func (s Status) String() string {
	says := fmt.Sprintf("exit status %d", s.Code)
	switch {
	case !s.Known:
		says = "no status"
	case s.Signal != 0:
		says = "signal: " + s.Signal.String()
	}
	switch s.OOM {
	case OOMCertain:
		says += ", out of memory"
	case OOMPerhaps:
		says += ", perhaps out of memory"
	}
	return says
}
