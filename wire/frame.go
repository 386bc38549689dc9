// Package wire is all that the two sides of the pipe between engine and worker share: frames, the messages in them,
// and the rules by which either side refuses what the other sends. protocol/PROTOCOL.md is its specification; names
// here and there are the same.
//
// Both sides are hostile to each other by contract. Decoding never executes anything, never allocates by a number
// that the peer sent before that number was held against a cap, and names no type of the host's language. Whatever is
// not allowed is refused as a *Violation.
//
// The package imports the standard library alone. Its functions keep no state but spare buffers, and are safe for concurrent
// use; a Frame or a byte slice belongs to whoever holds it.
package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Caps bounds what is accepted from a peer, and what is sent to one.
type Caps struct {
	Frame    int // bytes of a frame behind its length; at least 4
	Header   int // bytes of a header
	Segments int // segments of a frame
	Depth    int // nesting of objects and arrays in a header
}

// DefaultCaps are the caps of the protocol's version 1. An engine may lower or raise Frame and tells its workers so in
// the boot message; the other three are fixed.
func DefaultCaps() Caps {
	return Caps{Frame: 64 << 20, Header: 4 << 20, Segments: 65536, Depth: 256}
}

// lengthSize is the size of every length on the wire: an unsigned 32-bit number, big-endian.
const lengthSize = 4

// firstRead is how much of a frame is allocated before any of it has arrived: a body of 64 KiB and its header. A frame grows
// from there as its bytes come, so that a peer that promises 64 MiB and sends nothing costs 72 KiB, and one that sends a part
// at most seven times that.
const firstRead = 72 << 10

// ReadFrame reads one frame and returns its body: header length, header, segments. It reads not a byte more than the
// frame. io.EOF means that the stream ended before the frame's first byte; FrameCut, that it ended inside; FrameCap
// and FrameShort refuse a length before the body is read. Any other error is the reader's own.
func ReadFrame(r io.Reader, caps Caps) ([]byte, error) {
	var length [lengthSize]byte
	if n, err := io.ReadFull(r, length[:]); err != nil {
		return nil, cut(err, n > 0)
	}
	size := int64(binary.BigEndian.Uint32(length[:]))
	switch {
	case size > int64(caps.Frame):
		return nil, violation(FrameCap, "a frame of %d bytes, the cap is %d%s", size, caps.Frame, printed(length))
	case size < lengthSize:
		return nil, violation(FrameShort, "a frame of %d bytes cannot hold a header", size)
	}
	return readBody(r, size)
}

// outgrown are the buffers of frames that were larger, one pool for each step by which a frame grows.
var outgrown [6]sync.Pool

// growing is the memory of a frame whose bytes are not all there.
type growing struct{ b []byte }

// readBody reads size bytes. The memory grows by five: of a body of 1 MiB and its header a third is copied.
func readBody(r io.Reader, size int64) ([]byte, error) {
	var have []byte
	step := 0
	for room := int64(firstRead); room < size && step < len(outgrown); room, step = room*5, step+1 {
		g, _ := outgrown[step].Get().(*growing)
		if g == nil {
			g = &growing{make([]byte, room)}
		}
		n := copy(g.b, have)
		if _, err := io.ReadFull(r, g.b[n:]); err != nil {
			return nil, cut(err, true)
		}
		defer outgrown[step].Put(g)
		have = g.b
	}
	body := make([]byte, size)
	n := copy(body, have)
	if _, err := io.ReadFull(r, body[n:]); err != nil {
		return nil, cut(err, true)
	}
	return body, nil
}

// printed says of a length that it is text, if it is: somebody prints where frames are due.
func printed(length [lengthSize]byte) string {
	for _, b := range length {
		if (b < ' ' || b > '~') && b != '\n' && b != '\r' && b != '\t' {
			return ""
		}
	}
	return fmt.Sprintf("; its length is the text %q: something prints on the protocol's descriptor", length)
}

// cut turns the end of the stream into a violation when it came inside a frame.
func cut(err error, inside bool) error {
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	if inside {
		return violation(FrameCut, "the stream ended inside a frame")
	}
	return io.EOF
}

// Frame is an encoded message, ready to be written. Its segments are the caller's slices, not copies.
type Frame struct {
	head     []byte // frame length, header length, header
	segments [][]byte
	size     int // all bytes on the wire
}

// Len is the number of bytes that WriteTo writes.
func (f *Frame) Len() int { return f.size }

// Header is the frame's header. It is not to be changed.
func (f *Frame) Header() []byte { return f.head[2*lengthSize:] }

// WriteTo writes the frame. Up to 72 KiB go out in one Write, so that an ordinary message costs one system call; of a larger
// one the reader's first look finds so much.
func (f *Frame) WriteTo(w io.Writer) (int64, error) {
	s := senders.Get().(*sender)
	defer s.rest()
	s.to, s.taken = w, 0
	s.gather.Write(f.head) // what goes wrong is told by Flush
	for _, segment := range f.segments {
		s.gather.Write(binary.BigEndian.AppendUint32(s.gather.AvailableBuffer(), uint32(len(segment))))
		s.gather.Write(segment)
	}
	err := s.gather.Flush()
	return s.taken, err
}

// sender puts the pieces of a frame together, and counts what the writer behind it has taken.
type sender struct {
	gather *bufio.Writer // writes to this sender
	to     io.Writer
	taken  int64
}

// senders are those that nobody uses just now: a frame in memory of its own would cost more than its system call.
var senders = sync.Pool{New: func() any {
	s := &sender{}
	s.gather = bufio.NewWriterSize(s, firstRead)
	return s
}}

func (s *sender) Write(b []byte) (int, error) {
	n, err := s.to.Write(b)
	s.taken += int64(n)
	return n, err
}

// rest gives the sender back, without anything of its last frame but the bytes.
func (s *sender) rest() {
	s.to = nil
	s.gather.Reset(s)
	senders.Put(s)
}

// newFrame puts a header, behind room for its lengths, and its segments together, within the caps that the reader will apply.
func newFrame(head []byte, segments [][]byte, caps Caps) (*Frame, error) {
	header := len(head) - 2*lengthSize
	if header > caps.Header {
		return nil, violation(HeaderCap, "a header of %d bytes, the cap is %d", header, caps.Header)
	}
	if len(segments) > caps.Segments {
		return nil, violation(SegmentCount, "%d segments, the cap is %d", len(segments), caps.Segments)
	}
	size := lengthSize + header
	for _, s := range segments {
		size += lengthSize + len(s)
		if size > caps.Frame {
			return nil, violation(FrameCap, "a frame of over %d bytes", caps.Frame)
		}
	}
	binary.BigEndian.PutUint32(head, uint32(size))
	binary.BigEndian.PutUint32(head[lengthSize:], uint32(header))
	return &Frame{head: head, segments: segments, size: lengthSize + size}, nil
}

// Header is the header of a frame's body, or as much as there is of it; it points into body. It is for showing a frame that
// Decode may refuse.
func Header(body []byte) []byte {
	if len(body) < lengthSize {
		return nil
	}
	rest := body[lengthSize:]
	return rest[:min(int64(binary.BigEndian.Uint32(body)), int64(len(rest)))]
}

// split takes a frame's body apart. The slices that it returns point into body.
func split(body []byte, caps Caps) (header []byte, segments [][]byte, err error) {
	if len(body) < lengthSize {
		return nil, nil, violation(FrameShort, "a frame of %d bytes cannot hold a header", len(body))
	}
	size := int64(binary.BigEndian.Uint32(body))
	rest := body[lengthSize:]
	switch {
	case size > int64(caps.Header):
		return nil, nil, violation(HeaderCap, "a header of %d bytes, the cap is %d", size, caps.Header)
	case size > int64(len(rest)):
		return nil, nil, violation(HeaderCut, "a header of %d bytes in a frame with %d left", size, len(rest))
	}
	header, rest = rest[:size], rest[size:]
	for len(rest) > 0 {
		if len(segments) == caps.Segments {
			return nil, nil, violation(SegmentCount, "more than %d segments", caps.Segments)
		}
		if len(rest) < lengthSize {
			return nil, nil, violation(SegmentCut, "%d bytes left, too few for a length", len(rest))
		}
		size := int64(binary.BigEndian.Uint32(rest))
		rest = rest[lengthSize:]
		if size > int64(len(rest)) {
			return nil, nil, violation(SegmentCut, "a segment of %d bytes in a frame with %d left", size, len(rest))
		}
		segments = append(segments, rest[:size:size])
		rest = rest[size:]
	}
	return header, segments, nil
}
