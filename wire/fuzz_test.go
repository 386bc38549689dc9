package wire

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"reflect"
	"testing"
	"testing/iotest"
)

// FuzzDecode feeds any bytes to Decode, as either side. It never panics, every error is a *Violation, and what it
// accepts comes back from Encode and Decode as it was.
func FuzzDecode(f *testing.F) {
	for _, file := range []string{"accept.json", "refuse.json", "binding.json"} {
		for _, v := range loadVectors(f, file) {
			if stream := unhex(f, v.Hex); len(stream) > lengthSize && len(stream) < 10_000 {
				f.Add(stream[lengthSize:])
			}
		}
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, side := range []Side{Engine, Worker} {
			m, err := Decode(body, side, DefaultCaps())
			if err != nil {
				var v *Violation
				if !errors.As(err, &v) || v.Name == "" {
					t.Fatalf("an error that is no violation: %v", err)
				}
				continue
			}
			again := reencode(t, m, side)
			if !reflect.DeepEqual(canonical(m), canonical(again)) {
				t.Fatalf("\n first %#v\nsecond %#v", m, again)
			}
		}
	})
}

// FuzzReadFrame feeds any stream to ReadFrame, whole and byte by byte, under small caps: both see the same, not a byte behind the
// frame is taken, and no more is allocated than the cap. Red with a bufio.Reader around r in ReadFrame, and without its check of
// the cap.
func FuzzReadFrame(f *testing.F) {
	for _, file := range []string{"accept.json", "refuse.json", "binding.json"} {
		for _, v := range loadVectors(f, file) {
			if stream := unhex(f, v.Hex); len(stream) < 10_000 {
				f.Add(stream, uint16(cmp.Or(v.Caps.Frame, 10_000)))
			}
		}
	}
	f.Fuzz(func(t *testing.T, stream []byte, frame uint16) {
		caps := DefaultCaps()
		caps.Frame = max(int(frame), lengthSize)
		r := bytes.NewReader(stream)
		body, err := ReadFrame(r, caps)
		slow, slowErr := ReadFrame(iotest.OneByteReader(bytes.NewReader(stream)), caps)
		if !bytes.Equal(body, slow) || !reflect.DeepEqual(err, slowErr) {
			t.Fatalf("whole %d bytes, %v; byte by byte %d bytes, %v", len(body), err, len(slow), slowErr)
		}
		taken := len(stream) - r.Len()
		switch {
		case err == nil && (taken != lengthSize+len(body) || len(body) > caps.Frame || cap(body) > caps.Frame):
			t.Fatalf("%d bytes taken for a frame of %d, the cap is %d", taken, len(body), caps.Frame)
		case err == io.EOF && len(stream) > 0, taken > lengthSize+caps.Frame:
			t.Fatalf("%d of %d bytes taken: %v", taken, len(stream), err)
		}
	})
}

func reencode(t *testing.T, m Message, side Side) Message {
	f, err := Encode(m, DefaultCaps())
	if err != nil {
		t.Fatalf("decoded, and not to be encoded: %v", err)
	}
	var buf bytes.Buffer
	if n, err := f.WriteTo(&buf); err != nil || n != int64(f.Len()) || n != int64(buf.Len()) {
		t.Fatalf("%d of %d bytes written: %v", n, f.Len(), err)
	}
	again, err := readAndDecode(buf.Bytes(), side, DefaultCaps())
	if err != nil {
		t.Fatalf("encoded, and not to be decoded: %v", err)
	}
	return again
}
