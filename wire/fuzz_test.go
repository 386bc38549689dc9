package wire

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
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
