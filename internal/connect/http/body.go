package http

import (
	"errors"
	"io"
	"sync"
)

// errNoRoom is returned for a body for which there is no memory now.
var errNoRoom = errors.New("bodies of other requests fill the memory that there is for them")

// firstRead is the room that a body begins with, in bytes. It grows by what has arrived, never by what is promised.
const firstRead = 32 << 10

// budget is the memory that the bodies of all requests share.
type budget struct {
	mu   sync.Mutex
	left int64 // bytes
}

func (b *budget) take(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > b.left {
		return false
	}
	b.left -= n
	return true
}

func (b *budget) give(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += n
}

// readBody reads in to its end, which is at most limit bytes away, or fails there as in does. With an error it returns what
// was read. release gives the room back, once nobody uses the body any more; it has to be called in any case.
func readBody(in io.Reader, limit int64, room *budget) (body []byte, release func(), err error) {
	var held int64
	release = func() { room.give(held) }
	for {
		if len(body) == cap(body) {
			size := min(max(2*int64(cap(body)), firstRead), limit+1) // one more, to see the end behind the last
			if !room.take(size - held) {
				return body, release, errNoRoom
			}
			held = size
			body = append(make([]byte, 0, size), body...)
		}
		n, err := in.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if errors.Is(err, io.EOF) {
			return body, release, nil
		}
		if err != nil {
			return body, release, err
		}
	}
}
