// Package hl7 reads and changes HL7 v2 messages without loss: bytes that are not set stay as they were, line ends and
// whatever is no HL7 included.
//
//	h, err := hl7.Parse(m.Body)
//	h.Get("MSH-9.2")                   "A01"
//	h.Get("PID-3.1")                   component 1 of the first repetition of PID-3
//	h.Get("PID-3[2].4.1")              repetition 2, component 4, subcomponent 1
//	h.Get("OBX[3]-5")                  the whole of field 5 in the third OBX
//	err = h.Set("PV1-3.4", "MERCY")    fields and components that are not there yet are added, empty
//	h.Bytes()
//
// What is not there reads as "", and setting that to "" changes nothing. All counts start at 1, and MSH-1 is the separator
// itself. Values are as they stand in the message, escape sequences included: Escape and Unescape turn text into such values
// and back. A message is read as UTF-8, or as Latin-1 where MSH-18 says 8859/1; bytes that are not UTF-8 are the same bytes
// in a value, and again when it is set.
//
// The SDKs of Python and Node have the same (sdk/python/coppice_worker/hl7.py, sdk/node/hl7.js); protocol/hl7/cases.json holds
// what all three do. The package imports the standard library alone.
package hl7

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Sentinel errors; test with errors.Is. The error itself names the path and says more.
var (
	// ErrNotHL7 is returned by Parse for bytes that do not start with a header segment.
	ErrNotHL7 = errors.New("the body is not HL7 v2: it does not start with MSH, BHS or FHS and a field separator")
	// ErrPath is returned for a path that is none, such as "PID" or "PID-0".
	ErrPath = errors.New("no path: write PID-3, PID-3.1, PID-3[2].4.1 or OBX[3]-5")
	// ErrNoSegment is returned by Set where the message has no such segment.
	ErrNoSegment = errors.New("the message has no such segment")
	// ErrValue is returned by Set for a value that cannot stand at that place.
	ErrValue = errors.New("the value cannot stand there")
)

// Message is one message, or one batch, that is changed in place. It is for one goroutine at a time.
type Message struct {
	body     []byte
	segments map[string][]span // by name, in the order of the message; only names that a path can say
	changed  map[span][]byte   // what stands there now
	latin1   bool

	field, repetition, component, subcomponent, escape string // one byte each, or none where the header names none
}

// span is where a segment stands in the body, without its line end.
type span struct{ start, end int }

// Parse reads a message. A byte order mark and white space may stand before its header segment, which is MSH, or for a batch
// BHS or FHS; separators are single bytes, any but white space, controls, letters and digits. Segments end with CR, LF
// or CRLF. Nothing else is demanded of a message. The body must not change while the Message is in use; Parse and Set leave it as it
// is. The error is ErrNotHL7.
func Parse(body []byte) (*Message, error) {
	start := len(body) - len(bytes.TrimLeft(bytes.TrimPrefix(body, []byte("\xef\xbb\xbf")), " \t\r\n"))
	head := body[start:segmentEnd(body, start)]
	if len(head) < 4 || !isHeader(string(head[:3])) || !separates(head[3]) {
		return nil, ErrNotHL7
	}
	m := &Message{body: body, segments: map[string][]span{}, changed: map[span][]byte{}, field: string(head[3:4])}
	given, _, _ := bytes.Cut(head[4:], head[3:4])
	for i, separator := range []*string{&m.component, &m.repetition, &m.escape, &m.subcomponent} {
		if i < len(given) && !bytes.Contains(given[:i], given[i:i+1]) { // `^~\\&` has been seen: no character means two things
			*separator = string(given[i : i+1])
		}
	}
	m.index(start)
	m.latin1 = m.Get("MSH-18[1]") == "8859/1"
	return m, nil
}

// index notes where the segments are that a path can name.
func (m *Message) index(start int) {
	for start < len(m.body) {
		at := span{start, segmentEnd(m.body, start)}
		name, _, _ := bytes.Cut(m.body[at.start:at.end], []byte(m.field))
		if segmentName(name) {
			m.segments[string(name)] = append(m.segments[string(name)], at)
		}
		start = at.end + 1 // between CR and LF stands a segment without a name
	}
}

// segmentEnd is where the segment ends that starts at start.
func segmentEnd(body []byte, start int) int {
	if n := bytes.IndexAny(body[start:], "\r\n"); n >= 0 {
		return start + n
	}
	return len(body)
}

func isHeader(segment string) bool { return segment == "MSH" || segment == "BHS" || segment == "FHS" }

// separates says whether c can separate fields: "MSHA" is a word and no header.
func separates(c byte) bool {
	switch {
	case c <= ' ', c == 0x7f, '0' <= c && c <= '9', 'A' <= c && c <= 'Z', 'a' <= c && c <= 'z':
		return false
	}
	return true
}

// Bytes returns the message as it is now. The slice is the caller's.
func (m *Message) Bytes() []byte {
	size := len(m.body)
	for at, now := range m.changed {
		size += len(now) - (at.end - at.start)
	}
	out, done := make([]byte, 0, size), 0
	for _, at := range slices.SortedFunc(maps.Keys(m.changed), func(a, b span) int { return a.start - b.start }) {
		out = append(append(out, m.body[done:at.start]...), m.changed[at]...)
		done = at.end
	}
	return append(out, m.body[done:]...)
}

// Count returns how many segments of this name there are.
func (m *Message) Count(segment string) int { return len(m.segments[strings.ToUpper(segment)]) }

// Get returns the value at a path, "" where it is absent. It panics for a path that is none, which fails a handler's message with that
// error: paths are mostly constants. CheckPath looks at one that is not.
func (m *Message) Get(path string) string {
	p, err := parsePath(path)
	if err != nil {
		panic(fmt.Errorf("hl7: %w", err))
	}
	at, ok := m.find(p)
	if !ok {
		return ""
	}
	segment := m.segment(at)
	if p.header && p.field == 1 {
		return m.decode([]byte(m.field))
	}
	place, _, _ := m.locate(segment, p)
	return m.decode(segment[place.start:place.end])
}

// Set puts a value at a path. "" deletes what stands there, and keeps the separators. The error is ErrPath, ErrNoSegment, or ErrValue for
// a value that holds what would end it, that its character set lacks, or that would change the message's separators; the message is then
// as it was.
func (m *Message) Set(path, value string) error {
	p, err := parsePath(path)
	if err != nil {
		return err
	}
	if p.header && p.field <= 2 {
		return fmt.Errorf("%s: %w: the separators of a message are not changed", path, ErrValue)
	}
	raw, err := m.encode(value)
	if err == nil {
		err = m.refuseSeparators(p, raw)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	at, ok := m.find(p)
	if !ok {
		if len(raw) == 0 {
			return nil
		}
		return fmt.Errorf("%s: %w", path, ErrNoSegment)
	}
	segment := m.segment(at)
	place, pad, ok := m.locate(segment, p)
	if len(raw) == 0 && place.start == place.end {
		return nil
	}
	if !ok {
		return fmt.Errorf("%s: %w: the message declares no separator for it", path, ErrValue)
	}
	m.changed[at] = slices.Concat(segment[:place.start], pad, raw, segment[place.end:])
	return nil
}
