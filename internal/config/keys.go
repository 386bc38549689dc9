package config

import (
	"fmt"
	"strconv"
	"strings"
)

// unknown walks a table and reports keys that the schema lacks, or that it refuses for now. What is wrong with the
// values of the others is for the getters to say.
func (r *reader) unknown(n *node, at []string, pattern string) {
	if form := r.schema.key[pattern].form; n.kind != aTable || form == formSettings || form == formHeaders {
		return
	}
	for _, name := range n.names {
		child := n.kids[name]
		path := append(at, name)
		spec, known := r.schema.key[dotted(pattern, name)]
		if r.schema.key[pattern].form == formNamed {
			r.unknown(child, path, dotted(pattern, "*"))
			continue
		}
		switch {
		case !known:
			r.report(child.key, path, suggest(name, r.schema.under[pattern]), "unknown key %s%s", show(name, `"`), in(at))
		case spec.later:
			r.report(child.key, path, spec.hint, "key %s is not supported yet", show(strings.Join(path, "."), `"`))
		case len(r.schema.under[spec.path]) > 0 || spec.form == formNamed:
			r.unknown(child, path, spec.path)
		}
	}
}

func in(path []string) string {
	if len(path) == 0 {
		return ""
	}
	return " in " + title(path)
}

// suggest makes a hint for a key that is not known: the closest one that is, or all of them.
func suggest(name string, keys []key) string {
	var names []string
	for _, k := range keys {
		if !k.later {
			names = append(names, k.name)
		}
	}
	if closest := closest(name, names); closest != "" {
		return fmt.Sprintf("did you mean %q?", closest)
	}
	if len(names) == 0 {
		return ""
	}
	return "known here: " + strings.Join(names, ", ")
}

// closest returns the candidate that the fewest edits make of name, if they are few enough to be a slip; else "".
func closest(name string, candidates []string) string {
	best, least := "", 1+(min(len(name), 12)+1)/3
	for _, c := range candidates {
		if d := distance(name, c, least); d < least {
			best, least = c, d
		}
	}
	return best
}

// distance is Levenshtein's, or at least limit when the lengths alone say so.
func distance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// expand replaces ${NAME} and $$ in every string below n. A string in which that fails has its one error with that.
func (r *reader) expand(n *node, path []string, env func(string) (string, bool)) {
	for _, name := range n.names {
		r.expand(n.kids[name], append(path, name), env)
	}
	for i, e := range n.elems {
		r.expand(e, append(path, strconv.Itoa(i)), env)
	}
	if n.kind == aString {
		text, hint, msg := substitute(n.source, env)
		if msg != "" {
			r.report(n.at, path, hint, "%s", msg)
			r.broken[n.at] = true
		}
		n.text = text
	}
}
