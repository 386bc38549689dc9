package observer

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Outcome is what was seen of one victim after one end.
type Outcome struct {
	Victim string `json:"victim"`
	End    string `json:"end"`
	// Left are the names of the survivors.
	Left []string `json:"left"`
	// Took is the time from the end's begin until nobody was left, or until the observer gave up.
	Took time.Duration `json:"took_ns"`
	// Skipped says why there is no outcome; empty if there is one.
	Skipped string `json:"skipped,omitempty"`
	// Note is what else has to be known.
	Note string `json:"note,omitempty"`
	// Told are the attacks of which the victim has told.
	Told []string `json:"told,omitempty"`
}

// MarshalJSON makes an empty list of nobody.
func (o Outcome) MarshalJSON() ([]byte, error) {
	type plain Outcome
	if o.Left == nil {
		o.Left = []string{}
	}
	return json.Marshal(plain(o))
}

func (o Outcome) String() string {
	mark := ""
	if o.Note != "" {
		mark = "*"
	}
	switch {
	case o.Skipped != "":
		return "-" + mark
	case len(o.Left) > 0:
		return fmt.Sprintf("%d LEFT%s", len(o.Left), mark)
	case o.Took < 10*time.Millisecond:
		return fmt.Sprintf("0 in %.1f ms%s", float64(o.Took.Microseconds())/1000, mark)
	}
	return fmt.Sprintf("0 in %d ms%s", o.Took.Milliseconds(), mark)
}

// Print writes the outcomes as a table, a victim a row and an end a column, and below it who was left and every note,
// outcomes alike on one line. Each victim's outcomes have to follow each other.
func Print(w io.Writer, ends []string, outcomes []Outcome) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "victim\t%s\t\n", strings.Join(ends, "\t"))
	for i := 0; i < len(outcomes); {
		row := make([]string, len(ends))
		name := outcomes[i].Victim
		for ; i < len(outcomes) && outcomes[i].Victim == name; i++ {
			if at := slices.Index(ends, outcomes[i].End); at >= 0 {
				row[at] = outcomes[i].String()
			}
		}
		fmt.Fprintf(table, "%s\t%s\t\n", name, strings.Join(row, "\t"))
	}
	table.Flush()
	var lines []string
	where := map[string][]string{}
	for _, o := range outcomes {
		for _, said := range []string{leftNames(o.Left), o.Note} {
			if said == "" {
				continue
			}
			line := o.Victim + ": " + said
			if where[line] == nil {
				lines = append(lines, line)
			}
			where[line] = append(where[line], o.End)
		}
	}
	for _, line := range lines {
		fmt.Fprintf(w, "  %s (%s)\n", line, strings.Join(where[line], ", "))
	}
}

// leftNames counts the names: "2 exe, 1 kworker/0:0 left". They are the processes' own words, so they are quoted if need
// be.
func leftNames(names []string) string {
	if len(names) == 0 {
		return ""
	}
	count := map[string]int{}
	for _, n := range names {
		count[n]++
	}
	var out []string
	for _, n := range slices.Sorted(maps.Keys(count)) {
		shown := n
		if strings.ContainsFunc(n, func(r rune) bool { return r < ' ' || r > '~' }) {
			shown = fmt.Sprintf("%q", n)
		}
		out = append(out, fmt.Sprintf("%d %s", count[n], shown))
	}
	return strings.Join(out, ", ") + " left"
}
