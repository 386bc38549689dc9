package sandbox

import (
	"time"

	"coppice.dev/coppice/tree"
)

// Started tells that a worker is ready. Nobody says so of a program that is executed (Spec.Exec): of those it does not tell.
type Started struct {
	Session string
	Level   tree.Level
	Facts   tree.Facts
	Took    time.Duration // from the start of the process to ready
}

// Cut tells that a worker has ended and its tree has been proved empty, or not. One that could not be proved gone is told of
// once more when it is.
type Cut struct {
	Session string
	// Why is the error for which the worker was cut; nil when the pool was closed, the worker ended by itself between
	// dispatches, or its end was in order (Spec.Fresh, Limits.Idle).
	Why error
	// Expected says that nothing is to be explained: the pool was closed, or the worker's time was over.
	Expected bool
	// Message is the engine's id of the message that the worker had; 0 if it had none.
	Message int64
	Report  tree.Report
	Status  tree.Status
	// Err is a *tree.SurvivorsError when the tree could not be proved empty in time.
	Err error
	// Output are the last lines that the worker printed.
	Output []string
	// At is when the cut began. Steps are what happened before, the first two and the last sixteen; Said and Heard the
	// last headers to and from the worker, cut after 2 KiB. A header that was refused may hold anything.
	At          time.Time
	Steps       []Step
	Said, Heard string
}

// Unstarted tells of a worker whose process could not be started at all: its command cannot be executed, or the host does not give
// what it takes. Nothing ran, so that no Cut follows.
type Unstarted struct {
	Session string
	Err     error // as in a BootError: an *os.PathError, a *tree.LevelError, or the host's own
	At      time.Time
	Steps   []Step // the start alone
}

// Line is one line that a worker printed, with control characters escaped.
type Line struct {
	Session string
	Stream  string // "stdout" or "stderr"
	Message int64  // the message that the worker had been given last when it printed; 0 before the first
	Text    string
	// Dropped are the lines left out right before this one, because there were too many in a short time or Output was too
	// slow. Lines left out at the very end are told by a Line without Stream and Text.
	Dropped int
}

// Held tells that the pool starts no worker until a time, because the start before has failed.
type Held struct {
	Session string
	Err     error     // a *BootError
	Until   time.Time // when the next start is tried, if a dispatch or a standby asks for it
	Fails   int       // how many starts have failed in a row
}

// Observer takes what happens in a pool. Nil fields are skipped. The functions are called from the pool's own
// goroutines; for one worker, the calls of Output come one after the other and before Cut, unless Output is too slow.
type Observer struct {
	// Started and Cut must not block: the next dispatch and Close wait for them.
	Started func(Started)
	Cut     func(Cut)
	// Unstarted must not block either.
	Unstarted func(Unstarted)
	// Held tells of each start that has failed, Healed of the first one that went well after that. They must not block.
	Held   func(Held)
	Healed func(session string)
	// Litter tells of a worker's scratch folder that could not be removed.
	Litter func(session, folder string, err error)
	// Output may be slow: nobody waits for it, and lines are left out instead.
	Output func(Line)
}
