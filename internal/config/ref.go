package config

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
)

const refHint = `write a Python or JavaScript file of this folder and a function in it, such as "adt.py:admit" or "adt.mjs:admit"`

// ref reads a reference to a function: "adt.py:admit", or, where the schema has such keys, a table with a command.
func (t table) ref(name string) *Ref {
	n := t.child(name)
	if _, ok := t.r.schema.key[dotted(t.spec(name).path, "command")]; ok && n.kind == aTable {
		sub := t.table(name)
		return &Ref{Command: sub.command("command"), Name: sub.offered("name")}
	}
	if n.kind != aString {
		t.wrongKind(n, name, aString, `"adt.py:admit"`)
		return &Ref{}
	}
	file, function, ok := cutLast(n.text, ":")
	shown := show(n.source, `"`)
	file = path.Clean(filepath.ToSlash(file))
	switch {
	case !ok:
		t.report(n.at, name, refHint, "%s: %s is not file:name", name, shown)
	case !identifier(function):
		t.report(n.at, name, refHint, "%s: what follows the colon in %s is not a function's name", name, shown)
	case !filepath.IsLocal(filepath.FromSlash(file)) || strings.ContainsRune(file, 0):
		t.report(n.at, name, "give the path from the folder of this file, without ..", "%s: the file of %s is not in this folder", name, shown)
	case !slices.Contains([]string{".py", ".mjs", ".js"}, path.Ext(file)):
		t.report(n.at, name, "for another language, use command", "%s: the file of %s is neither Python (.py) nor JavaScript (.mjs, .js)", name, shown)
	default:
		t.exists(n, name, file)
	}
	return &Ref{File: file, Name: function}
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// exists reports a file of the configuration's folder that is not there, or that a link leads out of the folder.
func (t table) exists(n *node, name, file string) {
	shown := show(n.source, `"`)
	root, err := os.OpenRoot(t.r.cfg.Dir)
	if err != nil {
		t.report(n.at, name, "", "%s: the folder of %s cannot be read: %s", name, shown, reason(err))
		return
	}
	defer root.Close()
	info, err := root.Stat(filepath.FromSlash(file))
	switch {
	case os.IsNotExist(err):
		t.report(n.at, name, "", "%s: the file of %s does not exist", name, shown)
	case err != nil:
		t.report(n.at, name, "", "%s: the file of %s cannot be used: %s", name, shown, reason(err))
	case !info.Mode().IsRegular():
		t.report(n.at, name, "", "%s: the file of %s is not a regular file", name, shown)
	}
}

// identifier says whether Python and JavaScript could take s as a name; names with $ are not worth a rule of their own.
func identifier(s string) bool {
	for i, c := range s {
		switch {
		case c == '_' || unicode.IsLetter(c):
		case i > 0 && (unicode.IsDigit(c) || unicode.IsMark(c)):
		default:
			return false
		}
	}
	return s != ""
}

// command reads a program with its arguments.
func (t table) command(name string) []string {
	n := t.value(name, anArray, `["./bin/adt"]`)
	if n == nil {
		return nil
	}
	var all []string
	for _, e := range n.elems {
		if e.kind != aString || strings.ContainsRune(e.text, 0) {
			t.report(e.at, name, "", "%s must be an array of strings without NUL", name)
			return nil
		}
		all = append(all, e.text)
	}
	if len(all) == 0 || !executable(all[0]) {
		t.report(n.at, name, `write a program and its arguments, such as ["./bin/adt", "-v"]`, "%s names no program", name)
		return nil
	}
	return slices.Concat([]string{t.r.program(all[0])}, all[1:])
}

// offered reads the name under which a worker offers a function.
func (t table) offered(name string) string {
	n := t.value(name, aString, `"route"`)
	if n == nil {
		return ""
	}
	if n.text == "" || len(n.text) > 64 || strings.ContainsFunc(n.text, func(r rune) bool { return !unicode.IsPrint(r) || r == ' ' }) {
		t.report(n.at, name, "", "%s: %s is not a name that a worker can offer (1 to 64 bytes, no spaces)", name, show(n.source, `"`))
	}
	return n.text
}
