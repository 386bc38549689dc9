package sandbox

import (
	"time"

	"coppice.dev/coppice/tree"
)

// Started tells that a worker is ready.
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
	// Why is the error for which the worker was cut; nil when the session was closed or the worker ended by itself between
	// dispatches.
	Why error
	// Message is the engine's id of the message that the worker had; 0 if it had none.
	Message int64
	Report  tree.Report
	Status  tree.Status
	// Err is a *tree.SurvivorsError when the tree could not be proved empty in time.
	Err error
	// Output are the last lines that the worker printed.
	Output []string
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

// Observer takes what happens in a session. Nil fields are skipped. The functions are called from the session's own
// goroutines; for one worker, the calls of Output come one after the other and before Cut, unless Output is too slow.
type Observer struct {
	// Started and Cut must not block: the next dispatch and Close wait for them.
	Started func(Started)
	Cut     func(Cut)
	// Litter tells of a worker's scratch folder that could not be removed.
	Litter func(session, folder string, err error)
	// Output may be slow: nobody waits for it, and lines are left out instead.
	Output func(Line)
}
