package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// table is one table of the file seen through the schema. Its getters report what is wrong with a value and then return
// the default, so that reading goes on; a missing table (node nil) gives defaults alone.
type table struct {
	r       *reader
	node    *node
	path    []string // as in the file
	pattern string   // as in the schema
}

// spec returns what the schema says of a key; a key that it lacks is a mistake in this package.
func (t table) spec(name string) key {
	k, ok := t.r.schema.key[dotted(t.pattern, name)]
	if !ok {
		panic("config: no such key in the schema: " + dotted(t.pattern, name))
	}
	return k
}

func (t table) child(name string) *node {
	if t.node == nil {
		return nil
	}
	return t.node.kids[name]
}

func (t table) has(name string) bool { return t.child(name) != nil }

func (t table) under(name string) []string { return append(slices.Clone(t.path), name) }

// report records a problem with the key called name in this table.
func (t table) report(at Pos, name, hint, format string, args ...any) {
	t.r.report(at, t.under(name), hint, format, args...)
}

// title is the table as a header names it.
func (t table) title() string { return title(t.path) }

func title(path []string) string { return "[" + show(strings.Join(path, "."), "") + "]" }

// value returns the node of a key if it is of the kind. It reports a value of another kind, and a required key that is
// not there; then, and for an optional key that is not there, it returns nil.
func (t table) value(name string, want kind, example string) *node {
	spec := t.spec(name)
	n := t.child(name)
	if n == nil {
		if spec.required && t.node != nil {
			t.report(t.node.at, name, "add: "+name+" = "+example, "%s lacks the key %q", t.title(), name)
		}
		return nil
	}
	if n.kind != want {
		t.wrongKind(n, name, want, example)
		return nil
	}
	return n
}

func (t table) wrongKind(n *node, name string, want kind, example string) {
	t.report(n.at, name, "", "%s must be %s such as %s, not %s", name, want, example, n.kind)
}

// table returns the table under a key; a zero one that gives defaults if it is not there or not a table.
func (t table) table(name string) table {
	hint := ""
	if t.spec(name).form == formNamed {
		hint = fmt.Sprintf("write [%s.NAME]", name)
	}
	sub := table{r: t.r, path: t.under(name), pattern: dotted(t.pattern, name)}
	if n := t.child(name); n != nil {
		if n.kind == aTable {
			sub.node = n
		} else {
			t.report(n.at, name, hint, "%s must be a table, not %s", name, n.kind)
		}
	}
	return sub
}

// named yields the tables under a key that takes names, in file order.
func (t table) named(name string) func(yield func(string, table) bool) {
	all := t.table(name)
	return func(yield func(string, table) bool) {
		if all.node == nil {
			return
		}
		for _, each := range all.node.names {
			sub := table{r: t.r, node: all.node.kids[each], path: all.under(each), pattern: dotted(all.pattern, "*")}
			if !validName(each) {
				sub.r.report(sub.node.key, sub.path, nameHint, "%s name %s is not allowed", name, show(each, `"`))
			}
			if sub.node.kind != aTable {
				sub.r.report(sub.node.at, sub.path, "", "%s must be a table, not %s", show(each, ""), sub.node.kind)
				continue
			}
			if !yield(each, sub) {
				return
			}
		}
	}
}

const nameHint = "a name has 1 to 64 of the characters a-z, 0-9, - and _, and begins with a letter or a digit"

func validName(s string) bool {
	ok := len(s) >= 1 && len(s) <= 64 && s[0] != '-' && s[0] != '_'
	for _, c := range []byte(s) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_')
	}
	return ok
}

// oneOf reports a group of which not exactly one key is given. A key that is refused for now counts: it has an error.
func (t table) oneOf(group string) {
	var names []string
	var given []string
	for _, k := range t.r.schema.under[t.pattern] {
		if k.group != group {
			continue
		}
		if !k.later {
			names = append(names, k.name)
		}
		if t.has(k.name) {
			given = append(given, k.name)
		}
	}
	switch len(given) {
	case 0:
		t.r.report(t.node.at, t.path, "", "%s needs one of %s", t.title(), strings.Join(names, ", "))
	case 1:
	default:
		last := given[len(given)-1]
		t.report(t.node.kids[last].key, last, "keep one of them", "%s has %s; they exclude one another", t.title(), strings.Join(given, " and "))
	}
}

func (t table) choice(name string) string {
	spec := t.spec(name)
	n := t.value(name, aString, `"`+spec.choices[0].name+`"`)
	if n == nil {
		return spec.def
	}
	var names []string
	for _, c := range spec.choices {
		if c.name == n.text {
			if c.later {
				t.report(n.at, name, c.hint, "%s = %s is not supported yet", name, show(n.source, `"`))
			}
			return n.text
		}
		if !c.later {
			names = append(names, `"`+c.name+`"`)
		}
	}
	t.report(n.at, name, "write "+strings.Join(names, " or "), "%s cannot be %s", name, show(n.source, `"`))
	return spec.def
}

func (t table) integer(name string) int {
	spec := t.spec(name)
	n := t.value(name, anInt, fmt.Sprint(spec.min))
	if n == nil {
		i, _ := parseInt(spec.def)
		return int(i)
	}
	i := n.scalar.(int64)
	if i < spec.min || i > spec.max {
		t.outOfRange(n, name, fmt.Sprint(i), fmt.Sprint(spec.min), fmt.Sprint(spec.max))
		return int(spec.min)
	}
	return int(i)
}

func (t table) duration(name string) time.Duration {
	form := durationForm
	if t.spec(name).form == formKeep {
		form += `; or "` + forever + `"`
	}
	n, i := quantityOf(t, name, form, func(s string) (int64, error) { d, err := parseDuration(s); return int64(d), err })
	if spec := t.spec(name); n != nil && (i < spec.min || i > spec.max) {
		t.outOfRange(n, name, show(n.source, `"`), formatDuration(time.Duration(spec.min)), formatDuration(time.Duration(spec.max)))
	}
	return time.Duration(i)
}

// keep is a duration, or zero for ever.
func (t table) keep(name string) time.Duration {
	if n := t.child(name); n != nil && n.kind == aString && n.text == forever {
		return 0
	}
	return t.duration(name)
}

func (t table) size(name string) int64 {
	n, i := quantityOf(t, name, sizeForm, parseSize)
	if spec := t.spec(name); n != nil && (i < spec.min || i > spec.max) {
		t.outOfRange(n, name, show(n.source, `"`), formatSize(spec.min), formatSize(spec.max))
	}
	return i
}

// quantityOf parses a key's string, or its default. The node is nil if the value is not the file's, or was reported.
func quantityOf(t table, name, form string, parse func(string) (int64, error)) (*node, int64) {
	spec := t.spec(name)
	def, _ := parse(spec.def)
	n := t.value(name, aString, `"`+spec.def+`"`)
	if n == nil {
		return nil, def
	}
	i, err := parse(n.text)
	switch {
	case errors.Is(err, errLarge):
		t.report(n.at, name, "", "%s: %s is too large", name, show(n.source, `"`))
		return nil, def
	case err != nil:
		t.report(n.at, name, form, "%s: %s is not a %s", name, show(n.source, `"`), spec.form)
		return nil, def
	}
	return n, i
}

func (t table) outOfRange(n *node, name, got, low, high string) {
	if low == high {
		t.report(n.at, name, "", "%s must be %s, not %s", name, low, got)
		return
	}
	t.report(n.at, name, "", "%s must be from %s to %s, not %s", name, low, high, got)
}

// strings returns the elements of an array; nil if the key is not there. Duplicates are reported; what the
// elements may name is for check to say.
func (t table) strings(name string) []string {
	n := t.value(name, anArray, "[]")
	if n == nil {
		return nil
	}
	all := []string{}
	seen := map[string]bool{}
	for _, e := range n.elems {
		switch {
		case e.kind != aString:
			t.report(e.at, name, "", "%s must be an array of strings; it has %s in it", name, e.kind)
		case seen[e.text]:
			t.report(e.at, name, "", "%s has %s twice", name, show(e.source, `"`))
		default:
			all = append(all, e.text)
			seen[e.text] = true
		}
	}
	return all
}

func (t table) settings(name string) map[string]any {
	all := map[string]any{}
	sub := t.table(name)
	if sub.node == nil {
		return all
	}
	for _, each := range sub.node.names {
		n := sub.node.kids[each]
		switch {
		case n.kind == aString:
			all[each] = n.text
		case n.kind == anInt, n.kind == aBoolean, n.kind == aFloat && finite(n.scalar.(float64)):
			all[each] = n.scalar
		case n.kind == aFloat:
			sub.r.report(n.at, sub.under(each), "", "the setting %s must be a finite number", show(each, `"`))
		default:
			sub.r.report(n.at, sub.under(each), "write it as a string, and let the handler take it apart",
				"the setting %s must be a string, an integer, a float or a boolean, not %s", show(each, `"`), n.kind)
		}
	}
	return all
}
