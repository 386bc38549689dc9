// Package control is how a person at a shell reaches a running engine: HTTP with JSON over a socket in the file system.
//
// Who may connect: the user that the engine runs as, and root. The socket is 0600 in a folder that is 0700, and on Linux,
// macOS and FreeBSD the kernel is asked who connected. A worker runs as the same user, so on Linux a process below the
// engine is refused too: user code does not release what was held because of it. Windows tells nobody's credentials; there
// the folder's access list alone decides.
package control

import (
	"context"
	"errors"
	"time"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// Sentinel errors; test with errors.Is.
var (
	// ErrNoEngine is returned by Dial when nobody listens.
	ErrNoEngine = errors.New("no engine listens on the control socket")
	// ErrRefused is returned when the engine does not take orders from this process.
	ErrRefused = errors.New("the engine takes no orders from this process")
	// ErrStarting is returned for what an engine that starts does not do yet.
	ErrStarting = errors.New("the engine is starting; ask again in a moment")
	// ErrStopping is returned for what an engine that stops does not do any more.
	ErrStopping = errors.New("the engine is stopping")
)

// Commands is what can be asked of an engine. Package engine has it for one that runs and for the store of one that does
// not; Client asks one that runs in another process. All methods are safe for concurrent use.
type Commands interface {
	// Status says what waits, what is held and how fast it moves.
	Status(ctx context.Context) (Status, error)
	// Hold holds a target until it is released; store.ErrUndeclared if the configuration does not have it.
	Hold(ctx context.Context, t message.Target, reason string) error
	// Release ends the holds of a target, for an outbound also those of its lanes, and returns them. With bury, what was
	// rejected at the head of a held lane becomes a dead letter.
	Release(ctx context.Context, t message.Target, bury bool) ([]message.Hold, error)
	// Replay makes a new attempt of what failed of a message; errors as of store.Store.
	Replay(ctx context.Context, id message.ID) (message.Replay, error)
	// Dismiss takes what failed of a message from the dead letters and returns how many parts that were; errors as of store.Store.
	Dismiss(ctx context.Context, id message.ID, reason string) (int64, error)
	// Resubmit receives a message again, as a new one that is linked to it; with its own bytes if body is nil.
	Resubmit(ctx context.Context, id message.ID, body []byte) (message.ID, error)
	// Purge takes one step of removing what has ended before two times, zero for never; More says that another is worth while.
	Purge(ctx context.Context, done, dead time.Time) (store.Purged, error)
	// Reload reads the configuration and the code again and goes on with them, if all of it is good.
	Reload(ctx context.Context) (Reloaded, error)
}

// Status is what waits, what is held and how fast it moves.
type Status struct {
	Running bool           `json:"running"`
	Since   time.Time      `json:"since,omitzero"` // when the engine started
	Lanes   []Lane         `json:"lanes"`
	Holds   []message.Hold `json:"holds"`
}

// Lane is one queue: of an inbound, a handler, or an outbound and an inbound.
type Lane struct {
	message.Target
	Waiting int64     `json:"waiting"`
	Oldest  time.Time `json:"oldest,omitzero"` // when the oldest of the messages was received
	// Rate is how many messages went through in the last minute; zero if no engine runs.
	Rate int64 `json:"rate"`
	// Unordered, of an outbound's lane: it keeps no order.
	Unordered bool `json:"unordered,omitempty"`
	// Head is what an outbound's lane would send next, without its body; of one that keeps no order, the oldest that has been tried.
	Head *message.Delivery `json:"head,omitempty"`
}

// Reloaded is what a reload changed.
type Reloaded struct {
	Code    string   `json:"code"`    // hash of the code that runs now
	Changed []string `json:"changed"` // "inbound adt: ...", in the configuration's order; empty if nothing did
	Renamed int64    `json:"renamed"` // how much waiting work has a new name
}
