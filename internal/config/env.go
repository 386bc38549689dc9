package config

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// substitute replaces ${NAME} by what env says and $$ by $; a $ before anything else stands for itself. What it puts in
// is not looked at again. The problem, if msg is not empty, never tells a variable's value.
func substitute(s string, env func(string) (string, bool)) (text, hint, msg string) {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(s, "$")
		b.WriteString(before)
		switch {
		case !found:
			return b.String(), hint, msg
		case strings.HasPrefix(rest, "$"):
			b.WriteByte('$')
			s = rest[1:]
		case strings.HasPrefix(rest, "{"):
			name, after, closed := strings.Cut(rest[1:], "}")
			if !closed || !variable(name) {
				return s, "write ${NAME} with letters, digits and _, or $${ for the characters themselves",
					"${ does not begin the name of an environment variable"
			}
			value, set := env(name)
			if !set {
				hint = fmt.Sprintf("set %s before you start coppice, or write $${ for the characters themselves", name)
				msg = fmt.Sprintf("the environment variable %s is not set", name)
			} else if !utf8.ValidString(value) {
				hint, msg = "", fmt.Sprintf("the environment variable %s does not hold UTF-8", name)
			}
			b.WriteString(value)
			s = after
		default:
			b.WriteByte('$')
			s = rest
		}
	}
}

func variable(s string) bool {
	for i, c := range []byte(s) {
		if c != '_' && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}
