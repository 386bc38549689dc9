package store

import "time"

// PurgeRequest says what may go from a store, by when it ended. A zero time keeps that kind for ever. What has not ended is
// never purged, however old it is.
type PurgeRequest struct {
	DoneBefore time.Time // PROCESSED, FILTERED and UNROUTED
	DeadBefore time.Time // ERROR
	// Lies says whether a file still lies where an inbound found it. What is known of such a file is kept, or it would be
	// received again. Nil: none does.
	Lies func(path string) bool
}

// Earlier is when what belongs to no message has its time, such as a refusal; zero: never.
func (r PurgeRequest) Earlier() time.Time {
	switch {
	case r.DoneBefore.IsZero():
		return r.DeadBefore
	case r.DeadBefore.IsZero() || r.DoneBefore.Before(r.DeadBefore):
		return r.DoneBefore
	}
	return r.DeadBefore
}

// Purged is what went, or could go.
type Purged struct {
	Messages int64
	Bytes    int64 // of these messages' own bodies
	More     bool  // there is more to do: purge again
}
