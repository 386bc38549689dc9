// Package message is the vocabulary that the rooms of the pipeline share: what a message is, where it can stand and
// how it can end. It holds data and no behaviour, imports the standard library alone, and so lets package pipeline,
// the stores and the connections agree on values without importing one another.
package message

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// ID is a message's place in the engine's own sequence: unique in a store, ascending in receive order, never reused.
type ID int64

// Disposition is what became of a message. RECEIVED and ROUTED are states on the way, moved by the pipeline; the other
// four are final. A crash changes none of them: each is written in the transaction of the hand-over that it describes,
// so after a restart the message stands where its last committed hand-over left it.
type Disposition string

// The dispositions. The final one is derived: ERROR if any part failed for good, else PROCESSED if any was delivered,
// else FILTERED, else UNROUTED.
const (
	Received  Disposition = "RECEIVED"  // committed and acknowledged; awaits its router
	Routed    Disposition = "ROUTED"    // places are reserved; handlers or deliveries are under way
	Unrouted  Disposition = "UNROUTED"  // the router chose no handler
	Filtered  Disposition = "FILTERED"  // every handler dropped it or sent nothing
	Processed Disposition = "PROCESSED" // everything that was sent is delivered, and something was
	Error     Disposition = "ERROR"     // a router, handler or delivery failed for good; its part is a dead letter
)

// Dispositions lists all six, in the order in which a table shows them.
func Dispositions() []Disposition {
	return []Disposition{Received, Routed, Processed, Filtered, Unrouted, Error}
}

// Final says whether nothing more will happen to the message by itself.
func (d Disposition) Final() bool { return d != Received && d != Routed }

// Incoming is a message as an inbound connection hands it over, before it has an ID.
type Incoming struct {
	Inbound   string    // name of the inbound connection
	Body      []byte    // exactly as received; the callee does not change it and does not keep it
	Peer      string    // where it came from: a network address, or a file's path
	Type      string    // MSH-9 as "ADT^A01"; empty where the body has no HL7 header
	ControlID string    // MSH-10; empty where there is none
	Received  time.Time // wall clock, UTC; never used for order
	File      *Source   // set by a file inbound alone
	Resubmits ID        // the message that this one sends again, edited; zero for one that came from outside
	// Once is for how long before Received an identical message of the inbound (the same ControlID, which is not empty, and
	// the same bytes) makes this one a duplicate; zero: it never is.
	Once time.Duration
	// Was are former names of the inbound: what came by one of them may be repeated, too.
	Was []string
}

// ErrDuplicate is returned for a message that was received before, with the id that it has since then: see Incoming.Once.
// That it came again is on disk, and it is to be acknowledged as any other.
var ErrDuplicate = errors.New("received before")

// Taken is what became of one of several messages that were received together.
type Taken struct {
	ID        ID
	Duplicate bool // it was received before, as ID
}

// Source identifies a file that was read, so that a crash between the commit and the move does not read it twice.
type Source struct {
	Path    string // absolute
	Size    int64
	ModTime time.Time
	SHA256  string // hex
}

// Refusal is what an inbound connection turned away. It is recorded, never queued.
type Refusal struct {
	Inbound string
	Peer    string
	Reason  string // one line, ours, without the body's bytes
	Size    int64  // bytes seen
	At      time.Time
}

// Message is one stored message. Body is nil where a list was asked for.
type Message struct {
	ID          ID
	Inbound     string
	Peer        string
	Type        string
	ControlID   string
	Received    time.Time
	Ended       time.Time // zero until the disposition is final
	Size        int64
	SHA256      string // hex, of the body
	Disposition Disposition
	Reason      string // one line: why it was filtered or failed; empty otherwise
	Resubmits   ID     // the message that this one sends again, edited; zero for one that came from outside
	Duplicates  int64  // how often it came again and was acknowledged without being processed again
	Body        []byte
}

// RunState is what became of one handler's work on one message.
type RunState string

// The states of a run. Pending is moved by the pipeline when the handler's outcome is committed; a crash leaves it
// pending, and the run is made again.
const (
	RunPending  RunState = "PENDING"
	RunSent     RunState = "SENT"
	RunFiltered RunState = "FILTERED"
	RunError    RunState = "ERROR"
)

// Plan is one handler that routing chose, with all the outbounds that it may name.
type Plan struct {
	Handler string
	To      []string
}

// Run is one handler's work on one message, or (Handler empty) the router's.
type Run struct {
	ID      int64
	Message ID
	Handler string   // empty for the router
	To      []string // the outbounds in whose lanes routing reserved a place for it
	State   RunState
	Outcome Outcome
	Ended   time.Time
	// Replayed is when a new attempt was made in its place; zero if none was. The disposition follows the latest attempt.
	Replayed  time.Time
	Dismissed Dismissal // of one that failed: that somebody has seen to it without a new attempt
}

// Pending is a run that is still to be made, and what it is to be made on.
type Pending struct {
	Run Run
	On  Message // with its body, unless the caller has that
	// Before is the run that was made for the handler right before this one; zero if that is not known. Once that one has
	// ended, and those before it, this one is next.
	Before int64
}

// Dismissal takes a dead letter from the list of those that somebody has to see to. It changes nothing else. A zero At: there was none.
type Dismissal struct {
	At     time.Time
	Reason string // one line
}

// Outcome is how a run ended: what it sends, or why it sends nothing. It is committed all or none.
type Outcome struct {
	State    RunState
	Sends    []Send            // with RunSent alone
	Reason   string            // one line, for RunFiltered and RunError
	Fault    *Fault            // for RunError
	Attempts int               // how many workers tried
	Code     string            // hash of the code that ran
	Took     time.Duration     // of the last attempt
	Tags     map[string]string // what the handler tagged the message with
	Printed  []Printed         // by the worker that tried last
	// HoldAfter, with RunError: the handler (of a router's run, the inbound) is held if this is at least its nth failure in
	// a row. Zero: it is not.
	HoldAfter int
}

// Printed is what a worker printed on a stream while it had a message: the last of it, safe to show.
type Printed struct {
	Stream string // "stdout" or "stderr"
	Text   string
	Left   int64 // bytes before that, which are not kept
}

// Fault tells whose error ended a run, in the terms of the worker's language.
type Fault struct {
	Kind      string // "handler", "deadline", "crash", "violation", "limit", "destination", "route"
	Type      string // the remote exception's type, or the violation's name
	Text      string
	Traceback string
}

// Send is one body that a handler addresses to one outbound.
type Send struct {
	To   string
	Body []byte
}

// DeliveryState is where one delivery stands.
type DeliveryState string

// The states of a delivery. Routing makes it Reserved; the handler's commit makes it Ready or Closed; the sender makes
// it Done or Dead. A crash leaves the first two as they are, so a delivery in progress may be sent again.
const (
	Reserved  DeliveryState = "RESERVED" // a place in the lane, kept for a handler that has not ended
	Ready     DeliveryState = "READY"    // has a body; to be sent when it heads its lane
	Delivered DeliveryState = "DONE"     // the receiver took it
	Closed    DeliveryState = "CLOSED"   // the handler sent nothing here
	Dead      DeliveryState = "DEAD"     // rejected for good: a dead letter
)

// Delivery is one body on its way to one outbound. Its lane is the pair (Inbound, Outbound).
type Delivery struct {
	ID        int64
	Message   ID
	Number    int // 1.. within its message: with Message it names the delivery for ever, also across repeats
	Handler   string
	Inbound   string
	Outbound  string
	State     DeliveryState
	Attempts  int       // how many sends failed or were rejected so far, plus the one that worked
	Rejected  int       // how many of those the receiver rejected
	NextTry   time.Time // zero: at once
	Reason    string    // of the last failure, one line
	Receipt   string    // what the receiver answered, one line
	Ended     time.Time // zero until Delivered, Closed or Dead
	Replayed  time.Time // of a dead letter: when a new attempt was made in its place; zero if none was
	Dismissed Dismissal // of a dead letter
	Type      string    // of the message that it came from
	Control   string    // control id of the message that it came from
	Body      []byte    // nil where a list was asked for
}

// Name is the delivery's id as people and file names show it: "0000000042-1". It sorts in receive order.
func (d Delivery) Name() string { return fmt.Sprintf("%010d-%d", d.Message, d.Number) }

// Receipt is what a receiver said of a delivery that it took.
type Receipt struct {
	Text string // one line: "AA", a file's path
}

// Rejection is the error of a delivery that arrived and was turned down; every other error of a sender means that
// the delivery is to be tried again, for ever.
type Rejection struct {
	Code string // "AE", "AR", ...
	Text string // what the receiver said, one line, control characters escaped
	// Final says that asking again cannot help (AR, CR): the delivery is dead at once.
	Final bool
}

func (r *Rejection) Error() string {
	if r.Text == "" {
		return "rejected with " + r.Code
	}
	return "rejected with " + r.Code + ": " + r.Text
}

// The kinds of names that a configuration declares.
const (
	KindInbound  = "inbound"
	KindHandler  = "handler"
	KindOutbound = "outbound"
)

// Target is work that can be held: the routing of an inbound's messages, the runs of a handler, the deliveries of an
// outbound or of one of its lanes.
type Target struct {
	Kind    string `json:"kind"` // KindInbound, KindHandler or KindOutbound
	Name    string `json:"name"`
	Inbound string `json:"inbound,omitempty"` // of an outbound: its lane from this inbound alone; empty for all of its lanes
}

func (t Target) String() string {
	if t.Inbound != "" {
		return t.Kind + " " + t.Name + ", lane of " + t.Inbound
	}
	return t.Kind + " " + t.Name
}

// Compare orders targets as tables show them: inbounds, handlers, outbounds, by name and inbound each.
func (t Target) Compare(other Target) int {
	return cmp.Or(cmp.Compare(order(t.Kind), order(other.Kind)), cmp.Compare(t.Name, other.Name), cmp.Compare(t.Inbound, other.Inbound))
}

func order(kind string) int {
	return slices.Index([]string{KindInbound, KindHandler, KindOutbound}, kind)
}

// Hold keeps work from going on until somebody releases it. It outlives the engine; what is held loses nothing.
type Hold struct {
	Target
	Reason string    `json:"reason"` // one line
	Since  time.Time `json:"since"`
	// Buried, of one that was released, is the delivery that became a dead letter with it; empty if none did. At an outbound that
	// keeps no order it may be several, with commas between them.
	Buried string `json:"dead_letter,omitempty"`
}

// Names is what a configuration declares, as far as a replay needs it: each name, and each name that one had before
// (`was`), with what it stands for now.
type Names struct {
	Inbounds  map[string]string
	Handlers  map[string]Plan
	Outbounds map[string]string
}

// Replay is what a replay began: a new attempt of each part that had failed.
type Replay struct {
	Message  ID
	Router   bool       // it is routed again
	Handlers []string   // that run again, with the code of now
	Sends    []Delivery // the new deliveries, without bodies
	// Ahead is how many newer messages of the same inbound each lane concerned has delivered already, counted up to
	// MaxAhead.
	Ahead map[string]int64
}

// MaxAhead is where Replay.Ahead stops counting.
const MaxAhead = 1000

// DeadLetter is one part of a message that failed for good and has been neither replayed nor dismissed.
type DeadLetter struct {
	Message  ID
	Inbound  string
	Type     string
	Control  string
	Kind     string // KindInbound (its router), KindHandler or KindOutbound
	Name     string // of the inbound, handler or outbound
	Delivery string // the delivery's name; empty for the other kinds
	Reason   string // one line
	Ended    time.Time
}
