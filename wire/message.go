package wire

// Version is the protocol's version that this package speaks. It has one number: there are no optional features.
const Version = 1

// Phase is what a dispatch asks of a function: a router's choice or a handler's work.
type Phase string

// The two phases.
const (
	PhaseRoute  Phase = "route"
	PhaseHandle Phase = "handle"
)

// Side is one end of the wire.
type Side int

// The two sides, named as senders.
const (
	Engine Side = iota + 1
	Worker
)

// Message is one of *Boot, *Ready, *BootFail, *Request, *Result and *Fail.
type Message interface {
	// Type is the message's "type" on the wire.
	Type() string
	from() Side
}

// Offer names one function of a worker's.
type Offer struct {
	Phase Phase
	Name  string
}

// Boot is the engine's first frame, before the worker has loaded any code of the user's.
type Boot struct {
	// File is the path of the code to load; empty for a program that is its own code.
	File string
	// Offers is what the engine is going to ask for. A worker that cannot offer all of it answers BootFail.
	Offers []Offer
	// Settings reach the functions as they are: strings, bool, int64, float64, []any and map[string]any.
	Settings map[string]any
	// FrameCap is the most bytes of a frame that the engine accepts and sends in this session; 0 says the default.
	FrameCap int
}

// Ready is the worker's answer to Boot: its code is loaded, and this is what it offers.
type Ready struct {
	SDK    string // for people: "go/1", "python/1"
	Offers []Offer
}

// BootFail is the worker's other answer to Boot: its code cannot be loaded.
type BootFail struct {
	Fault Fault
}

// Fault is an error in the terms of the worker's language.
type Fault struct {
	Type      string // the exception's type
	Text      string
	Traceback string
}

// Binding ties an answer to its request. ID is 32 lower-case hexadecimal digits, fresh and unguessable for each
// dispatch; the answer repeats all three.
type Binding struct {
	ID    string
	Phase Phase
	Name  string
}

// Check returns a violation unless the answer is bound to this request. The id is compared first: a late answer has
// the right phase and name.
func (b Binding) Check(answer Binding) error {
	switch {
	case answer.ID != b.ID:
		return violation(BadID, "the answer is to another request")
	case answer.Phase != b.Phase:
		return violation(BadPhase, "the answer is of another phase")
	case answer.Name != b.Name:
		return violation(BadName, "the answer is of another function")
	}
	return nil
}

// Request asks for one function's work on one message. Its body is the frame's only segment.
type Request struct {
	Binding
	Message  int64  // the engine's id of the message
	Inbound  string // the connection that it came from
	MsgType  string // MSH-9, or empty
	Control  string // MSH-10, or empty
	Received string // RFC 3339, UTC
	Attempt  int    // 1 for the first
	Timeout  int64  // milliseconds until the deadline, at the time of sending; for the function to know, not to enforce
	Body     []byte
}

// Result is the answer of a function that returned. A router's has Handlers (which may be empty); a handler's has
// either Sends (which may be empty) or Drop, never both.
type Result struct {
	Binding
	Handlers []string
	Sends    []Send
	Dropped  bool
	Drop     string // the reason, with Dropped
	Tags     map[string]string
}

// Send is one body for one outbound. On the wire the body is a segment.
type Send struct {
	To   string
	Body []byte
}

// Fail is the answer of a function that raised, or returned what no Result can say.
type Fail struct {
	Binding
	Fault Fault
}

// The types of the messages on the wire.
func (*Boot) Type() string     { return "boot" }
func (*Ready) Type() string    { return "ready" }
func (*BootFail) Type() string { return "bootfail" }
func (*Request) Type() string  { return "request" }
func (*Result) Type() string   { return "result" }
func (*Fail) Type() string     { return "fail" }

func (*Boot) from() Side     { return Engine }
func (*Ready) from() Side    { return Worker }
func (*BootFail) from() Side { return Worker }
func (*Request) from() Side  { return Engine }
func (*Result) from() Side   { return Worker }
func (*Fail) from() Side     { return Worker }
