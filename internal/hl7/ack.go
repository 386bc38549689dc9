package hl7

import (
	"bytes"
	"fmt"
	"strings"
	"time"
)

// Acknowledgement codes: of the application (original mode) and of the commit (enhanced mode).
const (
	AA = "AA" // taken
	AE = "AE" // error; asking again may help
	AR = "AR" // rejected; asking again cannot help
	CA = "CA"
	CE = "CE"
	CR = "CR"
)

// What an answer says where the message says nothing: both fields are required by every version.
const (
	defaultProcessing = "P"
	defaultVersion    = "2.5"
)

// Ack writes the answer to the message that h heads: with the same separators, the sender and the receiver exchanged,
// MSH-9 "ACK" with the message's trigger, and the processing id, version and character set of the message. code is one
// of AA to CR; text is for people and escaped here; controlID is the answer's own. Segments end with CR. The control id of the
// message is mirrored to the byte, or its sender would not know the answer for its own; the answer holds no end of an MLLP
// block (FS CR), whatever the message holds.
func Ack(h Header, code, text, controlID string, now time.Time) []byte {
	h.fill()
	sep := string([]byte{h.Sep}) // string(byte) would make two bytes of one above 0x7f
	kind := "ACK"
	if _, trigger, ok := strings.Cut(h.Type, "^"); ok {
		kind += h.component() + trigger
	}
	head := []string{
		"MSH", h.Encoding, h.ReceivingApp, h.ReceivingFacility, h.SendingApp, h.SendingFacility,
		now.Format("20060102150405-0700"), "", kind, controlID, h.ProcessingID, h.Version,
	}
	if h.CharacterSet != "" {
		head = append(head, "", "", "", "", "", h.CharacterSet) // 13 to 17 are empty
	}
	answer := []string{"MSA", code, h.ControlID}
	if text != "" {
		answer = append(answer, h.escape(text))
	}
	acknowledged := strings.Join(answer, sep)
	if strings.HasSuffix(acknowledged, "\x1c") {
		acknowledged += sep // an empty text keeps the FS from the CR
	}
	return []byte(unframed(strings.Join(head, sep)) + "\r" + acknowledged + "\r")
}

// AckUnknown writes an AR for a body without a header: there is nothing to mirror.
func AckUnknown(text, controlID string, now time.Time) []byte {
	return Ack(Header{Segment: "MSH"}, AR, text, controlID, now)
}

// fill gives h what an answer needs and the message may have left out.
func (h *Header) fill() {
	if h.Sep == 0 {
		h.Sep = '|'
	}
	if h.Encoding == "" {
		h.Encoding = `^~\&`
	}
	if h.ProcessingID == "" {
		h.ProcessingID = defaultProcessing
	}
	if h.Version == "" {
		h.Version = defaultVersion
	}
}

// unframed drops VT and FS, of which a mirrored field may hold some: a field that ends in FS would, before the CR, end the
// answer's frame.
func unframed(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "\x0b", ""), "\x1c", "")
}

// escape renders text as one field: separators become escape sequences, controls become spaces. Without an escape
// character separators become spaces too.
func (h *Header) escape(text string) string {
	names := map[byte]string{h.Sep: "F"}
	for i, name := range []string{"S", "R", "E", "T"} {
		if i < len(h.Encoding) {
			if _, taken := names[h.Encoding[i]]; !taken {
				names[h.Encoding[i]] = name
			}
		}
	}
	esc := ""
	if len(h.Encoding) > 2 {
		esc = h.Encoding[2:3]
	}
	var b strings.Builder
	for i := range len(text) {
		c := text[i]
		name, special := names[c]
		switch {
		case c < ' ' || c == 0x7f || special && esc == "":
			b.WriteByte(' ')
		case special:
			b.WriteString(esc + name + esc)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// Acknowledgement is what a reply says.
type Acknowledgement struct {
	Code      string // AA, AE, AR, CA, CE or CR
	ControlID string // MSA-2: the control id of the message that it answers
	Text      string // MSA-3, or what the first ERR segment says where it is empty; raw bytes of the peer
}

// Taken says whether the receiver took the message.
func (a Acknowledgement) Taken() bool { return a.Code == AA || a.Code == CA }

// ParseAck finds the MSA segment of a reply. The error is ErrNoAck, ErrNoHeader or ErrUTF16, wrapped.
func ParseAck(reply []byte) (Acknowledgement, error) {
	h, err := ParseHeader(reply)
	if err != nil {
		return Acknowledgement{}, fmt.Errorf("acknowledgement: %w", err)
	}
	msa := segment(reply, "MSA", h.Sep)
	if msa == nil {
		return Acknowledgement{}, fmt.Errorf("%w: reply has no MSA segment", ErrNoAck)
	}
	a := Acknowledgement{Code: field(msa, h.Sep, 1), ControlID: field(msa, h.Sep, 2), Text: field(msa, h.Sep, 3)}
	switch a.Code {
	case AA, AE, AR, CA, CE, CR:
	default:
		return Acknowledgement{}, fmt.Errorf("%w: MSA-1 is none of AA, AE, AR, CA, CE and CR", ErrNoAck)
	}
	if a.Text == "" && !a.Taken() {
		a.Text = errorText(segment(reply, "ERR", h.Sep), h.Sep)
	}
	return a, nil
}

// errorText is the most readable field of an ERR segment: since version 2.5 the user message (8), the diagnostics (7) or
// the code (3); before, the location (1).
func errorText(err []byte, sep byte) string {
	for _, n := range []int{8, 7, 3, 1} {
		if text := field(err, sep, n); text != "" {
			return text
		}
	}
	return ""
}

// segment finds the first segment with this name, without its line end; nil where there is none.
func segment(body []byte, name string, sep byte) []byte {
	prefix := append([]byte(name), sep)
	for len(body) > 0 {
		line, rest := body, []byte(nil)
		if end := bytes.IndexAny(body, "\r\n"); end >= 0 {
			line, rest = body[:end], body[end+1:]
		}
		if bytes.HasPrefix(line, prefix) {
			return line
		}
		body = rest
	}
	return nil
}

// field is field n of a segment, counted from its name as 0; empty where there is none.
func field(segment []byte, sep byte, n int) string {
	for range n {
		_, rest, ok := bytes.Cut(segment, []byte{sep})
		if !ok {
			return ""
		}
		segment = rest
	}
	value, _, _ := bytes.Cut(segment, []byte{sep})
	return string(value)
}
