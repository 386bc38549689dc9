package sandbox

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestPrintedResult: a result has what was printed for it, all of that, and nothing of another's. Red without catchUp in sinceBegin (some
// have nothing), and without the new lastOf in begin (each has what the ones before printed, too).
func TestPrintedResult(t *testing.T) {
	b := pool(t, "good")
	for message := int64(1); message <= 300; message++ {
		text := strconv.FormatInt(message, 10)
		r, err := b.dispatch("print", message, text, long)
		if err != nil {
			t.Fatal(err)
		}
		if want := (Printed{Stream: "stdout", Text: text}); len(r.Printed) != 1 || r.Printed[0] != want {
			t.Fatalf("message %d: %+v", message, r.Printed)
		}
	}
	r, err := b.dispatch("both", 301, "", long)
	if want := []Printed{{Stream: "stdout", Text: "to stdout"}, {Stream: "stderr", Text: "to stderr"}}; err != nil || !slices.Equal(r.Printed, want) {
		t.Errorf("%+v, %v", r.Printed, err)
	}
	if r, err := b.dispatch("echo", 302, "", long); err != nil || r.Printed != nil {
		t.Errorf("one that prints nothing: %+v, %v", r.Printed, err)
	}
}

// TestPrintedCap: the last of much, in whole lines, and how much there was before it; what a terminal might act on is escaped. Red
// without left, without the search for the line's end, and without escape.
func TestPrintedCap(t *testing.T) {
	b := pool(t, "good")
	var all strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&all, "line %d\x1b\xff\n", i)
	}
	r, err := b.dispatch("print", 1, all.String(), long)
	if err != nil || len(r.Printed) != 1 {
		t.Fatalf("%+v, %v", r.Printed, err)
	}
	p := r.Printed[0]
	lines := strings.Split(p.Text, "\n")
	for i, l := range lines {
		if want := fmt.Sprintf(`line %d\x1b\xff`, 20_000-len(lines)+i); l != want {
			t.Fatalf("line %d is %q, not %q", i, l, want)
		}
	}
	kept := len(lines) * len("line 19999\x1b\xff\n")
	if p.Left != int64(all.Len()-kept) || kept > printedCap || kept < printedCap-20 {
		t.Errorf("%d bytes are kept and %d left out of %d", kept, p.Left, all.Len())
	}
}

// TestLastOf: however the bytes come, the last of them are kept.
func TestLastOf(t *testing.T) {
	all := []byte(strings.Repeat("0123456789", 3000))
	for _, step := range []int{1, 7, 100, printedCap - 1, printedCap, printedCap + 1, 3 * printedCap} {
		var l lastOf
		for rest := all; len(rest) > 0; rest = rest[min(step, len(rest)):] {
			l.add(rest[:min(step, len(rest))])
		}
		if string(l.kept) != string(all[len(all)-printedCap:]) || l.left != int64(len(all)-printedCap) {
			t.Errorf("in steps of %d: %d kept, %d left", step, len(l.kept), l.left)
		}
	}
}

// TestPrintedOfFailure: what fails tells what it printed, also where its worker was cut or died; and of a program that is executed it is
// all that this one printed, however early. Red without once, and without the result in seat.dispatch.
func TestPrintedOfFailure(t *testing.T) {
	for name, c := range map[string]struct {
		script, want string
		timeout      time.Duration
	}{
		"status":   {"echo no patient >&2; exit 3", "no patient", long},
		"signal":   {"echo no patient >&2; kill -9 $$", "no patient", long},
		"deadline": {"echo no patient >&2; sleep 60", "no patient", 2 * time.Second},
		"answer":   {"echo fine >&2; cat", "fine", long},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := filter(t, c.script)
			for message := range int64(5) {
				r, err := b.dispatch("f", message+1, "abc", c.timeout)
				if want := []Printed{{Stream: "stderr", Text: c.want}}; !slices.Equal(r.Printed, want) {
					t.Errorf("%+v, with %v", r.Printed, err)
				}
				if name == "deadline" {
					break
				}
			}
		})
	}
}
