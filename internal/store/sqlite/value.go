package sqlite

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Caps of the one-line texts: what a list shows of a message, and what is kept of a run or a delivery.
const (
	maxReason = 300
	maxDetail = 2000
)

// oneLine makes any text fit a list: valid UTF-8, no control characters, at most limit bytes.
func oneLine(s string, limit int) string {
	if len(s) > 4*limit {
		s = s[:4*limit] // far more than can remain, so that a huge text costs nothing
	}
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, s)
	s = strings.TrimSpace(s)
	if len(s) <= limit {
		return s
	}
	cut := limit
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut]
}

// micros is a time as a column holds it.
func micros(t time.Time) int64 { return t.UnixMicro() }

// microsOrNull is micros, and NULL for the zero time.
func microsOrNull(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMicro()
}

// blob is a body as the driver wants it: nil would be stored as NULL.
func blob(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
