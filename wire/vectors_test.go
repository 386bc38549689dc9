package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"coppice.dev/coppice/protocol/vectors"
)

// vector is one entry of a file in protocol/vectors; its README.md tells the format.
type vector struct {
	Name string
	From string
	Caps struct {
		Frame, Header, Segments, Depth int
	}
	Hex       json.RawMessage
	Message   map[string]any
	Violation string
	Request   struct{ ID, Phase, Name string }
}

func (v vector) side() Side {
	if v.From == "engine" {
		return Engine
	}
	return Worker
}

func (v vector) caps() Caps {
	caps := DefaultCaps()
	for _, c := range []struct {
		to   *int
		from int
	}{{&caps.Frame, v.Caps.Frame}, {&caps.Header, v.Caps.Header}, {&caps.Segments, v.Caps.Segments}, {&caps.Depth, v.Caps.Depth}} {
		if c.from != 0 {
			*c.to = c.from
		}
	}
	return caps
}

func loadVectors(t testing.TB, file string) []vector {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "protocol", "vectors", file))
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var list []vector
	if err := d.Decode(&list); err != nil {
		t.Fatal(err)
	}
	return list
}

// unhex returns the bytes that a vector writes.
func unhex(t testing.TB, written json.RawMessage) []byte {
	t.Helper()
	all, err := vectors.Bytes(written)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// canonical returns a message with the names of its fields on the wire.
func canonical(m Message) map[string]any {
	c := map[string]any{"type": m.Type()}
	binding := func(b Binding) { c["id"], c["phase"], c["name"] = b.ID, string(b.Phase), b.Name }
	fault := func(f Fault) {
		c["error"] = map[string]any{"type": f.Type, "text": f.Text, "traceback": f.Traceback}
	}
	offers := func(list []Offer) {
		all := []any{}
		for _, o := range list {
			all = append(all, map[string]any{"phase": string(o.Phase), "name": o.Name})
		}
		c["version"], c["offers"] = int64(Version), all
	}
	switch m := m.(type) {
	case *Boot:
		offers(m.Offers)
		c["file"], c["settings"], c["frame_cap"] = m.File, m.Settings, int64(m.FrameCap)
	case *Ready:
		offers(m.Offers)
		c["sdk"] = m.SDK
	case *BootFail:
		c["version"] = int64(Version)
		fault(m.Fault)
	case *Request:
		binding(m.Binding)
		c["message"], c["attempt"], c["timeout_ms"] = m.Message, int64(m.Attempt), m.Timeout
		c["inbound"], c["msgtype"], c["control"], c["received"] = m.Inbound, m.MsgType, m.Control, m.Received
		c["body"] = string(m.Body)
	case *Result:
		binding(m.Binding)
		canonicalResult(m, c)
	case *Fail:
		binding(m.Binding)
		fault(m.Fault)
	}
	return c
}

func canonicalResult(m *Result, c map[string]any) {
	switch {
	case m.Handlers != nil:
		all := []any{}
		for _, h := range m.Handlers {
			all = append(all, h)
		}
		c["handlers"] = all
	case m.Dropped:
		c["drop"] = m.Drop
	default:
		all := []any{}
		for _, s := range m.Sends {
			all = append(all, map[string]any{"to": s.To, "body": string(s.Body)})
		}
		c["sends"] = all
	}
	if len(m.Tags) > 0 {
		all := map[string]any{}
		for k, v := range m.Tags {
			all[k] = v
		}
		c["tags"] = all
	}
}

// typed turns the numbers of a vector's message into what Decode makes of them, and its bodies into bytes.
func typed(t testing.TB, v any, key string) any {
	switch v := v.(type) {
	case json.Number:
		if strings.ContainsAny(v.String(), ".eE") {
			f, err := v.Float64()
			if err != nil {
				t.Fatal(err)
			}
			return f
		}
		n, err := v.Int64()
		if err != nil {
			t.Fatal(err)
		}
		return n
	case map[string]any:
		for k := range v {
			v[k] = typed(t, v[k], k)
		}
		if key == "tags" && len(v) == 0 {
			return nil
		}
		return v
	case []any:
		if key == "body" {
			raw, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			return string(unhex(t, raw))
		}
		for i := range v {
			v[i] = typed(t, v[i], "")
		}
		return v
	case string:
		if key == "body" {
			b, err := hex.DecodeString(v)
			if err != nil {
				t.Fatal(err)
			}
			return string(b)
		}
	}
	return v
}

// wanted is the message of an accept vector. That a result has an empty object of tags is not told from that it has none.
func wanted(t testing.TB, v vector) any {
	want := typed(t, v.Message, "").(map[string]any)
	if tags, ok := want["tags"]; ok && tags == nil {
		delete(want, "tags")
	}
	return want
}

// violationOf returns the name of a violation, or fails: no other error comes out of this package.
func violationOf(t testing.TB, err error) string {
	t.Helper()
	var v *Violation
	if err != nil && !errors.As(err, &v) {
		t.Fatalf("an error that is no violation: %v", err)
	}
	if v == nil {
		return ""
	}
	return v.Name
}

func readAndDecode(stream []byte, from Side, caps Caps) (Message, error) {
	body, err := ReadFrame(bytes.NewReader(stream), caps)
	if err != nil {
		return nil, err
	}
	return Decode(body, from, caps)
}

// Red with any reader of a field taken out of decoder.schema; for the byte behind the frame, with a bufio.Reader
// around r in ReadFrame.
func TestAccept(t *testing.T) {
	for _, v := range loadVectors(t, "accept.json") {
		t.Run(v.Name, func(t *testing.T) {
			r := bytes.NewReader(append(unhex(t, v.Hex), "next"...))
			body, err := ReadFrame(r, v.caps())
			if err != nil {
				t.Fatal(err)
			}
			if rest, _ := io.ReadAll(r); string(rest) != "next" {
				t.Errorf("the reader left %q behind the frame", rest)
			}
			m, err := Decode(body, v.side(), v.caps())
			if err != nil {
				t.Fatal(err)
			}
			if got, want := canonical(m), wanted(t, v); !reflect.DeepEqual(got, want) {
				t.Errorf("\n got %v\nwant %v", got, want)
			}
			if _, err := Decode(body, 3-v.side(), v.caps()); violationOf(t, err) != BadDirection {
				t.Errorf("from the other side: %v, want %s", err, BadDirection)
			}
		})
	}
}

// Red with any single check in frame.go, json.go or decode.go taken out.
func TestRefuse(t *testing.T) {
	names := map[string]int{}
	for _, v := range loadVectors(t, "refuse.json") {
		names[v.Violation]++
		t.Run(v.Violation+": "+v.Name, func(t *testing.T) {
			m, err := readAndDecode(unhex(t, v.Hex), v.side(), v.caps())
			if got := violationOf(t, err); got != v.Violation {
				t.Errorf("%v, want %s; message %v", err, v.Violation, m)
			}
		})
	}
	for _, name := range []string{FrameCap, FrameCut, FrameShort, HeaderCap, HeaderCut, SegmentCut, SegmentCount,
		SegmentOrder, SegmentMissing, SegmentLeft, JSONSyntax, JSONUTF8, JSONDepth, JSONDuplicate, JSONField, JSONMissing,
		JSONType, JSONNumber, BadVersion, BadType, BadDirection, BadID, BadPhase, BadName, BadForm} {
		if names[name] == 0 {
			t.Errorf("no vector is refused as %s", name)
		}
	}
}

// Red with Binding.Check returning nil, and with two of its cases exchanged.
func TestBinding(t *testing.T) {
	for _, v := range loadVectors(t, "binding.json") {
		t.Run(v.Name, func(t *testing.T) {
			m, err := readAndDecode(unhex(t, v.Hex), Worker, DefaultCaps())
			if err != nil {
				t.Fatal(err)
			}
			var answer Binding
			switch m := m.(type) {
			case *Result:
				answer = m.Binding
			case *Fail:
				answer = m.Binding
			}
			err = Binding{v.Request.ID, Phase(v.Request.Phase), v.Request.Name}.Check(answer)
			if err == (*Violation)(nil) {
				t.Fatal("a nil *Violation in an error")
			}
			if got := violationOf(t, err); got != v.Violation {
				t.Errorf("%v, want %q", err, v.Violation)
			}
		})
	}
}

// Red with cut's violation taken out: a stream that ends inside a frame then looks as if it ended between two.
func TestTruncated(t *testing.T) {
	for _, v := range loadVectors(t, "accept.json") {
		whole := unhex(t, v.Hex)
		for at := range min(len(whole), 4096) {
			_, err := readAndDecode(whole[:at], v.side(), v.caps())
			if at == 0 && err == io.EOF {
				continue
			}
			if violationOf(t, err) != FrameCut {
				t.Fatalf("%s, cut at byte %d: %v, want %s", v.Name, at, err, FrameCut)
			}
		}
	}
}

// A complete outer frame with less in it than its inner lengths say. Red with split's checks of its lengths taken out.
func TestTruncatedInside(t *testing.T) {
	names := []string{FrameShort, HeaderCut, SegmentCut, SegmentMissing}
	for _, v := range loadVectors(t, "accept.json") {
		whole := unhex(t, v.Hex)[lengthSize:]
		for at := range min(len(whole), 4096) {
			_, err := Decode(whole[:at], v.side(), v.caps())
			if name := violationOf(t, err); !strings.Contains(strings.Join(names, " "), name) || name == "" {
				t.Fatalf("%s, a frame cut to %d bytes: %v, want one of %v", v.Name, at, err, names)
			}
		}
	}
}
