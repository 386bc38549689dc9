package wire

import (
	"bytes"
	"encoding/json"
	"io"
	"testing"
)

// jsonHeader is a request's header as encoding/json reads it: without unknown fields, but with duplicates.
type jsonHeader struct {
	Type, ID, Phase, Name, Inbound, MsgType, Control, Received string
	Message, Attempt, Body                                     int64
	Timeout                                                    int64 `json:"timeout_ms"`
}

// BenchmarkWire measures one request with a body of 1 KiB each way, without a pipe, beside encoding/json on the header
// alone: the floor that the codec is there to go below.
func BenchmarkWire(b *testing.B) {
	request := &Request{Binding: Binding{"5f3a9c0e1b2d4c6f8091a2b3c4d5e6f7", PhaseHandle, "admit"}, Message: 7, Inbound: "adt",
		MsgType: "ADT^A01", Control: "MSG00001", Received: "2026-01-02T03:04:05.123456Z", Attempt: 1, Timeout: 5000,
		Body: bytes.Repeat([]byte("x"), 1024)}
	caps := DefaultCaps()
	frame, err := Encode(request, caps)
	if err != nil {
		b.Fatal(err)
	}
	var buf bytes.Buffer
	if _, err := frame.WriteTo(&buf); err != nil {
		b.Fatal(err)
	}
	body := buf.Bytes()[lengthSize:]
	header, _, err := split(body, caps)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			f, err := Encode(request, caps)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := f.WriteTo(io.Discard); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Decode(body, Engine, caps); err != nil {
				b.Fatal(err)
			}
		}
	})
	var parsed jsonHeader
	b.Run("floor-json-decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			d := json.NewDecoder(bytes.NewReader(header))
			d.DisallowUnknownFields()
			if err := d.Decode(&parsed); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("floor-json-encode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := json.Marshal(parsed); err != nil {
				b.Fatal(err)
			}
		}
	})
}
