// Package store is the durable queue: what is in it is on disk, and every step of a message through the pipeline is one
// transaction here. The sub-packages are the stores themselves; storetest is the one suite that all of them pass.
//
// A message moves received -> routed -> outbound -> done. Each hand-over commits the new work, the end of the old work
// and the message's disposition together, so that after a crash every message stands where its last hand-over left it.
//
// Places: routing reserves, in receive order, one place in the lane of every outbound that a chosen handler may name.
// The handler's outcome fills its places, or closes them. The head of a lane is its oldest place that has not ended; a
// head that is still reserved makes the lane wait. See Heads. At an outbound that keeps no order whatever is ready may be sent: see
// KeepOrder and Ready.
package store

import (
	"context"
	"errors"
	"time"

	"coppice.dev/coppice/internal/message"
)

// Sentinel errors; test with errors.Is.
var (
	// ErrLocked is returned by a store's Open when another engine owns the store.
	ErrLocked = errors.New("another engine has this store open")
	// ErrNotFound is returned for an id that the store does not have.
	ErrNotFound = errors.New("no such message")
	// ErrClosed is returned by every call after Close.
	ErrClosed = errors.New("store is closed")
	// ErrUnknown is joined to the error of a commit whose outcome cannot be known: it may have happened.
	ErrUnknown = errors.New("outcome of the commit is unknown")
	// ErrNothingFailed is returned for a replay of a message that has no failed part.
	ErrNothingFailed = errors.New("no part of the message has failed")
	// ErrUndeclared is returned for a replay of a part whose inbound, handler or outbound is not declared, or not any more. It
	// reads on behind "is".
	ErrUndeclared = errors.New("not declared")
	// ErrStale is returned when a run or delivery that a caller wants to end has ended already.
	ErrStale = errors.New("already ended")
)

// Plan is one handler that routing chose, with all the outbounds that it may name.
type Plan = message.Plan

// Query selects messages, newest first. Empty fields do not restrict.
type Query struct {
	Inbound     string
	Disposition message.Disposition
	Type        string // a prefix
	ControlID   string // a prefix
	Tag         string // name of a tag that it has
	TagValue    string // with this value, or with TagPrefix one that begins so
	TagPrefix   bool
	Since       time.Time  // received then or later
	Until       time.Time  // received before
	Before      message.ID // only ids below this one: for paging
	Limit       int        // at most this many; 0 means 50
}

// Timeline is everything that the store knows of one message.
type Timeline struct {
	Message    message.Message // with its body
	Runs       []message.Run   // the router's first, then in the order in which they were planned
	Deliveries []message.Delivery
	Tags       map[string]string
	Resubmits  []message.ID // the messages that send this one again, edited
}

// Hit is whether, and where, a message contains what was looked for.
type Hit struct {
	Found    bool
	Delivery int   // the number of the first delivery that has it; 0: it stands in what came
	Bytes    int64 // of bodies that were read
}

// DeadLetters selects parts of messages that failed for good and were neither replayed nor dismissed nor, with their message,
// resubmitted, newest message first. Empty fields do not restrict.
type DeadLetters struct {
	Kind    string // message.KindInbound (its router), KindHandler or KindOutbound
	Name    string // of the inbound, handler or outbound
	Inbound string // that the message came by
	Since   time.Time
	Before  message.ID // only of messages below this one: for paging
	Limit   int        // at most this many messages; 0 means 50
}

// Lane is a queue of unfinished work: the messages of an inbound that await routing, the pending runs of a handler, or
// what an outbound has not delivered of one inbound.
type Lane struct {
	message.Target
	Waiting int64
	Oldest  time.Time // when the oldest of the messages was received
	// Unordered, of an outbound's lane: it keeps no order.
	Unordered bool
	// Head is that of an outbound's lane, without its body; of one that keeps no order, the oldest delivery that has been tried.
	Head *message.Delivery
}

// Reader answers questions. All methods are safe for concurrent use and see committed state alone.
type Reader interface {
	// Messages lists messages newest first, without bodies.
	Messages(ctx context.Context, q Query) ([]message.Message, error)
	// Timeline returns one message whole; ErrNotFound if there is none. Delivery bodies are included.
	Timeline(ctx context.Context, id message.ID) (Timeline, error)
	// Outline is Timeline without any body.
	Outline(ctx context.Context, id message.ID) (Timeline, error)
	// Counts returns how many messages stand at each disposition, computed from the rows; all six are there.
	Counts(ctx context.Context) (map[message.Disposition]int64, error)
	// Heads returns the head of each lane of the outbound (one for each inbound that has something undelivered there), and what
	// stands right behind it, up to most deliveries of a lane: reserved ones included, oldest place first, without bodies.
	Heads(ctx context.Context, outbound string, most int) ([]message.Delivery, error)
	// DeliveryBody returns what a delivery carries; nil for one that carries nothing, ErrNotFound if there is none.
	DeliveryBody(ctx context.Context, delivery int64) ([]byte, error)
	// Contains says whether a text stands in a body of a message: in its own, or in one that a delivery carries in its place. It
	// reads one body after the other, each once, up to the first that has it. ErrNotFound if there is no such message.
	Contains(ctx context.Context, id message.ID, text []byte) (Hit, error)
	// Purgeable counts the messages that a Purge would remove by and by.
	Purgeable(ctx context.Context, r PurgeRequest) (Purged, error)
	// Refusals lists what inbounds turned away, newest first, at most limit (0 means 50).
	Refusals(ctx context.Context, limit int) ([]message.Refusal, error)
	// DeadLetters lists parts that failed for good, of messages that were not resubmitted, and have been neither replayed nor dismissed.
	DeadLetters(ctx context.Context, q DeadLetters) ([]message.DeadLetter, error)
	// Holds lists what is held, by kind, name and inbound.
	Holds(ctx context.Context) ([]message.Hold, error)
	// Lanes lists the queues that hold something, inbounds first, then handlers, then the lanes of outbounds. It walks all
	// of them.
	Lanes(ctx context.Context) ([]Lane, error)
	Close() error
}

// Store is the queue as the engine uses it. All methods are safe for concurrent use. A method that writes returns nil
// only after its transaction is on disk (fsync). An error joined with ErrUnknown means the transaction may have
// happened; every other error means that it did not.
type Store interface {
	Reader

	// Receive commits one message and returns its id. Ids ascend in commit order. A duplicate (message.Incoming.Once) is not
	// received again: message.ErrDuplicate, with the id that it has, and that it came again is counted there.
	Receive(ctx context.Context, in message.Incoming) (message.ID, error)
	// ReceiveRouted is Receive, and with it Route for a message that no router has to look at, all or none. runs are those that were
	// made, one for each plan in their order, as NextRuns would return them but for the body. There are none, and
	// the message awaits its routing, if there are no plans, if messages that its inbound received before await theirs, or if
	// the inbound is held.
	ReceiveRouted(ctx context.Context, in message.Incoming, plans []Plan) (id message.ID, runs []message.Pending, err error)
	// ReceiveAll is Receive for several messages in one transaction: all or none of them, with ids that ascend in their order. A
	// duplicate, also of one before it in the list, is told in its place and is no error.
	ReceiveAll(ctx context.Context, all []message.Incoming) ([]message.Taken, error)
	// Refuse records what an inbound turned away.
	Refuse(ctx context.Context, r message.Refusal) error
	// Seen says whether a file with this identity (path, size, mtime and hash) was received already, and as what, which may be
	// purged by now.
	Seen(ctx context.Context, s message.Source) (message.ID, bool, error)

	// NextReceived returns the oldest message of the inbound that awaits routing, with its body; nil if none does.
	NextReceived(ctx context.Context, inbound string) (*message.Message, error)
	// Route commits the router's choice: the message becomes ROUTED with one pending run for each plan and one reserved
	// place for each of a plan's outbounds; with no plan it becomes UNROUTED. run describes the router's own run (its
	// State is RunSent; zero Attempts means that no router ran, and no router run is recorded).
	// ErrStale if the message does not await routing. A handler planned twice, or an outbound named twice by one plan, is
	// refused.
	Route(ctx context.Context, id message.ID, plans []Plan, run message.Outcome) error
	// Extend has the pending runs of the plan's handler have a place at each of its outbounds: a run that was planned when the handler
	// had others may send there as well. A new place stands in its lane where the run's first one would, or at the tail, if it
	// has none. Nobody may route or end runs meanwhile.
	Extend(ctx context.Context, p Plan) error
	// FailRoute ends a message whose router failed on it: ERROR, with the outcome's reason and fault.
	FailRoute(ctx context.Context, id message.ID, run message.Outcome) error

	// NextRuns returns the handler's oldest pending runs, oldest first: up to most of them, and behind the first only as many
	// as have no more than so many bytes of bodies with it. None but EndRun ends a run, and none comes before another that is
	// pending, so they stay what is to be made next.
	NextRuns(ctx context.Context, handler string, most int, bytes int64) ([]message.Pending, error)
	// NextSize is how large the body is, in bytes, that NextReceived of an inbound or the first of NextRuns of a handler has; 0
	// if there is none.
	NextSize(ctx context.Context, of message.Target) (int64, error)
	// DeliverySize is how large the body of a delivery is; 0 for one that carries nothing, ErrNotFound if there is none.
	DeliverySize(ctx context.Context, delivery int64) (int64, error)
	// EndRun commits a run's outcome: its sends fill its places in order (a second send to one outbound takes the place
	// right behind the first), places without a send are closed, and the message's disposition follows. A body equal
	// to the message's own is not stored again. Every send's To must be among the plan's outbounds.
	// ErrStale if the run is not pending.
	EndRun(ctx context.Context, run int64, out message.Outcome) error

	// KeepOrder says whether the deliveries of an outbound leave in order, from now on; until it is called they do.
	KeepOrder(ctx context.Context, outbound string, keep bool) error
	// Ready returns, of each lane of an outbound that keeps no order, the first limit deliveries that have a body, oldest place
	// first, without bodies. Of an outbound that keeps order it returns none: see Heads.
	Ready(ctx context.Context, outbound string, limit int) ([]message.Delivery, error)
	// StillReady says whether a delivery is ready, and how often it has been tried.
	StillReady(ctx context.Context, delivery int64) (attempts int, ready bool, err error)

	// Delivered ends a delivery that the receiver took, counting one attempt. ErrStale if it has ended. This and the two
	// below refuse a delivery that is still reserved.
	Delivered(ctx context.Context, delivery int64, r message.Receipt) error
	// Retry keeps a delivery at the head of its lane, to be tried again at next, counting one attempt. rejected
	// counts one more rejection. ErrStale if it has ended.
	Retry(ctx context.Context, delivery int64, reason string, rejected bool, next time.Time) error
	// Bury ends a delivery that was rejected for good, counting one attempt and one rejection: a dead letter, and
	// the message's disposition follows. ErrStale if it has ended.
	Bury(ctx context.Context, delivery int64, reason string) error
	// Park keeps a delivery that was rejected for good at the head of its lane and holds that lane, counting one attempt and
	// one rejection. ErrStale if it has ended.
	Park(ctx context.Context, delivery int64, reason string) error

	// Hold holds a target, if it is not held already. A zero Since means now.
	Hold(ctx context.Context, h message.Hold) error
	// Release ends the holds of a target, for an outbound without an Inbound also those of its lanes, and returns them; none
	// if nothing was held. Failures in a row count from zero again. With bury, the delivery that heads a lane which was held
	// becomes a dead letter, if it has been tried, given up by hand, for the reason of its last failure; of a lane that keeps no order, all that are
	// parked do, or else the oldest that has been tried.
	Release(ctx context.Context, t message.Target, bury bool) ([]message.Hold, error)
	// Replay makes a new attempt of each part of the message that failed for good: it is routed again, a handler runs
	// again, a body is delivered again, each at the tail of its lane. What was stays in the timeline, marked as replayed.
	// ErrNothingFailed if there is no such part; ErrUndeclared, and nothing happens, if one belongs to a name that names
	// does not have.
	Replay(ctx context.Context, id message.ID, names message.Names) (message.Replay, error)
	// Dismiss takes each part of the message that failed for good from the dead letters, with a reason, and returns how many. They
	// stay as they are otherwise, count for the disposition, and may be replayed. ErrNothingFailed if there is no such part.
	Dismiss(ctx context.Context, id message.ID, reason string) (int64, error)
	// Rename gives the unfinished work of each former name, its holds and its failures in a row to the name that stands for
	// it now, all or none, and returns how much work that was. What has ended keeps its name.
	Rename(ctx context.Context, names message.Names) (int64, error)

	// Purge takes one bounded step: it removes some of the messages that the request names, each with all that belongs to it,
	// or some of what nobody refers to, or gives space back. Others may write between two steps. Where it says More, there
	// is a next one.
	Purge(ctx context.Context, r PurgeRequest) (Purged, error)

	// Unfinished returns how many messages have no final disposition.
	Unfinished(ctx context.Context) (int64, error)
	// Waiting lists for whom unfinished work waits: inbounds with unrouted messages, handlers with pending runs, outbounds
	// with places that have not ended.
	Waiting(ctx context.Context) ([]Waiting, error)
}

// Waiting is unfinished work that belongs to one name.
type Waiting struct {
	Kind  string // message.KindInbound, KindHandler or KindOutbound
	Name  string
	Count int64
}
