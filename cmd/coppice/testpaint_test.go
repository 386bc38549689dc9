package main

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"coppice.dev/coppice/internal/bodydiff"
	"coppice.dev/coppice/internal/cases"
	"coppice.dev/coppice/internal/engine"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/sandbox"
)

// TestLongLines: of a long line the part around what changed is shown, and of many lines the first. Red without the window in
// marked, and without the look at lines in diff.
func TestLongLines(t *testing.T) {
	const header = "MSH|^~\\&|A|B|||2026||ADT^A01|1|P|2.5\r"
	image := strings.Repeat("0123456789", 1<<16)
	p := &painter{}
	p.diff("", bodydiff.Between([]byte(header+"OBX|"+image+"|old|"+image), []byte(header+"OBX|"+image+"|new|"+image)), 10, 100)
	got := p.b.String()
	if len(got) > 1000 || !strings.Contains(got, "|old|") || !strings.Contains(got, "|new|") || strings.Count(got, "…") != 4 {
		t.Errorf("%d bytes: %.2000s", len(got), got)
	}
	p = &painter{}
	p.diff("", bodydiff.Between([]byte(header), []byte(header+strings.Repeat("ZZZ|1\r", 1000))), 10, 100)
	if got := p.b.String(); strings.Count(got, "\n") != 11 || !strings.HasSuffix(got, "\n... 990 more lines\n") {
		t.Errorf("%s", got)
	}
}

var colours = regexp.MustCompile(`\x1b\[[0-9;]*m`)

// FuzzVerdict: whatever messages and handlers say, a terminal sees the painter's own colours and no other control character, and
// what is shown is bounded. Red without any one of the calls of printable.
func FuzzVerdict(f *testing.F) {
	f.Add([]byte("MSH|^~\\&|\x1b[31m\rPID|1"), []byte("MSH|^~\\&|\x9b\rPID|2\x00"), "a\x1b]0;x\x07\nb")
	f.Add([]byte("text\n"), []byte("\x1b[2J\n"), "")
	f.Add([]byte("MSH|^~\\&|\rP\x1bD|\x1b|1|\x1b\r"), []byte("MSH|^~\\&|\rP\x1bD|\x1b|2|\x1b\r"), "\x1b")
	f.Add([]byte{0xff, 0x1b}, []byte{}, "\u202e")
	f.Fuzz(func(t *testing.T, a, b []byte, text string) {
		r := cases.Result{Disposition: message.Processed, Reason: text, Router: &cases.Part{Traceback: text}, Handlers: []cases.Part{
			{Handler: "h", State: message.RunSent, Sends: []message.Send{{To: "o", Body: b}}},
			{Handler: "g", State: message.RunError, Reason: text + "x", Traceback: text}}}
		for _, v := range []verdict{
			{name: text, word: fresh, body: a, result: r},
			{name: text, word: failed, body: a, problem: text, held: heldBy("h", text, text)},
			{name: text, word: failed, body: a, result: r, differs: []cases.Difference{{What: "tag " + text, Want: text, Got: text},
				{What: "h -> o", Bodies: &cases.Bodies{Want: a, Got: b}}}},
		} {
			for _, color := range []bool{false, true} {
				p := &painter{color: color}
				p.verdict(v, true)
				got := p.b.String()
				if color {
					got = colours.ReplaceAllString(got, "")
				}
				if i := strings.IndexFunc(got, func(r rune) bool { return r != '\n' && (r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u202e') }); i >= 0 || !utf8.ValidString(got) {
					t.Fatalf("%q", got)
				}
			}
		}
	})
}

// TestHeldOnce: why a worker cannot be started is told with the first case, and not with each. Red without held in add.
func TestHeldOnce(t *testing.T) {
	var out bytes.Buffer
	r := newTestReport(&tester{io: stdio{out: &out, err: &out}})
	for i := range 3 {
		v := verdict{name: fmt.Sprint("case", i), word: failed, problem: "cannot boot\n  hint: x", held: heldBy("handler a", "Traceback\n")}
		if err := r.add(v); err != nil {
			t.Fatal(err)
		}
	}
	if got := out.String(); strings.Count(got, "cannot boot") != 3 || strings.Count(got, "Traceback") != 1 || strings.Count(got, "hint") != 1 {
		t.Errorf("%s", got)
	}
}

func heldBy(what, traceback string, output ...string) *engine.HeldError {
	return &engine.HeldError{Checked: engine.Checked{What: what, Traceback: traceback, Output: output}}
}

// TestPrinted: what is printed is of the case whose id comes with it, however late; and where none comes, as with what a program
// prints at once, of the one under way. Red without names, and without now.
func TestPrinted(t *testing.T) {
	var out bytes.Buffer
	r := newTestReport(&tester{io: stdio{out: &out, err: &out}, verbose: true})
	r.begins(7, "a.hl7")
	r.begins(8, "b.hl7")
	r.printed(sandbox.Line{Session: "handler h", Stream: "stdout", Message: 7, Text: "late"})
	r.printed(sandbox.Line{Session: "handler h", Stream: "stdout", Text: "early", Dropped: 3})
	if want := "a.hl7 | handler h: late\nb.hl7 | handler h: 3 lines left out\nb.hl7 | handler h: early\n"; out.String() != want {
		t.Errorf("%s", out.String())
	}
}
