package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"

	"coppice.dev/coppice/internal/config"
)

// printJSON prints one value, indented.
func printJSON(w io.Writer, v any) error {
	e := lines(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// lines prints one JSON value a line.
func lines(w io.Writer) *json.Encoder {
	e := json.NewEncoder(escaping{w})
	e.SetEscapeHTML(false)
	return e
}

// escaping writes JSON, whole values at a time, with escapes for what a terminal might act on and encoding/json lets pass: DEL, the
// control characters of 8 bits, what turns the writing direction. They stand in strings alone, which mean the same.
type escaping struct{ w io.Writer }

func (e escaping) Write(b []byte) (int, error) {
	var out []byte
	for rest := b; len(rest) > 0; {
		r, size := utf8.DecodeRune(rest)
		switch {
		case r < 0x7f || unicode.IsPrint(r):
			out = append(out, rest[:size]...)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		rest = rest[size:]
	}
	if _, err := e.w.Write(out); err != nil {
		return 0, err
	}
	return len(b), nil
}

// table prints rows whose cells line up. Cells are made safe to print; the first row is the heading.
func table(w io.Writer, rows [][]string) error {
	var lines bytes.Buffer
	t := tabwriter.NewWriter(&lines, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			if i > 0 {
				fmt.Fprint(t, "\t")
			}
			fmt.Fprint(t, printable(cell))
		}
		fmt.Fprintln(t)
	}
	t.Flush()
	for line := range bytes.Lines(lines.Bytes()) {
		if _, err := fmt.Fprintf(w, "%s\n", bytes.TrimRight(line, " \n")); err != nil { // an empty last cell leaves spaces
			return err
		}
	}
	return nil
}

// printable writes what a terminal might act on, and what is not UTF-8, as Go would quote it.
func printable(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1, r < 0x80 && !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		s = s[size:]
	}
	return b.String()
}

// printableError is an error of which a worker may have written a part, line by line.
func printableError(err error) string {
	var out []string
	for l := range strings.Lines(err.Error()) {
		l = printable(strings.TrimRight(l, "\r\n"))
		if len(out) > 0 && !strings.HasPrefix(l, "  ") {
			l = "  " + l // so that each error begins where a line does
		}
		out = append(out, l)
	}
	return strings.Join(out, "\n")
}

// clip shortens a cell to n characters.
func clip(s string, n int) string {
	last := 0 // where character n begins, which the mark takes the place of
	for i := range s {
		switch n--; {
		case n == 0:
			last = i
		case n < 0:
			return s[:last] + "…"
		}
	}
	return s
}

// several says how many there are of a thing.
func several(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// clock shows a time where the reader is; a zero one as nothing.
func clock(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05 -07:00")
}

// terminal says whether a stream is one.
func terminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// loadConfig reads a folder's configuration and prints all that is wrong with it.
func loadConfig(io stdio, dir string) (*config.Config, error) {
	cfg, err := config.Load(dir, os.LookupEnv)
	if err != nil {
		return nil, tellConfig(io, err)
	}
	return cfg, nil
}

// locate reads of a folder's configuration where its store is: the rest may be wrong.
func locate(io stdio, dir string) (*config.Config, error) {
	cfg, err := config.Locate(dir, os.LookupEnv)
	if err != nil {
		return nil, tellConfig(io, err)
	}
	return cfg, nil
}

// tellConfig prints the errors of a configuration, and returns what is left to say.
func tellConfig(io stdio, err error) error {
	var many config.Errors
	var one *config.Error
	switch {
	case errors.As(err, &many):
		for _, e := range many {
			fmt.Fprintln(io.err, printableError(e))
		}
		return told()
	case errors.As(err, &one):
		fmt.Fprintln(io.err, printableError(one))
		return told()
	}
	return err
}

// shortPath shows a path from where the reader stands, if that is shorter.
func shortPath(path string) string {
	wd, err := os.Getwd()
	if err != nil {
		return path
	}
	rel, err := filepath.Rel(wd, path)
	if err != nil || strings.HasPrefix(rel, "..") || len(rel) >= len(path) {
		return path
	}
	return rel
}

// shellWord quotes a path that a shell would take apart.
func shellWord(path string) string {
	if path == "" || strings.ContainsAny(path, " \t'()&;|<>*?") {
		return `"` + path + `"`
	}
	return path
}
