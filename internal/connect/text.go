package connect

import "strings"

// OneLine renders a peer's bytes for a log or a record: controls escaped, what is not UTF-8 replaced, at most max bytes.
func OneLine(s string, max int) string {
	var b strings.Builder
	for _, r := range s {
		piece := string(r)
		if r < ' ' || 0x7f <= r && r < 0xa0 || r == '\u2028' || r == '\u2029' {
			piece = escaped(r)
		}
		if b.Len()+len(piece) > max {
			return b.String() + "..."
		}
		b.WriteString(piece)
	}
	return b.String()
}

// escaped is a control character as Go writes it: "\x0b", "\u0085".
func escaped(r rune) string {
	const hex = "0123456789abcdef"
	if r < 0x100 {
		return `\x` + string(hex[r>>4]) + string(hex[r&15])
	}
	return `\u` + string(hex[r>>12&15]) + string(hex[r>>8&15]) + string(hex[r>>4&15]) + string(hex[r&15])
}
