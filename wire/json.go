package wire

import (
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// parser reads one header: JSON (RFC 8259), strict. encoding/json is not used because it takes the last of two
// duplicate fields, matches field names without regard to case and repairs bad UTF-8, each of which lets two readers
// of one frame see two messages.
type parser struct {
	in    []byte
	at    int
	depth int
	caps  Caps
}

func (p *parser) space() {
	for p.at < len(p.in) {
		switch p.in[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

// peek returns the next byte that is not space, without taking it; 0 at the end.
func (p *parser) peek() byte {
	p.space()
	if p.at == len(p.in) {
		return 0
	}
	return p.in[p.at]
}

func (p *parser) take(c byte) bool {
	if p.peek() != c {
		return false
	}
	p.at++
	return true
}

func (p *parser) syntax(what string) error {
	return violation(JSONSyntax, "%s at byte %d of the header", what, p.at)
}

// wrong is the error of a value that is not of the wanted type: of syntax if it is no value at all.
func (p *parser) wrong(want string) error {
	switch c := p.peek(); {
	case c == '"', c == '{', c == '[', c == '-', c == 't', c == 'f', c == 'n', '0' <= c && c <= '9':
		return violation(JSONType, "no %s at byte %d of the header", want, p.at)
	}
	return p.syntax("no value")
}

func (p *parser) enter() error {
	if p.depth++; p.depth > p.caps.Depth {
		return violation(JSONDepth, "nested deeper than %d", p.caps.Depth)
	}
	return nil
}

// open takes the beginning of an object; key then takes each of its keys, and colon what stands before the value.
func (p *parser) open() error {
	if !p.take('{') {
		return p.wrong("object")
	}
	return p.enter()
}

// key takes the next key of an object, or its end: more is false then. The key is good until the next one is taken.
func (p *parser) key(first bool) (key []byte, more bool, err error) {
	if p.take('}') {
		p.depth--
		return nil, false, nil
	}
	if !first && !p.take(',') {
		return nil, false, p.syntax("no comma")
	}
	if p.peek() != '"' {
		return nil, false, p.syntax("no key")
	}
	key, err = p.raw()
	return key, err == nil, err
}

func (p *parser) colon() error {
	if !p.take(':') {
		return p.syntax("no colon")
	}
	return nil
}

// twice refuses a key that the object has had.
func (p *parser) twice() error {
	return violation(JSONDuplicate, "a key occurs twice before byte %d of the header", p.at)
}

// object reads an object of any keys into a map, by read where each value starts.
func object[V any](p *parser, read func() (V, error)) (map[string]V, error) {
	if err := p.open(); err != nil {
		return nil, err
	}
	m := map[string]V{}
	for first := true; ; first = false {
		key, more, err := p.key(first)
		if err != nil || !more {
			return m, err
		}
		if _, had := m[string(key)]; had {
			return m, p.twice()
		}
		if err := p.colon(); err != nil {
			return m, err
		}
		v, err := read()
		if err != nil {
			return m, err
		}
		m[string(key)] = v
	}
}

// array reads an array and calls item where each item starts.
func (p *parser) array(item func() error) error {
	if !p.take('[') {
		return p.wrong("array")
	}
	if err := p.enter(); err != nil {
		return err
	}
	for first := true; !p.take(']'); first = false {
		if !first && !p.take(',') {
			return p.syntax("no comma")
		}
		if err := item(); err != nil {
			return err
		}
	}
	p.depth--
	return nil
}

// list reads an array, by read where each item starts.
func list[T any](p *parser, read func(to *T) error) ([]T, error) {
	out := []T{}
	err := p.array(func() error {
		var item T
		err := read(&item)
		out = append(out, item)
		return err
	})
	return out, err
}

func (p *parser) str() (string, error) {
	b, err := p.raw()
	return string(b), err
}

// raw reads a string. The header is known to be valid UTF-8 as a whole, and the string points into it if it has no escape.
func (p *parser) raw() ([]byte, error) {
	if !p.take('"') {
		return nil, p.wrong("string")
	}
	start := p.at
	for p.at < len(p.in) {
		switch c := p.in[p.at]; {
		case c == '"':
			p.at++
			return p.in[start : p.at-1], nil
		case c == '\\':
			return p.escaped(append([]byte(nil), p.in[start:p.at]...))
		case c < 0x20:
			return nil, p.syntax("a control character in a string")
		}
		p.at++
	}
	return nil, p.syntax("a string without end")
}

// escaped goes on with a string in which an escape was found; out holds what came before it.
func (p *parser) escaped(out []byte) ([]byte, error) {
	for p.at < len(p.in) {
		c := p.in[p.at]
		p.at++
		switch {
		case c == '"':
			return out, nil
		case c < 0x20:
			return nil, p.syntax("a control character in a string")
		case c != '\\':
			out = append(out, c)
			continue
		}
		r, err := p.escape()
		if err != nil {
			return nil, err
		}
		out = utf8.AppendRune(out, r)
	}
	return nil, p.syntax("a string without end")
}

func (p *parser) escape() (rune, error) {
	if p.at == len(p.in) {
		return 0, p.syntax("a string without end")
	}
	c := p.in[p.at]
	p.at++
	switch c {
	case '"', '\\', '/':
		return rune(c), nil
	case 'b':
		return '\b', nil
	case 'f':
		return '\f', nil
	case 'n':
		return '\n', nil
	case 'r':
		return '\r', nil
	case 't':
		return '\t', nil
	case 'u':
		return p.unicode()
	}
	return 0, p.syntax("an unknown escape")
}

// unicode reads what follows \u: four digits, and for the first half of a surrogate pair its second half.
func (p *parser) unicode() (rune, error) {
	r, err := p.hex4()
	if err != nil || !utf16.IsSurrogate(r) {
		return r, err
	}
	const low = 0xdc00 // where second halves begin: one that comes first is a fault by itself, whatever follows it
	if r < low && p.at+1 < len(p.in) && p.in[p.at] == '\\' && p.in[p.at+1] == 'u' {
		p.at += 2
		second, err := p.hex4()
		if err != nil {
			return 0, err
		}
		if whole := utf16.DecodeRune(r, second); whole != utf8.RuneError {
			return whole, nil
		}
	}
	return 0, violation(JSONUTF8, "half of a surrogate pair before byte %d of the header", p.at)
}

func (p *parser) hex4() (rune, error) {
	if p.at+4 > len(p.in) {
		return 0, p.syntax("a string without end")
	}
	var r rune
	for _, c := range p.in[p.at : p.at+4] {
		switch {
		case '0' <= c && c <= '9':
			r = r<<4 | rune(c-'0')
		case 'a' <= c && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case 'A' <= c && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, p.syntax("no hexadecimal digit")
		}
	}
	p.at += 4
	return r, nil
}

// number takes the text of a number and says whether it is written as a whole one.
func (p *parser) number() (text []byte, whole bool, err error) {
	if c := p.peek(); c != '-' && (c < '0' || c > '9') {
		return nil, false, p.wrong("number")
	}
	start := p.at
	digits := func() bool {
		from := p.at
		for p.at < len(p.in) && '0' <= p.in[p.at] && p.in[p.at] <= '9' {
			p.at++
		}
		return p.at > from
	}
	is := func(set string) bool {
		for i := 0; p.at < len(p.in) && i < len(set); i++ {
			if p.in[p.at] == set[i] {
				p.at++
				return true
			}
		}
		return false
	}
	whole = true
	is("-")
	if !is("0") && !digits() {
		return nil, false, p.syntax("no digit")
	}
	if is(".") {
		if whole = false; !digits() {
			return nil, false, p.syntax("no digit")
		}
	}
	if is("eE") {
		whole = false
		is("+-")
		if !digits() {
			return nil, false, p.syntax("no digit")
		}
	}
	return p.in[start:p.at], whole, nil
}

// integer reads a whole number from low to high.
func (p *parser) integer(low, high int64) (int64, error) {
	text, whole, err := p.number()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(string(text), 10, 64)
	if !whole || err != nil || n < low || n > high {
		return 0, violation(JSONNumber, "no whole number from %d to %d before byte %d of the header", low, high, p.at)
	}
	return n, nil
}

func (p *parser) word(w string) bool {
	if p.peek() == w[0] && len(p.in)-p.at >= len(w) && string(p.in[p.at:p.at+len(w)]) == w {
		p.at += len(w)
		return true
	}
	return false
}

// value reads any value: string, bool, int64, float64, []any or map[string]any. There is no null: a setting that is
// not there is left out.
func (p *parser) value() (any, error) {
	switch p.peek() {
	case '"':
		return p.str()
	case '{':
		return p.tree()
	case '[':
		return list(p, func(to *any) (err error) {
			*to, err = p.value()
			return err
		})
	case 't':
		if p.word("true") {
			return true, nil
		}
	case 'f':
		if p.word("false") {
			return false, nil
		}
	case 'n':
		if p.word("null") {
			return nil, violation(JSONType, "null at byte %d of the header", p.at-4)
		}
	}
	if c := p.peek(); c == 't' || c == 'f' || c == 'n' {
		return nil, p.syntax("no value")
	}
	text, whole, err := p.number()
	if err != nil {
		return nil, err
	}
	if whole {
		n, err := strconv.ParseInt(string(text), 10, 64)
		if err != nil {
			return nil, violation(JSONNumber, "a whole number beyond 64 bits before byte %d of the header", p.at)
		}
		return n, nil
	}
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil || math.IsInf(f, 0) {
		return nil, violation(JSONNumber, "a number beyond a double before byte %d of the header", p.at)
	}
	return f, nil
}

// tree reads an object of any values.
func (p *parser) tree() (map[string]any, error) { return object(p, p.value) }

// end refuses anything behind the header's object.
func (p *parser) end() error {
	if p.space(); p.at != len(p.in) {
		return p.syntax("more than one value")
	}
	return nil
}
