package wire

import (
	"bytes"
	"reflect"
	"testing"
)

func TestRoundTrip(t *testing.T) {
	id := Binding{ID: "0123456789abcdef0123456789abcdef", Phase: PhaseHandle, Name: "admit"}
	route := Binding{ID: id.ID, Phase: PhaseRoute, Name: "route"}
	for _, m := range []Message{
		&Boot{File: "/a b/\"x\".py", Offers: []Offer{{PhaseHandle, "admit"}}, Settings: map[string]any{
			"a": "\u2028é\x01", "b": true, "n": int64(-5), "f": 1.5, "w": 2.0, "l": []any{int64(1), "x", map[string]any{}}}, FrameCap: 9},
		&Boot{Offers: []Offer{}, Settings: map[string]any{}},
		&Ready{SDK: "go/1", Offers: []Offer{{PhaseRoute, "r"}, {PhaseHandle, "h"}}},
		&BootFail{Fault: Fault{"ImportError", "no", "line 1\nline 2"}},
		&Request{Binding: id, Message: 7, Inbound: "adt", MsgType: "ADT^A01", Control: "1", Received: "2026-01-01T00:00:00Z", Attempt: 1, Timeout: 5000, Body: []byte("MSH|\r\x00\xff")},
		&Request{Binding: id, Message: 7, Attempt: 1, Body: []byte{}},
		&Result{Binding: route, Handlers: []string{"a", "b"}},
		&Result{Binding: route, Handlers: []string{}},
		&Result{Binding: id, Sends: []Send{{"x", []byte("1")}, {"y", []byte{}}, {"x", bytes.Repeat([]byte("z"), 300000)}}, Tags: map[string]string{"mrn": "1"}},
		&Result{Binding: id, Sends: []Send{}},
		&Result{Binding: id, Dropped: true, Drop: "no MRN"},
		&Fail{Binding: id, Fault: Fault{"ValueError", "bad", ""}},
	} {
		f, err := Encode(m, DefaultCaps())
		if err != nil {
			t.Fatalf("%T: %v", m, err)
		}
		var buf bytes.Buffer
		if n, err := f.WriteTo(&buf); err != nil || n != int64(f.Len()) || buf.Len() != f.Len() {
			t.Fatalf("%T: wrote %d of %d: %v", m, n, f.Len(), err)
		}
		body, err := ReadFrame(&buf, DefaultCaps())
		if err != nil {
			t.Fatalf("%T: %v", m, err)
		}
		got, err := Decode(body, m.from(), DefaultCaps())
		if err != nil {
			t.Fatalf("%T: %v\n%s", m, err, body)
		}
		if !reflect.DeepEqual(got, m) {
			t.Errorf("%T:\n got %+v\nwant %+v", m, got, m)
		}
	}
}
