package file

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"coppice.dev/coppice/internal/message"
)

// Lengths in bytes. File systems allow 255 for a name; the rest is for the marks of a temporary file.
const (
	maxName  = 200
	maxID    = 40 // message.Delivery.Name: two int64 and a dash
	maxValue = 64 // of any other placeholder
	minValue = 8
)

// template names a delivery's file.
type template struct {
	parts []part
	value int // bytes that one value may have
}

// part is a literal, or (field set) a placeholder.
type part struct {
	literal string
	field   string
}

// placeholders are what a template may name, in the order in which an error lists them.
func placeholders() []string {
	return []string{"{id}", "{message}", "{inbound}", "{handler}", "{type}", "{control_id}"}
}

// parseTemplate checks a template. Each error says what to write instead.
func parseTemplate(s string) (template, error) {
	var t template
	for rest := s; rest != ""; {
		open := strings.IndexAny(rest, "{}")
		if open < 0 {
			t.parts = append(t.parts, part{literal: rest})
			break
		}
		if open > 0 {
			t.parts = append(t.parts, part{literal: rest[:open]})
		}
		end := strings.IndexByte(rest, '}')
		if rest[open] == '}' || end < 0 {
			return template{}, fmt.Errorf("name %q: brace without its partner", s)
		}
		name := rest[open : end+1]
		if !known(name) {
			return template{}, fmt.Errorf("name %q: unknown placeholder %s; known are %s", s, name,
				strings.Join(placeholders(), ", "))
		}
		t.parts = append(t.parts, part{field: name})
		rest = rest[end+1:]
	}
	if err := t.check(); err != nil {
		return template{}, fmt.Errorf("name %q: %w", s, err)
	}
	return t, nil
}

func known(name string) bool {
	for _, p := range placeholders() {
		if p == name {
			return true
		}
	}
	return false
}

// check refuses templates that could leave the folder, hide the file, or give two deliveries one name.
func (t *template) check() error {
	ids, values, length := 0, 0, 0
	for _, p := range t.parts {
		switch {
		case p.field == "{id}":
			ids++
			length += maxID
		case p.field != "":
			values++
		case sanitise(p.literal, len(p.literal)) != p.literal:
			return fmt.Errorf("%q may not stand in a file's name", p.literal)
		default:
			length += len(p.literal)
		}
	}
	if len(t.parts) > 0 && strings.HasPrefix(t.parts[0].literal, ".") {
		return errors.New("begins with a dot, which hides the file")
	}
	if ids != 1 {
		return errors.New("must hold {id} once, else two deliveries could overwrite each other; write \"{id}.hl7\"")
	}
	if err := t.unambiguous(); err != nil {
		return err
	}
	t.value = maxValue
	if values > 0 {
		t.value = min(maxValue, (maxName-length)/values)
	}
	if length > maxName || t.value < minValue {
		return fmt.Errorf("too long: a file's name has at most %d bytes", maxName)
	}
	return nil
}

// unambiguous sees to it that the id can be read back from the name, whatever a peer put into type and control id: only
// then have two deliveries two names. So one side of {id} is literal alone, and next to it stands no digit and no value:
// "{id}{type}" makes one name of 1-1 with "2x" and of 1-12 with "x".
func (t *template) unambiguous() error {
	at := 0
	for i, p := range t.parts {
		if p.field == "{id}" {
			at = i
		}
	}
	before, after := t.parts[:at], t.parts[at+1:]
	if hasValue(before) && hasValue(after) {
		return errors.New("{id} must be the first or the last placeholder")
	}
	if n := len(before); n > 0 && (before[n-1].field != "" || digit(before[n-1].literal[len(before[n-1].literal)-1])) {
		return errors.New("before {id} must stand a character that is no digit, such as \"-\"")
	}
	if len(after) > 0 && (after[0].field != "" || digit(after[0].literal[0])) {
		return errors.New("after {id} must stand a character that is no digit, such as \"-\"")
	}
	return nil
}

func hasValue(parts []part) bool {
	for _, p := range parts {
		if p.field != "" {
			return true
		}
	}
	return false
}

func digit(c byte) bool { return '0' <= c && c <= '9' }

// name is d's file name: one path element, at most maxName bytes and a few.
func (t *template) name(d message.Delivery) string {
	var b strings.Builder
	for _, p := range t.parts {
		switch p.field {
		case "":
			b.WriteString(p.literal)
		case "{id}":
			b.WriteString(d.Name())
		case "{message}":
			b.WriteString(sanitise(strconv.FormatInt(int64(d.Message), 10), t.value))
		case "{inbound}":
			b.WriteString(sanitise(d.Inbound, t.value))
		case "{handler}":
			b.WriteString(sanitise(d.Handler, t.value))
		case "{type}":
			b.WriteString(sanitise(d.Type, t.value))
		case "{control_id}":
			b.WriteString(sanitise(d.Control, t.value))
		}
	}
	return visible(b.String())
}

// sanitise makes s fit into a path element on every system that Coppice runs on: what Windows forbids is replaced
// everywhere, so that a name means the same file wherever a configuration runs. Empty becomes "_".
func sanitise(s string, max int) string {
	var b strings.Builder
	for _, r := range s {
		if !unicode.IsPrint(r) || r == utf8.RuneError || strings.ContainsRune(`/\:*?"<>|`, r) {
			r = '_'
		}
		if b.Len()+utf8.RuneLen(r) > max {
			break
		}
		b.WriteRune(r)
	}
	if b.Len() == 0 {
		return "_"
	}
	return strings.ReplaceAll(b.String(), "..", "__")
}

// visible replaces what is special at a whole name's ends: a leading dot hides it, Windows drops a trailing dot or space,
// and opens a device for CON, NUL and their like, whatever follows their first dot.
func visible(name string) string {
	name = strings.ReplaceAll(name, "..", "__") // where a value's dot met a literal's
	if name[0] == '.' {
		name = "_" + name[1:]
	}
	if last := len(name) - 1; name[last] == '.' || name[last] == ' ' {
		name = name[:last] + "_"
	}
	stem, _, _ := strings.Cut(name, ".")
	switch s := strings.ToUpper(strings.TrimSpace(stem)); s {
	case "CON", "PRN", "AUX", "NUL":
		return "_" + name
	default:
		if len(s) == 4 && (s[:3] == "COM" || s[:3] == "LPT") {
			return "_" + name
		}
	}
	return name
}
