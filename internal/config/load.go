package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

// FileName is what a configuration is called in its folder.
const FileName = "coppice.toml"

// MaxFileSize is the largest configuration that is read, in bytes.
const MaxFileSize = 1 << 20

const (
	initHint    = `"coppice init DIR" writes one`
	missingHint = initHint + "; --config DIR names the folder"
)

// Load reads DIR/coppice.toml; dir may also be the path of a .toml file itself. env looks up environment variables for
// ${NAME}; nil means that there are none. The error is an Errors: for a file that cannot be read, with one element that
// wraps the reason (errors.Is(err, fs.ErrNotExist)), else as in Parse.
func Load(dir string, env func(string) (string, bool)) (*Config, error) {
	file, data, err := find(dir)
	if err != nil {
		return nil, err
	}
	return Parse(file, data, env)
}

// Locate is Load for who wants to know of a folder where its store is, and what it declares as far as that can be made out: the
// rest of the file may be wrong, be it because somebody edits it or because a variable is not set here. The error is one that
// keeps the store from being known.
func Locate(dir string, env func(string) (string, bool)) (*Config, error) {
	file, data, err := find(dir)
	if err != nil {
		return nil, err
	}
	cfg, errs := parse(file, data, env)
	if cfg == nil {
		return nil, errs
	}
	for _, e := range errs {
		if e.Key == "store" || e.Key == "store.path" {
			return nil, Errors{e}
		}
	}
	return cfg, nil
}

// find reads the file that a folder, or a path, stands for.
func find(dir string) (file string, data []byte, err error) {
	file = dir
	info, err := os.Stat(dir)
	switch isDir := err == nil && info.IsDir(); {
	case !isDir && filepath.Ext(dir) == ".toml":
	case !isDir && err == nil:
		return "", nil, Errors{{File: dir, Msg: "this is a file; name a folder"}}
	default:
		file = filepath.Join(dir, FileName)
	}
	if !utf8.ValidString(file) {
		return "", nil, Errors{{File: strings.ToValidUTF8(file, "?"), Msg: "the name of the folder is not UTF-8, and workers are told of it in UTF-8"}}
	}
	data, bad := readFile(file)
	if bad != nil {
		bad.File = file
		return "", nil, Errors{bad}
	}
	return file, data, nil
}

func readFile(file string) ([]byte, *Error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, unreadable(err)
	}
	if !info.Mode().IsRegular() { // before it is opened: a named pipe would block
		return nil, &Error{Msg: "not a regular file", Hint: initHint}
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, unreadable(err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxFileSize+1))
	if err != nil {
		return nil, unreadable(err)
	}
	return data, nil
}

func unreadable(err error) *Error {
	bad := &Error{Msg: reason(err), err: err}
	if errors.Is(err, fs.ErrNotExist) {
		bad.Msg, bad.Hint = "there is no such file", missingHint
	}
	return bad
}

// reason is what went wrong without the path that it went wrong with: the path may come from the environment.
func reason(err error) string {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err.Error()
	}
	return err.Error()
}

// Parse checks the text of a configuration. file is where it is, or would be: it begins every error, and its folder is
// what relative paths are resolved against and where handler files are looked for. Links on the way to that folder are
// followed; where the file itself is a link, its folder is the one that the link is in. The error is an Errors with every
// problem that was found, in file order; each has a line and a column.
func Parse(file string, data []byte, env func(string) (string, bool)) (*Config, error) {
	cfg, errs := parse(file, data, env)
	if len(errs) > 0 {
		return nil, errs
	}
	return cfg, nil
}

// parse returns what it could make out beside what is wrong; nothing of a file that is no TOML.
func parse(file string, data []byte, env func(string) (string, bool)) (*Config, Errors) {
	if env == nil {
		env = func(string) (string, bool) { return "", false }
	}
	dir, err := filepath.Abs(filepath.Dir(file))
	if err != nil {
		return nil, Errors{{File: file, Line: 1, Column: 1, Msg: reason(err), err: err}}
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil { // else it is not there, and what is missing in it is told
		dir = real
	}
	root, bad := tree(data)
	if bad != nil {
		bad.File = file
		return nil, Errors{bad}
	}
	r := &reader{cfg: &Config{File: file, Dir: dir, root: root}, schema: newSchema(), broken: map[Pos]bool{}}
	r.expand(root, nil, env)
	r.unknown(root, nil, "")
	r.read()
	r.check()
	slices.SortStableFunc(r.errs, func(a, b *Error) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	return r.cfg, r.errs
}

// tree applies the caps to a file's text before the TOML parser sees it.
func tree(data []byte) (*node, *Error) {
	if len(data) > MaxFileSize {
		return nil, &Error{Line: 1, Column: 1, Msg: fmt.Sprintf("the file is larger than %s", formatSize(MaxFileSize))}
	}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if pos, ok := invalidUTF8(data); ok {
		return nil, &Error{Line: pos.Line, Column: pos.Column, Msg: "the text is not UTF-8", Hint: "save the file as UTF-8"}
	}
	return parseTree(bytes.Clone(data)) // the parser needs a slice of its own to tell offsets
}

func invalidUTF8(data []byte) (Pos, bool) {
	for off := 0; off < len(data); {
		r, size := utf8.DecodeRune(data[off:])
		if r == utf8.RuneError && size == 1 {
			before := data[:off]
			start := bytes.LastIndexByte(before, '\n') + 1
			return Pos{bytes.Count(before, []byte("\n")) + 1, utf8.RuneCount(before[start:]) + 1}, true
		}
		off += size
	}
	return Pos{}, false
}

// report records a problem at a place, unless a value is there that could not even be made out.
func (r *reader) report(at Pos, path []string, hint, format string, args ...any) {
	if r.broken[at] {
		return
	}
	r.errs = append(r.errs, &Error{
		File: r.cfg.File, Line: at.Line, Column: at.Column,
		Key: strings.Join(path, "."), Msg: fmt.Sprintf(format, args...), Hint: hint,
	})
}
