package room

import "time"

// firstStep is the room that a body begins with, in bytes. It doubles when that is full: it grows by what has arrived,
// never by what is promised.
const firstStep = 4 << 10

// Body is a body that arrives, in memory of a room. The zero value is one without a room. It is not safe for concurrent use.
type Body struct {
	room  *Room
	limit int64
	until time.Time
	gone  <-chan struct{}
	bytes []byte
	held  int64 // of the room
}

// Body returns an empty body, which grows up to limit bytes. It waits for room until a time, and no longer than until gone is
// closed. The caller frees it in the end.
func (r *Room) Body(limit int64, until time.Time, gone <-chan struct{}) *Body {
	return &Body{room: r, limit: limit, until: until, gone: gone}
}

// Bytes is what arrived so far. It is the body's: nobody uses it after Free.
func (b *Body) Bytes() []byte { return b.bytes }

// Len is how many bytes arrived so far.
func (b *Body) Len() int64 { return int64(len(b.bytes)) }

// Space returns room for more bytes, empty only at the body's limit, for Filled to make a part of the body.
func (b *Body) Space() ([]byte, error) {
	if len(b.bytes) == cap(b.bytes) {
		size := max(2*int64(cap(b.bytes)), firstStep)
		if b.room != nil {
			size = min(size, b.limit)
		}
		if err := b.Reserve(size); err != nil {
			return nil, err
		}
	}
	return b.bytes[len(b.bytes):cap(b.bytes)], nil
}

// Filled says that so many bytes of what Space returned are the body's.
func (b *Body) Filled(n int) { b.bytes = b.bytes[:len(b.bytes)+n] }

// Append adds bytes, which it copies. A body that has reached its limit takes no more: ErrFull.
func (b *Body) Append(p []byte) error {
	for len(p) > 0 {
		space, err := b.Space()
		if err != nil {
			return err
		}
		if len(space) == 0 {
			return ErrFull
		}
		n := copy(space, p)
		b.Filled(n)
		p = p[n:]
	}
	return nil
}

// Reserve makes room for a body of size bytes altogether.
func (b *Body) Reserve(size int64) error {
	if err := b.take(min(size, Beginning)); err != nil {
		return err
	}
	if err := b.take(size); err != nil {
		return err
	}
	if size > int64(cap(b.bytes)) {
		b.bytes = append(make([]byte, 0, size), b.bytes...)
	}
	return nil
}

// take has the room hold size bytes for the body. What crosses the end of the beginning is taken in two steps.
func (b *Body) take(size int64) error {
	n := size - b.held
	if b.room == nil || n <= 0 {
		return nil
	}
	q, take := &b.room.begins, func() bool { return b.room.begin(n) }
	if b.held >= Beginning {
		q, take = &b.room.grows, func() bool { return b.room.grow(b, n) }
	}
	if err := b.room.wait(q, b, take, b.until, b.gone); err != nil {
		return err
	}
	b.held = size
	return nil
}

// Free gives the room back. It may be called more than once.
func (b *Body) Free() {
	b.bytes = nil
	if b.room == nil {
		return
	}
	b.room.mu.Lock()
	defer b.room.mu.Unlock()
	b.room.leave(b)
	b.held = 0
}
