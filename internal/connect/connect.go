// Package connect is the seam between the pipeline and the world: what an inbound connection needs from the engine
// (Sink), and what the engine needs from a connection (Inbound, Outbound). The folders below hold one transport each;
// connecttest is the suite that all of them pass.
//
// An inbound acknowledges a message to its sender only after Sink.Receive has returned nil, that is, after the commit.
// It never tells a sender to skip a message that another attempt could deliver: where the engine could not commit, the
// sender gets no answer at all, or, in a protocol that has one, the answer to come again, and sends again.
package connect

import (
	"context"
	"errors"
	"time"

	"coppice.dev/coppice/internal/message"
)

// Sentinel errors; test with errors.Is.
var (
	// ErrUnknown is joined to the error of a Receive whose commit may or may not have happened.
	ErrUnknown = errors.New("outcome of the commit is unknown")
	// ErrBusy is returned by a Receive that turned the message away for now: low disk, back-pressure, a stop.
	ErrBusy = errors.New("not accepting messages now")
	// ErrClosed is returned by a Send after Close.
	ErrClosed = errors.New("connection is closed")
	// ErrNotListening is returned by a Serve without a Listen that worked before it.
	ErrNotListening = errors.New("not listening")
)

// StopWithin is how long after its context's end an Inbound's Serve may still take, whatever its peers do.
const StopWithin = 2 * time.Second

// Sink takes what inbound connections receive. All methods are safe for concurrent use and return soon after ctx ends.
type Sink interface {
	// Receive commits one message. It neither changes nor keeps in.Body after it returned.
	//
	// A nil error means committed and on disk: acknowledge. An error that is ErrUnknown means that the commit may have
	// happened; ErrBusy, that nothing was tried; any other error, that nothing was committed. On the first the sender
	// gets no answer, on the others none, or the one to come again.
	Receive(ctx context.Context, in message.Incoming) (message.ID, error)

	// ReceiveAll is Receive for several messages of one inbound, which are committed all or none, in their order.
	ReceiveAll(ctx context.Context, all []message.Incoming) ([]message.ID, error)

	// Refuse records a message that was turned away for good. After an error the sender is not told of the refusal,
	// because nobody could read of it afterwards.
	Refuse(ctx context.Context, r message.Refusal) error

	// Seen says whether a message from exactly this source (path, size, time and hash) was committed, and as which.
	Seen(ctx context.Context, src message.Source) (message.ID, bool, error)
}

// Inbound receives messages and hands them to a Sink. Listen and Serve are called once each, in this order; Addr is safe
// for concurrent use.
type Inbound interface {
	// Listen takes the address or the folder, so that its errors are known before anything runs. What it took is
	// released by Serve, or by a cancelled Serve where nothing else is wanted.
	Listen(ctx context.Context) error

	// Serve receives until ctx is done, finishes what it is committing, and returns nil within StopWithin, whatever its
	// peers do. Before that it returns only an error that ends the connection for good.
	Serve(ctx context.Context) error

	// Addr is where it listens: "127.0.0.1:6661" with the real port, or a folder's absolute path. Before Listen it is
	// what was configured.
	Addr() string
}

// Outbound delivers messages to one receiver.
type Outbound interface {
	// Send delivers d.Body and waits for the receiver to take it. It neither changes nor keeps the body. A
	// *message.Rejection means that the receiver turned it down; every other error means that it may or may not have
	// arrived and is to be sent again. It returns soon after ctx ends. It is safe for concurrent use; on one connection
	// that cannot tell answers apart, sends follow one another.
	Send(ctx context.Context, d message.Delivery) (message.Receipt, error)

	// Close ends the connections and every Send in progress. It may be called more than once.
	Close() error
}

// Grace returns a context with ctx's values that ends d after ctx has ended: for a commit that a stop should let finish.
// Call the function to release it.
func Grace(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			cancel()
		case <-late.Done():
		}
	})
	return late, func() { stop(); cancel() }
}

// UntilClosed returns a context that ends with ctx, and with closed. Call the function to release it.
func UntilClosed(ctx context.Context, closed <-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-closed:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}
