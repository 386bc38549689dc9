// Package bodydiff says how two bodies differ, in the terms of what they are: HL7 messages segment by segment with the fields
// that changed, text line by line, all else byte by byte. It takes bytes of unknown origin, and returns data: who shows it
// makes it safe to print and bounds it.
package bodydiff

import (
	"bytes"
	"fmt"
	"unicode"
	"unicode/utf8"

	"coppice.dev/coppice/internal/hl7"
)

// Op is what a line of a difference says.
type Op byte

// The kinds of lines.
const (
	Gone    Op = '-' // Text stands in the first body alone
	New     Op = '+' // Text stands in the second body alone
	Changed Op = '~' // of the two segments before it: what stood at Path was Before and is After
	Note    Op = '#' // Text is ours, about what has no line
)

// Line is one line of a difference.
type Line struct {
	Op    Op
	Text  []byte // without its end
	Marks []Span // what is different in it; none: all of it
	// With Changed:
	Path          string // "PV1-3.4", with a repetition "PID-3[2].1"
	Before, After []byte
}

// Span is a part of a text, from byte Start up to End.
type Span struct{ Start, End int }

// Between returns how b differs from a; nothing if it does not.
func Between(a, b []byte) []Line {
	if bytes.Equal(a, b) {
		return nil
	}
	var how func(a, b []byte) []Line
	switch {
	case isHL7(a) && isHL7(b):
		how = segments
	case isText(a) && isText(b):
		how = texts
	default:
		return hexes(a, b)
	}
	from, whole := beginning(a)
	to, also := beginning(b)
	out := how(from, to)
	if !whole || !also {
		out = append(out, Line{Op: Note, Text: fmt.Appendf(nil, "no more than the first %d lines of each are compared", most)})
	}
	return out
}

// most is how many lines of a body are compared: what one costs, in time and memory, is far more than its bytes.
const most = 50_000

// beginning is what is compared of a body, and whether that is all of it.
func beginning(b []byte) (_ []byte, whole bool) {
	end := 0
	for range most {
		i := bytes.IndexAny(b[end:], "\r\n")
		if i < 0 {
			return b, true
		}
		end += i + 1
		if b[end-1] == '\r' && end < len(b) && b[end] == '\n' {
			end++
		}
	}
	return b[:end], end == len(b)
}

func isHL7(b []byte) bool {
	_, err := hl7.ParseHeader(b)
	return err == nil
}

// isText says whether people can read it: UTF-8 with no control characters but white space.
func isText(b []byte) bool {
	return utf8.Valid(b) && !bytes.ContainsFunc(b, func(r rune) bool { return unicode.IsControl(r) && r != '\t' && r != '\r' && r != '\n' })
}

// line is one line of a body, and what ends it.
type line struct{ text, end []byte }

func lines(b []byte) (out []line) {
	for len(b) > 0 {
		i := bytes.IndexAny(b, "\r\n")
		if i < 0 {
			return append(out, line{text: b})
		}
		n := 1
		if b[i] == '\r' && i+1 < len(b) && b[i+1] == '\n' {
			n = 2
		}
		out = append(out, line{b[:i], b[i : i+n]})
		b = b[i+n:]
	}
	return out
}

func texts(a, b []byte) (out []Line) {
	from, to := lines(a), lines(b)
	e := ends{}
	for _, h := range align(from, to) {
		if h.same {
			e.compare(from[h.a0], to[h.b0])
			continue
		}
		for _, l := range from[h.a0:h.a1] {
			out = append(out, Line{Op: Gone, Text: l.text})
		}
		for _, l := range to[h.b0:h.b1] {
			out = append(out, Line{Op: New, Text: l.text})
		}
	}
	return append(out, e.notes("line")...)
}

// ends counts lines whose text is the same, and their end is not.
type ends struct {
	order  []string
	counts map[string]int
}

func (e *ends) compare(a, b line) {
	if bytes.Equal(a.end, b.end) {
		return
	}
	what := endName(a.end) + " -> " + endName(b.end)
	if e.counts == nil {
		e.counts = map[string]int{}
	}
	if e.counts[what]++; e.counts[what] == 1 {
		e.order = append(e.order, what)
	}
}

func endName(end []byte) string {
	switch string(end) {
	case "\r":
		return "CR"
	case "\n":
		return "LF"
	case "\r\n":
		return "CRLF"
	}
	return "none"
}

func (e *ends) notes(what string) (out []Line) {
	for _, change := range e.order {
		n := e.counts[change]
		s := "s"
		if n == 1 {
			s = ""
		}
		out = append(out, Line{Op: Note, Text: fmt.Appendf(nil, "end of %d %s%s: %s", n, what, s, change)})
	}
	return out
}

// row is how many bytes a line of hexes shows, and rows how many lines of each body.
const (
	row  = 16
	rows = 16
)

// hexes shows where two bodies begin to differ up to where they no longer do.
func hexes(a, b []byte) (out []Line) {
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	out = append(out, Line{Op: Note, Text: fmt.Appendf(nil, "at byte %d: %d out, %d in", head, len(a)-head-tail, len(b)-head-tail)})
	out = append(out, dump(Gone, a, head, len(a)-tail)...)
	return append(out, dump(New, b, head, len(b)-tail)...)
}

// dump writes whole rows of a body that hold some of its bytes from start up to end, and marks those.
func dump(op Op, b []byte, start, end int) (out []Line) {
	for at := start - start%row; at < end; at += row {
		if len(out) == rows {
			return append(out, Line{Op: Note, Text: fmt.Appendf(nil, "%d more bytes", end-at)})
		}
		l := Line{Op: op, Text: fmt.Appendf(nil, "%08x ", at)}
		for i := at; i < min(at+row, len(b)); i++ {
			l.Text = fmt.Appendf(l.Text, " %02x", b[i])
			if i >= start && i < end {
				l.Marks = append(l.Marks, Span{len(l.Text) - 2, len(l.Text)})
			}
		}
		out = append(out, l)
	}
	return out
}
