package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"time"
	"unicode/utf8"

	"coppice.dev/coppice/tree"
	"coppice.dev/coppice/wire"
	"coppice.dev/coppice/worker"
)

// Spec says what a pool's workers are, how many there are, and what they may use. It is not changed after New.
type Spec struct {
	// Name is for people: events and errors carry it, and the scratch folder's name shows it.
	Name string
	// Command is the worker's program, an absolute path, and its arguments. It speaks the protocol of package wire: a
	// program made with package worker, or an interpreter with an SDK.
	Command []string
	// Functions, if there are any, are called in this process, and there is no worker, no Command and no containment: for
	// embedding code that is trusted, and for tests. Results and errors are those that a worker with the same functions would
	// give. One that overruns its deadline cannot be cut: it keeps its place among Workers until it returns. Limits and
	// Attempts mean nothing.
	Functions []worker.Function
	// Exec says that Command is no worker: it is executed once for each dispatch, as a filter is. The body is its stdin, and
	// what it writes to stdout is sent to each of ExecTo. A status other than 0 is a *HandlerError, death by a signal a
	// *CrashError. It cannot be a router, and there are no standbys of it. ExecMessage and its like say what it is told.
	Exec   bool
	ExecTo []string
	// Env is added to the worker's environment, as NAME=value; of the engine's own only an allow-list gets there. The last
	// value of a name counts.
	Env []string
	// File is the code that the worker loads; empty for a program that is its own code.
	File string
	// Offers are the functions that will be asked for. A worker that lacks one cannot boot.
	Offers []wire.Offer
	// Settings reach the functions as they are: strings, bool, int64, float64, []any and map[string]any.
	Settings map[string]any

	// Workers is how many dispatches may be under way at once, each in a worker of its own; 0 means 1.
	Workers int
	// Standbys is how many workers more are started ahead, from the first Boot or Dispatch on, so that nobody waits for
	// the start of a worker in the place of one that was cut.
	Standbys int
	// Fresh gives each dispatch a worker that has served none before. It is killed after its answer.
	Fresh bool
	// Attempts is how many workers one dispatch may cost before its message is called poison; 0 means 1.
	Attempts int

	// Level is the least containment that will do; 0 takes the best that the host has.
	Level tree.Level
	// Rung, if not empty, is the only rung of package tree to use.
	Rung string
	// Scratch is the folder in which each worker gets a folder of its own; empty is the system's for temporary files.
	Scratch string

	// StartTimeout bounds a start, until the worker is ready; 0 means 10 s.
	StartTimeout time.Duration
	// Timeout bounds each attempt, from right before the request's first byte; 0 leaves it to the deadline of Dispatch's ctx,
	// which holds besides.
	Timeout time.Duration
	// KillTimeout bounds the wait for the proof that a cut worker is gone; 0 means 10 s.
	KillTimeout time.Duration
	// FrameCap is the most bytes of a frame, at most 4 GiB - 1; 0 means 64 MiB.
	FrameCap int
	Limits   Limits

	Observer Observer
}

func (s *Spec) check() error {
	switch {
	case len(s.Functions) > 0 && (len(s.Command) > 0 || s.Exec || s.Fresh || s.Standbys > 0 || s.File != "" || s.Level > 0 || s.Rung != ""):
		return errors.New("functions that are called in this process have no worker: no command, file, level, standbys")
	case len(s.Functions) > 0:
	case len(s.Command) == 0:
		return errors.New("no command")
	case !filepath.IsAbs(s.Command[0]):
		return fmt.Errorf("the command %q is no absolute path", s.Command[0])
	}
	switch {
	case s.FrameCap < 0 || int64(s.FrameCap) > math.MaxUint32:
		return fmt.Errorf("a frame cap of %d bytes", s.FrameCap)
	case s.Workers < 0 || s.Standbys < 0 || s.Attempts < 0:
		return fmt.Errorf("%d workers, %d standbys, %d attempts", s.Workers, s.Standbys, s.Attempts)
	case s.Exec && (s.Standbys > 0 || s.File != ""):
		return errors.New("a program that is executed for each message has no standbys and loads no file")
	case !s.Exec && len(s.ExecTo) > 0:
		return errors.New("ExecTo without Exec")
	case s.StartTimeout < 0 || s.Timeout < 0 || s.KillTimeout < 0:
		return fmt.Errorf("timeouts of %v, %v and %v", s.StartTimeout, s.Timeout, s.KillTimeout)
	}
	for _, o := range s.Offers {
		if err := checkFunction(o.Phase, o.Name); err != nil {
			return err
		}
	}
	_, err := wire.Encode(s.boot(), wire.DefaultCaps())
	return err
}

// filled returns the spec with its defaults in the place of zeros.
func (s Spec) filled() Spec {
	s.Workers, s.Attempts = max(s.Workers, 1), max(s.Attempts, 1)
	s.StartTimeout = cmp.Or(s.StartTimeout, 10*time.Second)
	s.KillTimeout = cmp.Or(s.KillTimeout, 10*time.Second)
	s.Limits = s.Limits.filled()
	return s
}

// caps are those of the frames to and from a worker that is ready.
func (s *Spec) caps() wire.Caps {
	c := wire.DefaultCaps()
	if s.FrameCap > 0 {
		c.Frame = s.FrameCap
	}
	return c
}

// boot is the first message to every worker of the pool.
func (s *Spec) boot() *wire.Boot {
	return &wire.Boot{File: s.File, Offers: s.Offers, Settings: s.Settings, FrameCap: s.FrameCap}
}

// checkFunction refuses what a worker would have to take for a violation by the engine, and die of, or could only answer
// with another name: the wire replaces what is not UTF-8.
func checkFunction(phase wire.Phase, name string) error {
	switch {
	case phase != wire.PhaseRoute && phase != wire.PhaseHandle:
		return fmt.Errorf("no phase %q", phase)
	case name == "" || !utf8.ValidString(name):
		return fmt.Errorf("no name for a function: %q", name)
	}
	return nil
}
