package mllp

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"coppice.dev/coppice/internal/connect/connecttest"
)

// pieces is a stream that arrives in these pieces.
type pieces [][]byte

func (p *pieces) Read(b []byte) (int, error) {
	if len(*p) == 0 {
		return 0, io.EOF
	}
	n := copy(b, (*p)[0])
	if (*p)[0] = (*p)[0][n:]; len((*p)[0]) == 0 {
		*p = (*p)[1:]
	}
	return n, nil
}

// readAll takes blocks until the stream ends.
func readAll(in io.Reader, max int64) (bodies [][]byte, err error) {
	r := newFrameReader(in, max)
	for {
		if err := r.begin(); err != nil {
			if errors.Is(err, io.EOF) {
				return bodies, nil
			}
			return bodies, err
		}
		body, err := r.body()
		if err != nil {
			return bodies, err
		}
		bodies = append(bodies, body)
	}
}

// Blocks come out whole wherever the stream is cut; rapid prints the seed of a failure. Red with the UnreadByte left out:
// FS FS CR then ends no block.
func TestFrameAnySplit(t *testing.T) {
	body := rapid.SliceOfN(rapid.OneOf(rapid.Byte(), rapid.SampledFrom([]byte{blockStart, blockEnd, carriage, '\n', 0})), 0, 40).
		Filter(framable)
	stray := rapid.SliceOfN(rapid.SampledFrom([]byte("\r\n \x00")), 0, 4)
	rapid.Check(t, func(t *rapid.T) {
		var stream []byte
		var want [][]byte
		for range rapid.IntRange(0, 10).Draw(t, "blocks") {
			b := body.Draw(t, "body")
			want = append(want, b)
			stream = append(append(stream, stray.Draw(t, "stray")...), frame(b)...)
		}
		var cut pieces
		for len(stream) > 0 {
			n := rapid.IntRange(1, len(stream)).Draw(t, "piece")
			cut, stream = append(cut, stream[:n]), stream[n:]
		}
		got, err := readAll(&cut, 40)
		if err != nil || len(got) != len(want) {
			t.Fatalf("%d blocks, %v; want %d", len(got), err, len(want))
		}
		for i := range want {
			if !bytes.Equal(got[i], want[i]) {
				t.Fatalf("block %d is %q, want %q", i, got[i], want[i])
			}
		}
	})
}

func TestFrameErrors(t *testing.T) {
	long := bytes.Repeat([]byte("x"), 5*readBuffer)
	for name, tc := range map[string]struct {
		stream string
		max    int64
		want   error
	}{
		"at the limit":         {"\x0bxxxx\x1c\r", 4, nil},
		"over the limit":       {"\x0bxxxxx\x1c\r", 4, errTooLarge},
		"over, with FS":        {"\x0bxxx\x1cx\x1c\r", 4, errTooLarge},
		"at the limit, FS":     {"\x0bxxx\x1c\x1c\r", 4, nil},
		"far over, no end":     {"\x0b" + string(long), int64(len(long)) / 2, errTooLarge}, // red without the check at a full buffer
		"no end":               {"\x0bxxxx", 4, io.ErrUnexpectedEOF},
		"half an end":          {"\x0bxxxx\x1c", 4, io.ErrUnexpectedEOF},
		"unframed":             {"MSH|", 4, errUnframed},
		"unframed after block": {"\x0bx\x1c\r MSH|", 4, errUnframed},
		"most stray bytes":     {string(make([]byte, maxStray)) + "\x0bx\x1c\r", 4, nil},
		"too many stray bytes": {string(make([]byte, maxStray+1)) + "\x0bx\x1c\r", 4, errStray}, // red without the cap
		"two bare ends":        {"\x0bx\x1c\x0by\x1c\r", 4, nil},
		"no blocks":            {"", 4, nil},
	} {
		if _, err := readAll(bytes.NewReader([]byte(tc.stream)), tc.max); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
}

// A body over the limit is given up before it is in memory. Red without the check at a full buffer.
func TestFrameOverLimitIsNotBuffered(t *testing.T) {
	endless := io.MultiReader(bytes.NewReader([]byte{blockStart}), endless{})
	r := newFrameReader(endless, 100_000)
	if err := r.begin(); err != nil {
		t.Fatal(err)
	}
	body, err := r.body()
	if !errors.Is(err, errTooLarge) || len(body) > 100_000+readBuffer {
		t.Errorf("%d bytes, %v; want at most the limit and one buffer", len(body), err)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'x'
	}
	return min(len(b), 64<<20), nil
}

func TestFrameLoadByteByByte(t *testing.T) {
	load := connecttest.Load(t)
	var stream []byte
	for _, body := range load {
		stream = append(stream, frame(body)...)
	}
	got, err := readAll(iotest.OneByteReader(bytes.NewReader(stream)), DefaultMaxMessage)
	if err != nil || len(got) != len(load) {
		t.Fatalf("%d blocks, %v; want %d", len(got), err, len(load))
	}
	for i := range load {
		if !bytes.Equal(got[i], load[i]) {
			t.Fatalf("message %d changed", i)
		}
	}
}

// Whatever a stream holds, reading it whole and byte by byte gives the same bodies and error, none over the limit, and
// each can be framed again.
func FuzzFrame(f *testing.F) {
	for _, seed := range []string{"", "\x0b\x1c\r", "\r\n\x0bMSH|\x1c\x1c\r\x00\x0bx", "\x0b\x1c\x1c\r\x0b"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		const max = 16
		whole, err := readAll(bytes.NewReader(stream), max)
		slow, slowErr := readAll(iotest.OneByteReader(bytes.NewReader(stream)), max)
		if len(whole) != len(slow) || (err == nil) != (slowErr == nil) {
			t.Fatalf("%q, %v whole; %q, %v byte by byte", whole, err, slow, slowErr)
		}
		for i := range whole {
			if !bytes.Equal(whole[i], slow[i]) || len(whole[i]) > max || !framable(whole[i]) {
				t.Fatalf("block %d: %q whole, %q byte by byte", i, whole[i], slow[i])
			}
		}
	})
}
