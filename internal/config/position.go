package config

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// Pos is a place in the file.
type Pos struct {
	Line, Column int // from 1; columns count characters, not bytes
}

// String returns "line:column".
func (p Pos) String() string { return strconv.Itoa(p.Line) + ":" + strconv.Itoa(p.Column) }

// Pos returns where the value at path begins: Pos("handler", "admit", "run"), or Pos("handler", "admit", "to", "1") for
// the second element of an array. For a table it is where its name is written. A path that is not in the file (a
// default, say) gives the place of the closest table around it, and at last 1:1.
func (c *Config) Pos(path ...string) Pos {
	n := c.root
	for _, name := range path {
		next := n.child(name)
		if next == nil {
			break
		}
		n = next
	}
	return n.at
}

// Written is the string at path as it stands in the file, with ${NAME} for what comes from the environment: the form to show in
// errors. Empty for a path that is not in the file, or that is no string.
func (c *Config) Written(path ...string) string {
	n := c.root
	for _, name := range path {
		n = n.child(name)
	}
	if n == nil {
		return ""
	}
	return n.source
}

// Secret says whether the string at path holds something from the environment, so that no error may show it.
func (c *Config) Secret(path ...string) bool {
	n := c.root
	for _, name := range path {
		n = n.child(name)
	}
	return n != nil && n.expanded()
}

// kind is what TOML makes of a value, in the words of an error message.
type kind string

const (
	aTable   kind = "a table"
	anArray  kind = "an array"
	aString  kind = "a string"
	anInt    kind = "an integer"
	aFloat   kind = "a float"
	aBoolean kind = "a boolean"
	aTime    kind = "a date or time"
)

// node is one value of the file with its place.
type node struct {
	kind     kind
	key      Pos // where its key is written
	at       Pos // where it is written itself; for a table with a header, the last part of the name in it
	implicit bool

	source string // a string as written, before ${NAME} was replaced: the only form that may be shown
	text   string // a string as meant
	scalar any    // int64, float64 or bool

	names []string // a table's keys in file order
	kids  map[string]*node
	elems []*node // an array's
}

func newTable(key, at Pos) *node {
	return &node{kind: aTable, key: key, at: at, kids: map[string]*node{}}
}

// child returns the entry of a table or the element of an array, or nil; nil has none.
func (n *node) child(name string) *node {
	if n == nil {
		return nil
	}
	if n.kind == anArray {
		if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(n.elems) {
			return n.elems[i]
		}
		return nil
	}
	return n.kids[name]
}

// expanded says whether the value holds something from the environment.
func (n *node) expanded() bool { return n.source != n.text }

// parseTree reads TOML into nodes. go-toml's decoder judges the syntax first (duplicates, numbers, nesting), so that
// the walk behind it meets valid documents alone. The error's File is left empty.
func parseTree(data []byte) (*node, *Error) {
	var judged map[string]any
	if err := toml.Unmarshal(data, &judged); err != nil {
		return nil, syntaxError(data, err)
	}
	w := walker{cursor: cursor{data: data, pos: Pos{1, 1}}, data: data}
	root := newTable(Pos{1, 1}, Pos{1, 1})
	table := root
	w.parser.Reset(data)
	for w.parser.NextExpression() {
		switch e := w.parser.Expression(); e.Kind {
		case unstable.Table:
			table = w.header(root, e, false)
		case unstable.ArrayTable:
			table = w.header(root, e, true)
		case unstable.KeyValue:
			w.keyValue(table, e)
		}
	}
	if err := w.parser.Error(); err != nil {
		return nil, &Error{Line: 1, Column: 1, Msg: err.Error()}
	}
	return root, nil
}

func syntaxError(data []byte, err error) *Error {
	var bad *toml.DecodeError
	if !errors.As(err, &bad) {
		return &Error{Line: 1, Column: 1, Msg: strings.TrimPrefix(err.Error(), "toml: ")}
	}
	line, column := bad.Position() // the column counts bytes
	start := 0
	for range line - 1 {
		start += bytes.IndexByte(data[start:], '\n') + 1
	}
	end := min(start+max(column, 1)-1, len(data))
	return &Error{
		Line: max(line, 1), Column: utf8.RuneCount(data[start:end]) + 1,
		Key: strings.Join(bad.Key(), "."), Msg: strings.TrimPrefix(bad.Error(), "toml: "),
	}
}

// cursor turns offsets into places. Offsets that mostly ascend cost one pass over the file in total.
type cursor struct {
	data []byte
	off  int
	pos  Pos
}

func (c *cursor) at(off int) Pos {
	if off < c.off {
		c.off, c.pos = 0, Pos{1, 1}
	}
	for c.off < off {
		_, size := utf8.DecodeRune(c.data[c.off:])
		c.pos.Column++
		if c.data[c.off] == '\n' {
			c.pos = Pos{c.pos.Line + 1, 1}
		}
		c.off += size
	}
	return c.pos
}

type walker struct {
	cursor cursor
	parser unstable.Parser
	data   []byte
}

// header opens the table that a [a.b] or [[a.b]] line names.
func (w *walker) header(root *node, e *unstable.Node, array bool) *node {
	table := root
	var pos Pos
	for it := e.Key(); it.Next(); {
		pos = w.cursor.at(int(it.Node().Raw.Offset))
		name := string(it.Node().Data)
		if array && it.IsLast() {
			return w.appendTable(table, name, pos)
		}
		table = w.open(table, name, pos)
	}
	if table.implicit {
		table.at, table.key, table.implicit = pos, pos, false
	}
	return table
}

func (w *walker) appendTable(parent *node, name string, pos Pos) *node {
	array := parent.kids[name]
	if array == nil {
		array = &node{kind: anArray, key: pos, at: pos}
		parent.put(name, array)
	}
	table := newTable(pos, pos)
	array.elems = append(array.elems, table)
	return table
}

// open returns the table called name in parent, the last one of an array of tables, making it if it is not there.
func (w *walker) open(parent *node, name string, pos Pos) *node {
	n := parent.kids[name]
	if n == nil {
		n = newTable(pos, pos)
		n.implicit = true
		parent.put(name, n)
	}
	if n.kind == anArray {
		return n.elems[len(n.elems)-1]
	}
	return n
}

func (n *node) put(name string, child *node) {
	n.names = append(n.names, name)
	n.kids[name] = child
}

func (w *walker) keyValue(table *node, e *unstable.Node) {
	end := 0
	for it := e.Key(); it.Next(); {
		raw := it.Node().Raw
		pos := w.cursor.at(int(raw.Offset))
		end = int(raw.Offset + raw.Length)
		if !it.IsLast() {
			table = w.open(table, string(it.Node().Data), pos)
			continue
		}
		value := w.value(e.Value(), w.cursor.at(w.valueOffset(end)))
		value.key = pos
		table.put(string(it.Node().Data), value)
	}
}

// valueOffset finds the value behind the key that ends at end; arrays have no range of their own in the parser's tree.
func (w *walker) valueOffset(end int) int {
	for end < len(w.data) && strings.IndexByte(" \t=", w.data[end]) >= 0 {
		end++
	}
	return end
}

func (w *walker) value(e *unstable.Node, at Pos) *node {
	n := &node{key: at, at: at}
	switch e.Kind {
	case unstable.InlineTable:
		n.kind, n.kids = aTable, map[string]*node{}
		for it := e.Children(); it.Next(); {
			w.keyValue(n, it.Node())
		}
	case unstable.Array:
		n.kind = anArray
		for it := e.Children(); it.Next(); {
			pos := at
			if raw := it.Node().Raw; raw.Length > 0 {
				pos = w.cursor.at(int(raw.Offset))
			}
			n.elems = append(n.elems, w.value(it.Node(), pos))
		}
	default:
		n.setScalar(e)
	}
	return n
}

func (n *node) setScalar(e *unstable.Node) {
	digits := strings.ReplaceAll(string(e.Data), "_", "")
	switch e.Kind {
	case unstable.String:
		n.kind, n.source, n.text = aString, string(e.Data), string(e.Data)
	case unstable.Bool:
		n.kind, n.scalar = aBoolean, digits == "true"
	case unstable.Integer:
		i, _ := strconv.ParseInt(digits, 0, 64) // judged by the decoder
		n.kind, n.scalar = anInt, i
	case unstable.Float:
		f, _ := strconv.ParseFloat(digits, 64)
		n.kind, n.scalar = aFloat, f
	default:
		n.kind = aTime
	}
}
