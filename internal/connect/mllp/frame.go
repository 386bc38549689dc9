package mllp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"coppice.dev/coppice/internal/room"
)

// An MLLP block, and the only three bytes that mean anything to it:
//
//	<VT> body ... <FS><CR>
//	0x0b          0x1c 0x0d
//
// There is no length and no escape: a body that holds FS CR cannot be sent. FS without CR belongs to the body, and so
// does VT: the block end is the pair, and a body is kept byte for byte.
const (
	blockStart = 0x0b
	blockEnd   = 0x1c
	carriage   = 0x0d
)

// maxStray caps the filling bytes that are skipped between two blocks.
const maxStray = 4096

// readBuffer is what one connection reads ahead, in bytes; more than this waits in the kernel.
const readBuffer = 16 << 10

// Errors of the frame reader, beside those of the connection itself.
var (
	errStray    = errors.New("too many filling bytes between blocks")
	errUnframed = errors.New("bytes outside of a block")
	errTooLarge = errors.New("body is over the limit")
)

// frame returns body as a block. The body must not hold the block end; see framable.
func frame(body []byte) []byte {
	block := make([]byte, 0, len(body)+3)
	block = append(block, blockStart)
	block = append(block, body...)
	return append(block, blockEnd, carriage)
}

// framable says whether a receiver can find body's end where it is.
func framable(body []byte) bool {
	return !bytes.Contains(body, []byte{blockEnd, carriage})
}

// frameReader takes blocks from a stream, however it is cut.
type frameReader struct {
	in  *bufio.Reader
	max int64 // bytes of one body
}

func newFrameReader(in io.Reader, max int64) *frameReader {
	return &frameReader{in: bufio.NewReaderSize(in, readBuffer), max: max}
}

// begin skips what fills the space between blocks (CR, LF, space, NUL) and the block start. Anything else is
// errUnframed: an unframed message that was skipped would be lost without a trace. io.EOF means that the stream ended
// between two blocks.
func (r *frameReader) begin() error {
	for stray := 0; ; stray++ {
		c, err := r.in.ReadByte()
		if err != nil {
			return err
		}
		switch c {
		case blockStart:
			return nil
		case '\r', '\n', ' ', 0:
		default:
			return fmt.Errorf("%w: 0x%02x where a block must start", errUnframed, c)
		}
		if stray >= maxStray {
			return errStray
		}
	}
}

// slack is how much of a body may be read beyond its limit before that is seen, in bytes.
const slack = readBuffer + 1

// body reads up to the block end and returns what stands before it; the caller owns it. With an error it returns the
// part that was read: no more than max bytes and one read buffer. It grows by what has arrived, never by what is promised.
func (r *frameReader) body() ([]byte, error) { return r.bodyIn(new(room.Body)) }

// bodyIn is body in memory of somebody's; its errors are also those of the memory.
func (r *frameReader) bodyIn(in *room.Body) ([]byte, error) {
	for {
		chunk, err := r.in.ReadSlice(blockEnd)
		if full := in.Append(chunk); full != nil {
			return in.Bytes(), full
		}
		switch {
		case err == nil: // the body ends in FS
		case errors.Is(err, bufio.ErrBufferFull):
			if in.Len() > r.max {
				return in.Bytes(), errTooLarge
			}
			continue
		default:
			return in.Bytes(), cutShort(err)
		}
		if in.Len()-1 > r.max {
			return in.Bytes(), errTooLarge
		}
		next, err := r.in.ReadByte()
		if err != nil {
			return in.Bytes(), cutShort(err)
		}
		if next == carriage {
			return in.Bytes()[:in.Len()-1], nil
		}
		if err := r.in.UnreadByte(); err != nil {
			return in.Bytes(), err
		}
	}
}

// cutShort says of an end of the stream that it was none of a body.
func cutShort(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
