package sandbox

import "time"

// What a Step tells of.
const (
	StepStart   = "start"   // the worker's process is being started
	StepReady   = "ready"   // it has loaded its code
	StepRequest = "request" // a request goes out to it
	StepAnswer  = "answer"  // a legal answer has come
)

// Step is one thing that happened between the engine and a worker.
type Step struct {
	At      time.Time `json:"at"`
	What    string    `json:"what"`
	Message int64     `json:"message,omitempty"` // of a request
	Attempt int       `json:"attempt,omitempty"`
	Phase   string    `json:"phase,omitempty"`
	Name    string    `json:"name,omitempty"`
	Bytes   int       `json:"bytes,omitempty"`  // of the frame
	Answer  string    `json:"answer,omitempty"` // of an answer: "result" or "fail"
}

const (
	// lastSteps is how many steps of a worker's life are kept for the story of its cut, besides its first two.
	lastSteps = 16
	// lastHeader is how much of the last header of each direction is kept.
	lastHeader = 2 << 10
)

// record is what the story of a cut is made of. It keeps the last of everything in memory that it has once, so that a
// dispatch pays for no more than the copying. It belongs to whoever has the worker's seat.
type record struct {
	first       [2]Step
	last        [lastSteps]Step
	n           int
	said, heard []byte // the last headers
}

func (r *record) note(s Step) {
	s.At = time.Now()
	if r.n < len(r.first) {
		r.first[r.n] = s
	} else {
		r.last[(r.n-len(r.first))%lastSteps] = s
	}
	r.n++
}

// steps are the first ones and the last ones, in order.
func (r *record) steps() []Step {
	var out []Step
	for i := range r.n {
		switch later := i - len(r.first); {
		case later < 0:
			out = append(out, r.first[i])
		case i >= r.n-lastSteps:
			out = append(out, r.last[later%lastSteps])
		}
	}
	return out
}

// keep keeps the beginning of a header in the place of the one before.
func keep(room, header []byte) []byte {
	return append(room[:0], header[:min(len(header), lastHeader)]...)
}
