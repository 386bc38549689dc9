package config

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

const reference = "../../docs/CONFIGURATION.md"

const (
	beginKeys = "<!-- keys: written by go test ./internal/config -update -->\n"
	endKeys   = "<!-- end of keys -->\n"
)

func readReference(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(data), "\r\n", "\n")
}

// TestReference holds the tables of docs/CONFIGURATION.md against the schema, in both directions. Red with a row, a key
// or a default changed on one side.
func TestReference(t *testing.T) {
	text := readReference(t)
	before, rest, ok := strings.Cut(text, beginKeys)
	_, after, ok2 := strings.Cut(rest, endKeys)
	if !ok || !ok2 {
		t.Fatalf("%s lacks the marks %q and %q", reference, beginKeys, endKeys)
	}
	want := before + beginKeys + "\n" + keyTables() + endKeys + after
	if *update {
		if err := os.WriteFile(reference, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if text != want && !*update {
		t.Errorf("%s is not what the keys say; go test ./internal/config -update writes it", reference)
	}
	for _, k := range keyList() {
		if name := shownPath(k.path); !strings.Contains(want, "| `"+name+"` |") && k.form != formTable && k.form != formNamed {
			t.Errorf("%s is not in the reference", name)
		}
	}
}

func shownPath(path string) string { return strings.ReplaceAll(path, "*", "NAME") }

// keyTables writes the reference: a table for each table of keys, then what is refused for now.
func keyTables() string {
	var b, later strings.Builder
	b.WriteString(tableOf("", "The top level"))
	for _, k := range keyList() {
		switch {
		case k.later:
			fmt.Fprintf(&later, "| `%s` | %s |\n", shownPath(k.path), k.hint)
		case k.form == formNamed:
			b.WriteString(tableOf(k.path+".*", fmt.Sprintf("`[%s.NAME]`: %s", k.path, lowered(k.doc))))
		case k.form == formTable:
			b.WriteString(tableOf(k.path, fmt.Sprintf("`[%s]`: %s", shownPath(k.path), lowered(k.doc))))
		}
		for _, c := range k.choices {
			if c.later {
				fmt.Fprintf(&later, "| `%s = %q` | %s |\n", shownPath(k.path), c.name, c.hint)
			}
		}
	}
	return b.String() + "### Not supported yet\n\n| key | until then |\n|---|---|\n" + later.String() + "\n"
}

func lowered(doc string) string {
	return strings.ToLower(doc[:1]) + strings.TrimSuffix(doc[1:], ".")
}

func tableOf(pattern, title string) string {
	var rows strings.Builder
	s := newSchema()
	for _, k := range s.under[pattern] {
		if k.later {
			continue
		}
		fmt.Fprintf(&rows, "| `%s` | %s | %s | %s |\n", shownPath(k.path), accepts(k), defaults(k), k.doc)
		for _, sub := range s.under[k.path] {
			if k.form == formRef {
				fmt.Fprintf(&rows, "| `%s` | %s | %s | %s |\n", shownPath(sub.path), accepts(sub), defaults(sub), sub.doc)
			}
		}
	}
	return "### " + title + "\n\n| key | value | default | |\n|---|---|---|---|\n" + rows.String() + "\n"
}

func accepts(k key) string {
	between := func(low, high string) string {
		if low == high {
			return low
		}
		return fmt.Sprintf("%s, %s to %s", k.form, low, high)
	}
	switch k.form {
	case formChoice:
		var names []string
		for _, c := range k.choices {
			if !c.later {
				names = append(names, fmt.Sprintf("`%q`", c.name))
			}
		}
		return strings.Join(names, ", ")
	case formInt:
		return between(fmt.Sprint(k.min), fmt.Sprint(k.max))
	case formDuration, formKeep:
		return between(formatDuration(time.Duration(k.min)), formatDuration(time.Duration(k.max)))
	case formSize:
		return between(formatSize(k.min), formatSize(k.max))
	}
	return string(k.form)
}

func defaults(k key) string {
	switch {
	case k.required:
		return "required"
	case k.group != "":
		return "one " + k.group
	case k.def == "":
		return ""
	case k.form == formInt:
		return "`" + k.def + "`"
	}
	return fmt.Sprintf("`%q`", k.def)
}

// TestPlaceholders: the reference lists all that the name of an outbound's files may hold. Red with one added.
func TestPlaceholders(t *testing.T) {
	doc := newSchema().key["outbound.*.file.name"].doc
	for _, p := range filePlaceholders() {
		if !strings.Contains(doc, "`"+p+"`") {
			t.Errorf("the doc of name lacks %s", p)
		}
	}
}

// TestFields holds the schema against the types: every field of Config is set by a key, every key sets a field.
// Red with a field added, or a key's field misspelled.
func TestFields(t *testing.T) {
	var fields []string
	collect(reflect.TypeFor[Config](), "", &fields)
	var set []string
	for _, k := range keyList() {
		if leaf := k.form != formTable && k.form != formNamed; (k.field != "") != (leaf && !k.later) {
			t.Errorf("%s: field %q", k.path, k.field)
		}
		if k.field != "" {
			set = append(set, k.field)
		}
	}
	slices.Sort(fields)
	slices.Sort(set)
	fields = slices.DeleteFunc(fields, func(f string) bool {
		return slices.Contains([]string{
			"File", "Dir", "Inbounds.Name", "Handlers.Name", "Outbounds.Name", // not keys
			"Inbounds.Router.File", "Handlers.Run.File", "Handlers.Run.Name", "Handlers.Run.Command", // one key sets all of a Ref
		}, f)
	})
	set = slices.DeleteFunc(set, func(f string) bool { return f == "Inbounds.Router" || f == "Handlers.Run" })
	if !slices.Equal(fields, set) {
		t.Errorf("fields of Config: %q\nset by keys:      %q", fields, set)
	}
}

// collect appends the names of t's exported fields, those of the structs in it instead of the structs themselves.
func collect(t reflect.Type, name string, fields *[]string) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t.PkgPath() == "net/netip" {
		*fields = append(*fields, name)
		return
	}
	for i := range t.NumField() {
		if f := t.Field(i); f.IsExported() {
			collect(f.Type, dotted(name, f.Name), fields)
		}
	}
}

// TestSchema: every default is one that the key itself would take, and every parent is a key.
func TestSchema(t *testing.T) {
	all := newSchema().key
	if len(all) != len(keyList()) {
		t.Error("a key is in the list twice")
	}
	for _, k := range keyList() {
		parent, _, nested := cutLast(strings.TrimSuffix(k.path, ".*"), ".")
		if _, ok := all[strings.TrimSuffix(parent, ".*")]; nested && !ok {
			t.Errorf("%s has no parent", k.path)
		}
		if (k.doc == "") != k.later || (k.hint == "") == k.later {
			t.Errorf("%s: doc %q, hint %q, later %v", k.path, k.doc, k.hint, k.later)
		}
		if k.later || k.def == "" {
			continue
		}
		n, err := int64(math.MinInt64), error(nil)
		switch k.form {
		case formDuration, formKeep:
			var d time.Duration
			d, err = parseDuration(k.def)
			n = int64(d)
		case formSize:
			n, err = parseSize(k.def)
		case formInt:
			n, err = parseInt(k.def)
		case formChoice:
			if !slices.ContainsFunc(k.choices, func(c choice) bool { return c.name == k.def && !c.later }) {
				t.Errorf("%s: default %q is no choice", k.path, k.def)
			}
			continue
		default:
			continue
		}
		if err != nil || n < k.min || n > k.max {
			t.Errorf("%s: default %q: %v", k.path, k.def, err)
		}
	}
}

// TestReferenceExamples parses every TOML block of the reference that is a whole file.
func TestReferenceExamples(t *testing.T) {
	blocks := strings.Split(readReference(t), "```toml\n")[1:]
	whole := 0
	for _, block := range blocks {
		text, _, _ := strings.Cut(block, "```")
		if !strings.HasPrefix(text, "version") {
			continue
		}
		whole++
		if _, err := Parse(filepath.Join("testdata", "good", FileName), []byte(text), testEnv); err != nil {
			t.Errorf("%v\nin:\n%s", err, text)
		}
	}
	if whole == 0 {
		t.Error("there is no example")
	}
}
