package config

import (
	"fmt"
	"strings"
)

// Error is one problem with a configuration.
type Error struct {
	File         string // as the configuration was asked for
	Line, Column int    // from 1, columns in characters; 0 when the file itself is the problem
	Key          string // dotted, such as "handler.admit.deadline"; may be empty
	Msg          string // one line; never what an environment variable holds
	Hint         string // what to do about it; may be empty

	err error
}

// Error returns "file:line:column: message", and the hint, if there is one, on an indented line of its own.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", e.Line, e.Column)
	}
	b.WriteString(": " + e.Msg)
	if e.Hint != "" {
		b.WriteString("\n  hint: " + e.Hint)
	}
	return b.String()
}

// Unwrap returns the operating system's error, when the file could not be read, else nil.
func (e *Error) Unwrap() error { return e.err }

// Errors is all that is wrong with a configuration, in file order. It is never empty when returned.
type Errors []*Error

// Error returns all of them, one after the other, each on its own line or two.
func (es Errors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.Is and errors.As look at each.
func (es Errors) Unwrap() []error {
	errs := make([]error, len(es))
	for i, e := range es {
		errs[i] = e
	}
	return errs
}

// Errorf makes an error about the value at path, for a check that needs more than the file to find it (a worker that
// does not offer a name, a port that is taken). The path is as in Pos; the hint may be empty.
func (c *Config) Errorf(path []string, hint, format string, args ...any) *Error {
	pos := c.Pos(path...)
	return &Error{
		File: c.File, Line: pos.Line, Column: pos.Column,
		Key: strings.Join(path, "."), Msg: fmt.Sprintf(format, args...), Hint: hint,
	}
}
