package main

import (
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
	"unicode/utf8"

	"golang.org/x/term"

	"coppice.dev/coppice/internal/config"
)

// printJSON prints one value, indented.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// lines prints one JSON value a line.
func lines(w io.Writer) *json.Encoder {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e
}

// table prints rows whose cells line up. Cells are made safe to print; the first row is the heading.
func table(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			if i > 0 {
				fmt.Fprint(t, "\t")
			}
			fmt.Fprint(t, printable(cell))
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

// printable writes what a terminal might act on, and what is not UTF-8, as Go would quote it.
func printable(s string) string {
	bad := func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }
	if strings.IndexFunc(s, bad) < 0 {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case !bad(r):
			b.WriteRune(r)
		case r == utf8.RuneError, r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// clip shortens a cell to n characters.
func clip(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
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

// tellConfig prints the errors of a configuration, and returns what is left to say.
func tellConfig(io stdio, err error) error {
	var many config.Errors
	var one *config.Error
	switch {
	case errors.As(err, &many):
		for _, e := range many {
			fmt.Fprintln(io.err, e)
		}
		return told()
	case errors.As(err, &one):
		fmt.Fprintln(io.err, one)
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

func readConfig(dir string) (*config.Config, error) { return config.Load(dir, os.LookupEnv) }

// problemsJSON prints the errors of a configuration for machines, and returns what is left to say.
func problemsJSON(io stdio, err error) error {
	var many config.Errors
	var one *config.Error
	switch {
	case errors.As(err, &many):
	case errors.As(err, &one):
		many = config.Errors{one}
	default:
		return err
	}
	for _, e := range many {
		if err := lines(io.out).Encode(problem{e.Msg, e.File, e.Line, e.Column, e.Hint}); err != nil {
			return err
		}
	}
	return told()
}
