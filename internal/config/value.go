package config

import (
	"cmp"
	"math"
	"net"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

func parseInt(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) }

func finite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }

// maxShown is how many characters of a value an error repeats.
const maxShown = 60

// show makes what stands in the file fit for one line of an error: control characters escaped, cut if long. quote is
// put around it; without one, it is quoted only if it needs to be.
func show(source, quote string) string {
	cut := source
	if utf8.RuneCountInString(source) > maxShown {
		cut = string([]rune(source)[:maxShown]) + "..."
	}
	quoted := strconv.Quote(cut)
	if quote == "" && quoted == `"`+cut+`"` && cut != "" {
		return cut
	}
	return quoted
}

// address reads host:port. What connects needs a host and a port other than 0.
func (t table) address(name string) string {
	n := t.value(name, aString, `"127.0.0.1:6661"`)
	if n == nil {
		return ""
	}
	host, port, err := net.SplitHostPort(n.text)
	number, bad := strconv.ParseUint(port, 10, 16)
	connects := name == "connect"
	switch {
	case err != nil, bad != nil, strings.ContainsFunc(host, notInHost), connects && number == 0:
		t.report(n.at, name, `write a host, a colon and a port from 1 to 65535, such as "127.0.0.1:6661" or "[::1]:6661"`,
			"%s: %s is not host:port", name, show(n.source, `"`))
		return ""
	case connects && host == "":
		t.report(n.at, name, `a receiver on this host is "127.0.0.1:PORT"`, "%s: %s has no host", name, show(n.source, `"`))
		return ""
	}
	return n.text
}

func notInHost(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune(`/\@?#"'`, r) }

// file reads a path and resolves it against the configuration's folder.
func (t table) file(name string) string {
	text := t.spec(name).def
	n := t.value(name, aString, strconv.Quote(cmp.Or(t.spec(name).example, "var/adt")))
	switch {
	case n == nil && text == "":
		return ""
	case n != nil && (n.text == "" || strings.ContainsRune(n.text, 0)):
		t.report(n.at, name, "", "%s: %s is not a path", name, show(n.source, `"`))
		return ""
	case n != nil:
		text = n.text
	}
	return t.r.resolve(text)
}

func (r *reader) resolve(text string) string {
	text = filepath.FromSlash(text)
	if filepath.IsAbs(text) {
		return filepath.Clean(text)
	}
	return filepath.Join(r.cfg.Dir, text)
}

// program resolves what is to be executed: a name without a folder is left for PATH, anything else is a path.
func (r *reader) program(text string) string {
	if filepath.Base(filepath.FromSlash(text)) == text {
		return text
	}
	return r.resolve(text)
}

func (t table) interpreter(name string) string {
	n := t.value(name, aString, `"`+t.spec(name).def+`"`)
	if n == nil {
		return t.spec(name).def
	}
	if !executable(n.text) {
		t.report(n.at, name, "", "%s: %s is not a program", name, show(n.source, `"`))
		return t.spec(name).def
	}
	return t.r.program(n.text)
}

func executable(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.HasSuffix(s, "/") && !strings.ContainsRune(s, 0)
}

// fileNames reads a file name with wildcards.
func (t table) fileNames(name string) string {
	n := t.value(name, aString, `"*.hl7"`)
	if n == nil {
		return t.spec(name).def
	}
	_, err := path.Match(n.text, "")
	if err != nil || n.text == "" || strings.ContainsAny(n.text, "/\x00") {
		t.report(n.at, name, `write a file name without a folder, such as "*.hl7"`,
			"%s: %s is not a pattern for file names", name, show(n.source, `"`))
	}
	return n.text
}

func readFileIn(t table) *FileIn {
	in := &FileIn{
		Dir:        t.file("dir"),
		Pattern:    t.fileNames("pattern"),
		Poll:       t.duration("poll"),
		Stable:     t.duration("stable"),
		MaxMessage: t.size("max_message"),
		After:      t.choice("after"),
		MoveTo:     t.file("move_to"),
	}
	n := t.child("move_to")
	switch {
	case in.After == "delete" && n != nil:
		t.report(n.key, "move_to", "", `move_to goes with after = "move"`)
	case in.After == "move" && n == nil && in.Dir != "":
		in.MoveTo = filepath.Join(in.Dir, "done")
	}
	return in
}

// filePlaceholders are what the name of an outbound's files may hold; package file of the connections fills them in.
func filePlaceholders() []string {
	return []string{"{id}", "{message}", "{inbound}", "{handler}", "{type}", "{control_id}"}
}

// template reads the name of an outbound's files. Without {id} a delivery would overwrite the one before.
func (t table) template(name string) string {
	n := t.value(name, aString, `"{id}.hl7"`)
	if n == nil {
		return t.spec(name).def
	}
	fixed := n.text
	for _, placeholder := range filePlaceholders() {
		fixed = strings.ReplaceAll(fixed, placeholder, "")
	}
	switch {
	case strings.ContainsAny(fixed, `{}`):
		t.report(n.at, name, "there are "+strings.Join(filePlaceholders(), ", "), "%s: %s has an unknown placeholder", name, show(n.source, `"`))
	case !strings.Contains(n.text, "{id}"):
		t.report(n.at, name, `write "{id}.hl7", for instance`,
			"%s: without {id}, %s would name the same file for every delivery", name, show(n.source, `"`))
	case strings.ContainsAny(fixed, `/\:*?"<>|`) || strings.ContainsFunc(fixed, unicode.IsControl) || strings.HasPrefix(n.text, "."):
		t.report(n.at, name, `no folder, no dot in front, none of \ : * ? " < > |`,
			"%s: %s is not a file name on every system", name, show(n.source, `"`))
	}
	return n.text
}
