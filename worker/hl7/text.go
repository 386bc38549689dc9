package hl7

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// decode is the text of bytes of the message. Bytes that are not UTF-8 stay as they are.
func (m *Message) decode(raw []byte) string {
	if !m.latin1 {
		return string(raw)
	}
	var b strings.Builder
	for _, c := range raw {
		b.WriteRune(rune(c))
	}
	return b.String()
}

// encode is the reverse of decode.
func (m *Message) encode(value string) ([]byte, error) {
	if !m.latin1 {
		return []byte(value), nil
	}
	raw := make([]byte, 0, len(value))
	for i, c := range value {
		if c > 0xff {
			if _, size := utf8.DecodeRuneInString(value[i:]); size > 1 {
				return nil, fmt.Errorf("%w: %q is not in Latin-1, the message's character set", ErrValue, c)
			}
			c = rune(value[i]) // a byte that is not UTF-8
		}
		raw = append(raw, byte(c))
	}
	return raw, nil
}

// separators returns each separator as it stands in values, with the letter of its escape sequence.
func (m *Message) separators() [][2]string {
	all := [][2]string{{m.escape, "E"}, {m.field, "F"}, {m.component, "S"}, {m.repetition, "R"}, {m.subcomponent, "T"}}
	all = slices.DeleteFunc(all, func(s [2]string) bool { return s[0] == "" })
	for i := range all {
		all[i][0] = m.decode([]byte(all[i][0]))
	}
	return all
}

// Escape returns text with its separators as escape sequences, so that it can be set anywhere. It is the text itself where the
// message declares no escape character.
func (m *Message) Escape(text string) string {
	if m.escape == "" {
		return text
	}
	e := m.decode([]byte(m.escape))
	var pairs []string
	for _, s := range m.separators() {
		pairs = append(pairs, s[0], e+s[1]+e)
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// Unescape returns a value with the escape sequences of its separators resolved; others stay as they are.
func (m *Message) Unescape(value string) string {
	if m.escape == "" {
		return value
	}
	e := m.decode([]byte(m.escape))
	resolved := map[string]string{}
	for _, s := range m.separators() {
		resolved[s[1]] = s[0]
	}
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(value, e)
		b.WriteString(before)
		switch {
		case !found:
			return b.String()
		case len(rest) > len(e) && 'A' <= rest[0] && rest[0] <= 'Z' && strings.HasPrefix(rest[1:], e):
			if text, ok := resolved[rest[:1]]; ok {
				b.WriteString(text)
			} else {
				b.WriteString(e + rest[:1] + e)
			}
			value = rest[1+len(e):]
		default:
			b.WriteString(e)
			value = rest
		}
	}
}
