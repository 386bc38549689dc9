// Package hl7 reads as much of an HL7 v2 message as a receiver must understand to answer it, and writes the answer. It
// reads header and acknowledgement segments and nothing else: bodies are opaque to the engine.
//
// Everything here works on bytes of unknown origin. Nothing is allocated by a number that a peer sent, and a header
// segment is read up to MaxHeader bytes.
package hl7

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
)

// MaxHeader caps the header segment, and what white space may stand before it, in bytes. Real ones have some hundred.
const MaxHeader = 64 << 10

// Sentinel errors; test with errors.Is.
var (
	// ErrNoHeader is returned for a body that does not begin with a usable MSH, BHS or FHS segment.
	ErrNoHeader = errors.New("no HL7 header segment")
	// ErrUTF16 is returned for a body in UTF-16. MLLP frames bytes, and the bytes of UTF-16 text can hold its marks.
	ErrUTF16 = errors.New("body is UTF-16, which MLLP cannot frame")
	// ErrNoAck is returned for a reply that holds no usable MSA segment.
	ErrNoAck = errors.New("no HL7 acknowledgement")
)

// Header is what the first segment says. Fields are raw: neither trimmed nor unescaped.
type Header struct {
	Segment  string // "MSH", "BHS" or "FHS"
	Sep      byte   // MSH-1, the field separator
	Encoding string // MSH-2: component, repetition, escape and subcomponent separator; may be shorter, even empty

	SendingApp        string // 3
	SendingFacility   string // 4
	ReceivingApp      string // 5
	ReceivingFacility string // 6

	Type         string // MSH-9 as "ADT^A01", always with '^' and without the structure; empty for a batch
	ControlID    string // MSH-10, BHS-11 or FHS-11
	ProcessingID string // MSH-11
	Version      string // MSH-12
	AcceptAck    string // MSH-15: AL, NE, ER, SU or empty
	AppAck       string // MSH-16
	CharacterSet string // MSH-18
}

// Batch says whether the header opens a batch or a file of batches.
func (h Header) Batch() bool { return h.Segment != "MSH" }

// ParseHeader reads the header segment: past a UTF-8 byte order mark and white space, with any separators, ended by CR,
// LF, CRLF or the end of the body. Separators are single bytes. The error is ErrNoHeader or ErrUTF16, possibly wrapped.
func ParseHeader(body []byte) (Header, error) {
	if isUTF16(body) {
		return Header{}, ErrUTF16
	}
	segment, err := headerSegment(body)
	if err != nil {
		return Header{}, err
	}
	h := Header{Segment: string(segment[:3]), Sep: segment[3]}
	rest := segment[4:]
	// The separator itself is field 1, so that what follows it is field 2.
	for n := 2; n <= 18; n++ {
		field, after, more := bytes.Cut(rest, []byte{h.Sep})
		h.set(n, string(field))
		if !more {
			break
		}
		rest = after
	}
	return h, nil
}

// set stores field n of the header segment where the segment has it.
func (h *Header) set(n int, field string) {
	switch n {
	case 2:
		h.Encoding = field
	case 3:
		h.SendingApp = field
	case 4:
		h.SendingFacility = field
	case 5:
		h.ReceivingApp = field
	case 6:
		h.ReceivingFacility = field
	}
	if h.Batch() {
		if n == 11 {
			h.ControlID = field
		}
		return
	}
	switch n {
	case 9:
		h.Type = h.messageType(field)
	case 10:
		h.ControlID = field
	case 11:
		h.ProcessingID = field
	case 12:
		h.Version = field
	case 15:
		h.AcceptAck = field
	case 16:
		h.AppAck = field
	case 18:
		h.CharacterSet = field
	}
}

// messageType renders MSH-9 with '^'. The third component, the structure, is left out: it is redundant, many senders
// omit it, and one type should have one name.
func (h *Header) messageType(field string) string {
	code, rest, _ := strings.Cut(field, h.component())
	trigger, _, _ := strings.Cut(rest, h.component())
	if trigger == "" {
		return code
	}
	return code + "^" + trigger
}

// component is the component separator; '^' where the header names none.
func (h *Header) component() string {
	if h.Encoding == "" {
		return "^"
	}
	return h.Encoding[:1]
}

// headerSegment cuts the header segment out of body, without its line end.
func headerSegment(body []byte) ([]byte, error) {
	body = bytes.TrimPrefix(body, []byte("\xef\xbb\xbf"))
	lead := 0
	for lead < len(body) && lead <= MaxHeader && strings.IndexByte(" \t\r\n", body[lead]) >= 0 {
		lead++
	}
	if lead > MaxHeader {
		return nil, fmt.Errorf("%w: more than %d bytes of white space before it", ErrNoHeader, MaxHeader)
	}
	body = body[lead:]
	if len(body) < 4 {
		return nil, fmt.Errorf("%w: body ends before it", ErrNoHeader)
	}
	switch string(body[:3]) {
	case "MSH", "BHS", "FHS":
	default:
		return nil, fmt.Errorf("%w: first segment is not MSH, BHS or FHS", ErrNoHeader)
	}
	if !separator(body[3]) {
		return nil, fmt.Errorf("%w: byte 0x%02x cannot separate fields", ErrNoHeader, body[3])
	}
	head := body[:min(len(body), MaxHeader)]
	if end := bytes.IndexAny(head, "\r\n"); end >= 0 {
		return head[:end], nil
	}
	if len(head) < len(body) {
		return nil, fmt.Errorf("%w: segment has no end within %d bytes", ErrNoHeader, MaxHeader)
	}
	return head, nil
}

// separator says whether c can separate fields: any byte but white space, controls, letters and digits, so that the
// word "MSHA" is no header.
func separator(c byte) bool {
	switch {
	case c <= ' ', c == 0x7f, '0' <= c && c <= '9', 'A' <= c && c <= 'Z', 'a' <= c && c <= 'z':
		return false
	}
	return true
}

// isUTF16 recognises a UTF-16 byte order mark, and without one the zero in every other byte that ASCII text gets.
func isUTF16(body []byte) bool {
	if bytes.HasPrefix(body, []byte("\xff\xfe")) || bytes.HasPrefix(body, []byte("\xfe\xff")) {
		return true
	}
	const look = 8
	if len(body) < look {
		return false
	}
	var zero [2]int // zeros at even and at odd places
	for i, c := range body[:look] {
		if c == 0 {
			zero[i%2]++
		}
	}
	return zero[0] == 0 && zero[1] == look/2 || zero[0] == look/2 && zero[1] == 0
}
