package hl7

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const number = `([1-9][0-9]{0,5})`

var pathPattern = regexp.MustCompile(`^([A-Za-z0-9]{3})(?:\[` + number + `\])?-` + number + `(?:\[` + number + `\])?(?:\.` + number + `(?:\.` + number + `)?)?$`)

// segmentName says whether a path can name such a segment.
func segmentName(name []byte) bool {
	return len(name) == 3 && !slices.ContainsFunc(name, func(c byte) bool { return (c < '0' || c > '9') && (c < 'A' || c > 'Z') })
}

// path is a path, taken apart. What it does not name is 0.
type path struct {
	segment                                    string
	occurrence                                 int // 1 where the path does not say
	field, repetition, component, subcomponent int
	header                                     bool // of MSH, BHS or FHS, whose first field is the separator
}

// CheckPath returns nil for a path that Get and Set take, else an error that is ErrPath and quotes it.
func CheckPath(text string) error {
	_, err := parsePath(text)
	return err
}

func parsePath(text string) (path, error) {
	found := pathPattern.FindStringSubmatch(text)
	if found == nil {
		return path{}, fmt.Errorf("%q is %w", text, ErrPath)
	}
	var n [5]int
	for i, digits := range found[2:] {
		n[i], _ = strconv.Atoi(digits) // six digits at most, or none
	}
	segment := strings.ToUpper(found[1])
	return path{segment, max(n[0], 1), n[1], n[2], n[3], n[4], isHeader(segment)}, nil
}

// level is one step towards a place: the separator to split by, and which piece to take, from 0.
type level struct {
	separator string
	index     int
}

func (m *Message) levels(p path) []level {
	field := level{m.field, p.field}
	if p.header {
		field.index--
		if p.field <= 2 { // the separators themselves
			return []level{field}
		}
	}
	levels := []level{field}
	if p.repetition > 0 || p.component > 0 {
		levels = append(levels, level{m.repetition, max(p.repetition-1, 0)})
	}
	if p.component > 0 {
		levels = append(levels, level{m.component, p.component - 1})
	}
	if p.subcomponent > 0 {
		levels = append(levels, level{m.subcomponent, p.subcomponent - 1})
	}
	return levels
}

// find returns the segment that a path names.
func (m *Message) find(p path) (at span, ok bool) {
	all := m.segments[p.segment]
	if p.occurrence > len(all) {
		return span{}, false
	}
	return all[p.occurrence-1], true
}

// segment is a segment as it is now.
func (m *Message) segment(at span) []byte {
	if now, ok := m.changed[at]; ok {
		return now
	}
	return m.body[at.start:at.end]
}

// locate finds a path's place in its segment. A place that is not there yet is empty, and pad is what has to stand in front of its value.
// ok is false where the message declares no separator that could make it.
func (m *Message) locate(segment []byte, p path) (place span, pad []byte, ok bool) {
	place.end = len(segment)
	for _, l := range m.levels(p) {
		if l.separator == "" {
			if l.index > 0 {
				return span{}, nil, false
			}
			continue
		}
		missing := l.index
		for ; missing > 0; missing-- {
			n := bytes.IndexByte(segment[place.start:place.end], l.separator[0])
			if n < 0 {
				place.start = place.end
				pad = append(pad, strings.Repeat(l.separator, missing)...)
				break
			}
			place.start += n + 1
		}
		if n := bytes.IndexByte(segment[place.start:place.end], l.separator[0]); n >= 0 {
			place.end = place.start + n
		}
	}
	return place, pad, true
}

// refuseSeparators refuses a value that holds what would end it: the separators of its own level and of those above.
func (m *Message) refuseSeparators(p path, value []byte) error {
	ends := []string{"\r", "\n"}
	for _, l := range m.levels(p) {
		ends = append(ends, l.separator)
	}
	for _, end := range ends {
		if end != "" && bytes.Contains(value, []byte(end)) {
			return fmt.Errorf("%w: it holds %q, which ends it; use Escape", ErrValue, end)
		}
	}
	return nil
}
