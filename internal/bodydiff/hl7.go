package bodydiff

import (
	"bytes"
	"fmt"

	"coppice.dev/coppice/internal/hl7"
)

// separators are those of one message; zero for one that its header does not name.
type separators struct{ field, component, repetition byte }

func separatorsOf(body []byte) separators {
	h, err := hl7.ParseHeader(body)
	if err != nil {
		return separators{}
	}
	s := separators{field: h.Sep}
	if len(h.Encoding) > 0 {
		s.component = h.Encoding[0]
	}
	if len(h.Encoding) > 1 {
		s.repetition = h.Encoding[1]
	}
	return s
}

// comparison is of two messages.
type comparison struct {
	a, b separators
	out  []Line
}

func segments(a, b []byte) []Line {
	c := &comparison{a: separatorsOf(a), b: separatorsOf(b)}
	from, to := lines(a), lines(b)
	e := ends{}
	for _, h := range align(from, to) {
		if h.same {
			e.compare(from[h.a0], to[h.b0])
			continue
		}
		c.replaced(from[h.a0:h.a1], to[h.b0:h.b1], &e)
	}
	return append(c.out, e.notes("segment")...)
}

// replaced pairs segments of one name, in order, as one that changed; what is between them was taken out or put in.
func (c *comparison) replaced(from, to []line, e *ends) {
	put := func(op Op, l line) { c.out = append(c.out, Line{Op: op, Text: l.text}) }
	named := map[string][]int{} // where the segments of a name are that have not been passed
	for i, l := range to {
		name := string(c.b.name(l.text))
		named[name] = append(named[name], i)
	}
	next := 0
	for _, l := range from {
		name := string(c.a.name(l.text))
		left := named[name]
		for len(left) > 0 && left[0] < next {
			left = left[1:]
		}
		named[name] = left
		if len(left) == 0 {
			put(Gone, l)
			continue
		}
		for match := left[0]; next < match; next++ {
			put(New, to[next])
		}
		c.segment(l.text, to[next].text)
		e.compare(l, to[next])
		next++
	}
	for ; next < len(to); next++ {
		put(New, to[next])
	}
}

func (s separators) name(segment []byte) []byte {
	name, _, _ := bytes.Cut(segment, []byte{s.field})
	return name
}

// segment adds two segments of one name, with what changed in them.
func (c *comparison) segment(a, b []byte) {
	gone, added := Line{Op: Gone, Text: a}, Line{Op: New, Text: b}
	var changes []Line
	from, to := fieldsOf(a, c.a), fieldsOf(b, c.b)
	first := 1
	if name := string(c.a.name(a)); name == "MSH" || name == "BHS" || name == "FHS" {
		first = 2 // field 1 is the separator itself
	}
	name := string(c.a.name(a))
	for i := range max(len(from), len(to)) {
		f, g := at(from, i), at(to, i)
		if bytes.Equal(f.of(a), g.of(b)) {
			continue
		}
		number := i + first
		path := fmt.Sprintf("%s-%d", name, number)
		parts := []change{{path, f, g}}
		if c.a == c.b && (first == 1 || number != 2) {
			parts = c.parts(path, a, b, f, g)
		}
		for _, p := range parts {
			gone.Marks, added.Marks = mark(gone.Marks, p.from), mark(added.Marks, p.to)
			changes = append(changes, Line{Op: Changed, Path: p.path, Before: p.from.of(a), After: p.to.of(b)})
		}
	}
	c.out = append(append(c.out, gone, added), changes...)
}

// change is a part of a field that differs.
type change struct {
	path     string
	from, to Span
}

// parts are the components of a field that differ, or the whole field, if it has another number of repetitions.
func (c *comparison) parts(path string, a, b []byte, f, g Span) (out []change) {
	from, to := f.split(a, c.a.repetition), g.split(b, c.b.repetition)
	if len(from) != len(to) {
		return []change{{path, f, g}}
	}
	for r := range from {
		if bytes.Equal(from[r].of(a), to[r].of(b)) {
			continue
		}
		where := path
		if len(from) > 1 {
			where = fmt.Sprintf("%s[%d]", path, r+1)
		}
		x, y := from[r].split(a, c.a.component), to[r].split(b, c.b.component)
		if len(x) == 1 && len(y) == 1 {
			out = append(out, change{where, from[r], to[r]})
			continue
		}
		for i := range max(len(x), len(y)) {
			if p, q := at(x, i), at(y, i); !bytes.Equal(p.of(a), q.of(b)) {
				out = append(out, change{fmt.Sprintf("%s.%d", where, i+1), p, q})
			}
		}
	}
	return out
}

func (s Span) of(b []byte) []byte { return b[s.Start:s.End] }

// parts is into how many a segment or a field is taken apart, the last of them with all the rest.
const parts = 10_000

// split takes a part of b apart at a separator; zero is none.
func (s Span) split(b []byte, sep byte) (out []Span) {
	start := s.Start
	for i := s.Start; i < s.End && sep != 0 && len(out) < parts-1; i++ {
		if b[i] == sep {
			out = append(out, Span{start, i})
			start = i + 1
		}
	}
	return append(out, Span{start, s.End})
}

// fieldsOf are the fields behind a segment's name.
func fieldsOf(segment []byte, s separators) []Span {
	return Span{0, len(segment)}.split(segment, s.field)[1:]
}

// at is the span at i, an empty one behind the last.
func at(spans []Span, i int) Span {
	if i < len(spans) {
		return spans[i]
	}
	return Span{}
}

func mark(marks []Span, s Span) []Span {
	if s.Start == s.End {
		return marks
	}
	return append(marks, s)
}
