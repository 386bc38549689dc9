package pipeline

import (
	"context"

	"coppice.dev/coppice/internal/message"
)

// Room is the memory for the bodies that are worked on. It is not the pipeline's alone.
type Room interface {
	// Take takes n bytes, and waits for them until ctx ends.
	Take(ctx context.Context, n int64) error
	// Try takes n bytes if they are there, and says so.
	Try(n int64) bool
	// Count takes n bytes, also where there are none.
	Count(n int64)
	// Give gives n bytes back.
	Give(n int64)
}

// mostBody is about the largest body that there is: what a frame of a worker holds.
const mostBody = 64 << 20

// hand is what one step has of the room. A step takes it before it reads the body to work on, and has nothing while it waits,
// so that those who have something come to an end.
type hand struct {
	room Room // nil: any body will do
	held int64
}

// reach takes room for a body that is read next. How large that is is asked only where there is no room for any.
func (h *hand) reach(ctx context.Context, size func() (int64, error)) error {
	if h.room == nil {
		return nil
	}
	if h.room.Try(mostBody) {
		h.held = mostBody
		return nil
	}
	n, err := size()
	if err != nil || n == 0 {
		return err
	}
	if err := h.room.Take(ctx, n); err != nil {
		return err
	}
	h.held = n
	return nil
}

// ample says whether there is room for more than one body that is asked for; reach has been called, and nothing read yet.
func (h *hand) ample() bool { return h.room == nil || h.held == mostBody }

// has says what is in hand instead. If that is more it is not waited for, since it is there.
func (h *hand) has(n int64) {
	switch {
	case h.room == nil:
	case n > h.held:
		h.room.Count(n - h.held)
	case n < h.held:
		h.room.Give(h.held - n)
	}
	h.held = n
}

// sizeOf is how large a message and its sends are together.
func sizeOf(m *message.Message, sends []message.Send) int64 {
	n := 0
	if m != nil {
		n = len(m.Body)
	}
	for _, s := range sends {
		n += len(s.Body)
	}
	return int64(n)
}
