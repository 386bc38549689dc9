package wire

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
)

// A peer that promises 64 MiB costs what it sends, not what it promises: the buffer is at most five times what arrived,
// and with those that it outgrew at most seven times. Red with make([]byte, size) in ReadFrame, and with a buffer
// that grows by sixteen.
func TestReadFrameAllocatesWhatArrived(t *testing.T) {
	for _, arrived := range []int{0, 10, 64 << 10, 300 << 10, 320 << 10, 1<<20 + 1} {
		stream := append([]byte{4, 0, 0, 0}, make([]byte, arrived)...)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		_, err := ReadFrame(bytes.NewReader(stream), DefaultCaps())
		runtime.ReadMemStats(&after)
		if violationOf(t, err) != FrameCut {
			t.Fatalf("%d bytes: %v, want %s", arrived, err, FrameCut)
		}
		if used, most := after.TotalAlloc-before.TotalAlloc, uint64(7*arrived+2*firstRead); used > most {
			t.Errorf("%d bytes arrived, %d were allocated, the most is %d", arrived, used, most)
		}
	}
}

// Red with the check of caps.Frame behind the allocation; a length over the cap costs its error.
func TestReadFrameRefusesBeforeReading(t *testing.T) {
	r := bytes.NewReader(append([]byte{0xff, 0xff, 0xff, 0xff}, "rest"...))
	if _, err := ReadFrame(r, DefaultCaps()); violationOf(t, err) != FrameCap {
		t.Fatalf("%v, want %s", err, FrameCap)
	}
	if r.Len() != len("rest") {
		t.Errorf("%d bytes are left of a refused frame, want all of its body", r.Len())
	}
}

// However the bytes arrive, the frame is the same. Red with r.Read for io.ReadFull.
func TestReadFrameInPieces(t *testing.T) {
	f, err := Encode(&Result{Binding: Binding{"5f3a9c0e1b2d4c6f8091a2b3c4d5e6f7", PhaseHandle, "admit"},
		Sends: []Send{{"emr", bytes.Repeat([]byte("x"), 200_000)}}}, DefaultCaps())
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	if _, err := f.WriteTo(&buf); err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]io.Reader{"one byte": iotest.OneByteReader(bytes.NewReader(buf.Bytes())),
		"half": iotest.HalfReader(bytes.NewReader(buf.Bytes())), "data with EOF": iotest.DataErrReader(bytes.NewReader(buf.Bytes()))} {
		body, err := ReadFrame(r, DefaultCaps())
		if err != nil || !bytes.Equal(body, buf.Bytes()[lengthSize:]) {
			t.Errorf("%s: %d bytes, %v", name, len(body), err)
		}
	}
}

// A frame that has been read is its reader's, whatever is read or written next: spare buffers are not among what is handed out.
// Red with a body of the size of a step that is put among the outgrown.
func TestReadFrameOwnsItsBytes(t *testing.T) {
	var bodies [][]byte
	sizes := []int{10, firstRead - 1, firstRead, firstRead + 1, 5 * firstRead, 5*firstRead + 1, 25*firstRead + 1, 3 << 20}
	for i := range 3 * len(sizes) {
		size := sizes[i%len(sizes)] - 8 // the two lengths of a segment and of the header
		f, err := newFrame(make([]byte, 2*lengthSize), [][]byte{bytes.Repeat([]byte{byte(i + 1)}, size)}, DefaultCaps())
		if err != nil {
			t.Fatal(err)
		}
		var buf bytes.Buffer
		if n, err := f.WriteTo(&buf); err != nil || n != int64(f.Len()) || buf.Len() != f.Len() {
			t.Fatalf("%d bytes written of %d, %v", n, f.Len(), err)
		}
		body, err := ReadFrame(&buf, DefaultCaps())
		if err != nil {
			t.Fatal(err)
		}
		bodies = append(bodies, body)
	}
	for i, body := range bodies {
		if want := bytes.Repeat([]byte{byte(i + 1)}, sizes[i%len(sizes)]-8); !bytes.Equal(body[8:], want) {
			t.Errorf("frame %d of %d bytes has changed since it was read", i, len(body))
		}
	}
}

// What a failing writer has taken is counted, and the next frame does not see its error. Red without sender.rest's Reset.
func TestWriteToFails(t *testing.T) {
	f, err := newFrame(make([]byte, 2*lengthSize), [][]byte{make([]byte, 200_000)}, DefaultCaps())
	if err != nil {
		t.Fatal(err)
	}
	for _, most := range []int{0, 1, firstRead, firstRead + 1, 200_000} {
		r, w := io.Pipe()
		go func() {
			io.CopyN(io.Discard, r, int64(most))
			r.Close()
		}()
		if n, err := f.WriteTo(w); n != int64(most) || !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("%d bytes written of a writer that takes %d, %v", n, most, err)
		}
		var buf bytes.Buffer
		if n, err := f.WriteTo(&buf); n != int64(f.Len()) || err != nil {
			t.Errorf("after an error: %d bytes of %d, %v", n, f.Len(), err)
		}
	}
}

// A reader's own error is no violation of the peer's. Red with cut ignoring which error it got.
func TestReadFrameKeepsTheReadersError(t *testing.T) {
	broken := errors.New("broken")
	for _, stream := range [][]byte{nil, {0}, {0, 0, 0, 9, 1}} {
		_, err := ReadFrame(io.MultiReader(bytes.NewReader(stream), iotest.ErrReader(broken)), DefaultCaps())
		if !errors.Is(err, broken) {
			t.Errorf("behind %d bytes: %v, want the reader's error", len(stream), err)
		}
	}
}

// What the reader would refuse is refused before it is written. Red with newFrame's checks taken out.
func TestEncodeKeepsTheCaps(t *testing.T) {
	id := Binding{"5f3a9c0e1b2d4c6f8091a2b3c4d5e6f7", PhaseHandle, "admit"}
	two := &Result{Binding: id, Sends: []Send{{"a", []byte("1")}, {"b", []byte("2")}}}
	f, err := Encode(two, DefaultCaps())
	if err != nil {
		t.Fatal(err)
	}
	size := f.Len() - lengthSize
	for _, c := range []struct {
		change func(*Caps)
		want   string
	}{
		{func(c *Caps) { c.Frame = size }, ""},
		{func(c *Caps) { c.Frame = size - 1 }, FrameCap},
		{func(c *Caps) { c.Header = 20 }, HeaderCap},
		{func(c *Caps) { c.Segments = 1 }, SegmentCount},
	} {
		caps := DefaultCaps()
		c.change(&caps)
		_, err := Encode(two, caps)
		if got := violationOf(t, err); got != c.want {
			t.Errorf("%+v: %v, want %q", caps, err, c.want)
		}
	}
	deep := any("x")
	for range 300 {
		deep = []any{deep}
	}
	if _, err := Encode(&Boot{Settings: map[string]any{"a": deep}}, DefaultCaps()); violationOf(t, err) != JSONDepth {
		t.Errorf("settings of 300 levels: %v, want %s", err, JSONDepth)
	}
	if _, err := Encode(&Boot{Settings: map[string]any{"a": struct{}{}}}, DefaultCaps()); err == nil {
		t.Error("a setting of a type that the wire does not know was encoded")
	}
}

// TestTextForALength: a length that is text is shown, quoted; any other is a number alone. Red without printed in ReadFrame, and for
// the last three without its look at the bytes.
func TestTextForALength(t *testing.T) {
	for text, want := range map[string]string{
		"Traceback": `"Trac"`, "\nFoo\n": `"\nFoo"`, `"a\\b`: `"\"a\\\\"`, "~~~~": `"~~~~"`,
		"\xff\xff\xff\xff": "", "\x1b[31m": "", "Tr\x80c": "", "caf\xc3\xa9": "",
	} {
		_, err := ReadFrame(strings.NewReader(text), DefaultCaps())
		if violationOf(t, err) != FrameCap {
			t.Fatalf("%q: %v", text, err)
		}
		if shown := strings.Contains(err.Error(), "is the text"); shown != (want != "") || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %s", text, err, want)
		}
	}
}
