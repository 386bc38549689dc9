package bodydiff

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// shown writes a difference as the tests read it: marks in brackets.
func shown(d []Line) string {
	var b strings.Builder
	for _, l := range d {
		if l.Op == Changed {
			fmt.Fprintf(&b, "~%s %q %q\n", l.Path, l.Before, l.After)
			continue
		}
		b.WriteByte(byte(l.Op))
		last := 0
		for _, m := range l.Marks {
			fmt.Fprintf(&b, "%s[%s]", l.Text[last:m.Start], l.Text[m.Start:m.End])
			last = m.End
		}
		fmt.Fprintf(&b, "%s\n", l.Text[last:])
	}
	return b.String()
}

const header = "MSH|^~\\&|A|B|||2026||ADT^A01|1|P|2.5\r"

// TestBetween: guards seen red: without ends a change of line ends alone is no difference; without at a component that was put in
// panics; without the look at number 2 a new MSH-2 is taken apart at its own characters.
func TestBetween(t *testing.T) {
	for _, c := range []struct{ name, a, b, want string }{
		{"same", header, header, ""},
		{"component", header + "PV1|1|I|MED^07^2^OLD\r", header + "PV1|1|I|MED^07^2^NEW\r",
			"-PV1|1|I|MED^07^2^[OLD]\n+PV1|1|I|MED^07^2^[NEW]\n~PV1-3.4 \"OLD\" \"NEW\"\n"},
		{"component put in", header + "PV1|1|I|MED\r", header + "PV1|1|I|MED^07\r",
			"-PV1|1|I|MED\n+PV1|1|I|MED^[07]\n~PV1-3.2 \"\" \"07\"\n"},
		{"repetition", header + "PID|1||A^x~B^y\r", header + "PID|1||A^x~B^z\r",
			"-PID|1||A^x~B^[y]\n+PID|1||A^x~B^[z]\n~PID-3[2].2 \"y\" \"z\"\n"},
		{"more repetitions", header + "PID|1||A\r", header + "PID|1||A~B\r", "-PID|1||[A]\n+PID|1||[A~B]\n~PID-3 \"A\" \"A~B\"\n"},
		{"fields behind the end", header + "PID|1\r", header + "PID|1||\r", "-PID|1\n+PID|1||\n"},
		{"segment put in", header + "PID|1\r", header + "PID|1\rZZZ|x\r", "+ZZZ|x\n"},
		{"segment taken out", header + "EVN|1\rPID|1\r", header + "PID|1\r", "-EVN|1\n"},
		{"one of several", header + "OBX|1|a\rOBX|2|b\rOBX|3|c\r", header + "OBX|1|a\rOBX|2|B\rOBX|3|c\r",
			"-OBX|2|[b]\n+OBX|2|[B]\n~OBX-2 \"b\" \"B\"\n"},
		{"header", header, strings.Replace(header, "A01", "A08", 1),
			"-MSH|^~\\&|A|B|||2026||ADT^[A01]|1|P|2.5\n+MSH|^~\\&|A|B|||2026||ADT^[A08]|1|P|2.5\n~MSH-9.2 \"A01\" \"A08\"\n"},
		{"encoding characters", header, strings.Replace(header, `^~\&`, `^~\&#`, 1),
			"-MSH|[^~\\&]|A|B|||2026||ADT^A01|1|P|2.5\n+MSH|[^~\\&#]|A|B|||2026||ADT^A01|1|P|2.5\n~MSH-2 \"^~\\\\&\" \"^~\\\\&#\"\n"},
		{"line ends", header + "PID|1\r", strings.ReplaceAll(header+"PID|1\r", "\r", "\n"), "#end of 2 segments: CR -> LF\n"},
		{"last end", header + "PID|1\r", header + "PID|1", "#end of 1 segment: CR -> none\n"},
		{"bad UTF-8 and NUL", header + "PID|\xff\x00\r", header + "PID|\xfe\x00\r",
			"-PID|[\xff\x00]\n+PID|[\xfe\x00]\n~PID-1 \"\\xff\\x00\" \"\\xfe\\x00\"\n"},
		{"text", "{\n \"a\": 1\n}\n", "{\n \"a\": 2\n}\n", "- \"a\": 1\n+ \"a\": 2\n"},
		{"HL7 has become text", header, "{}\n", "-" + strings.TrimSpace(header) + "\n+{}\n"},
		{"bytes", "0123456789abcdefXYZ\x00end", "0123456789abcdefX!Z\x00end",
			"#at byte 17: 1 out, 1 in\n-00000010  58 [59] 5a 00 65 6e 64\n+00000010  58 [21] 5a 00 65 6e 64\n"},
		{"bytes put in", "a\x00", "a\x00\x01", "#at byte 2: 0 out, 1 in\n-00000000  61 00\n+00000000  61 00 [01]\n"},
		{"to nothing", "", "\x01", "#at byte 0: 0 out, 1 in\n+00000000  [01]\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := shown(Between([]byte(c.a), []byte(c.b))); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

// TestAnyBytes: whatever two bodies are, they differ if and only if there are lines that say so, and the spans lie in the
// texts. rapid prints the seed.
func TestAnyBytes(t *testing.T) {
	piece := rapid.SampledFrom([]string{header, "PID|1||A^B~C", "PV1|2", "OBX||\xff", "\r", "\n", "\r\n", "|", "^", "~", "x", "\x00", "MSH|", "ZZZ"})
	body := rapid.Map(rapid.SliceOfN(piece, 0, 12), func(p []string) []byte { return []byte(strings.Join(p, "")) })
	withHeader := rapid.Map(body, func(b []byte) []byte { return append([]byte(header), b...) })
	rapid.Check(t, func(t *rapid.T) {
		either := rapid.OneOf(body, withHeader)
		a, b := either.Draw(t, "a"), either.Draw(t, "b")
		d := Between(a, b)
		if bytes.Equal(a, b) != (len(d) == 0) {
			t.Fatalf("%q and %q: %d lines", a, b, len(d))
		}
		shown(d) // slices the texts by their spans
	})
}

// TestLarge: bodies beyond the table are shown all the same. Red without the look at cells, under ulimit -v 4000000: it takes 6 GB.
func TestLarge(t *testing.T) {
	a := bytes.Repeat([]byte("OBX|1|old\r"), 40_000)
	b := bytes.Repeat([]byte("OBX|1|new\r"), 40_000)
	if d := Between(append([]byte(header), a...), append([]byte(header), b...)); len(d) != 120_000 {
		t.Errorf("%d lines", len(d))
	}
}

// TestManyRenamed: segments that all have another name now are found to be so in one pass. Red, for hours, with a walk over the
// other body's segments for each.
func TestManyRenamed(t *testing.T) {
	var a, b strings.Builder
	for i := range 40_000 {
		fmt.Fprintf(&a, "ZAA|%d\r", i)
		fmt.Fprintf(&b, "ZBB|%d\r", i)
	}
	if d := Between([]byte(header+a.String()), []byte(header+b.String())); len(d) != 80_000 {
		t.Errorf("%d lines", len(d))
	}
}

// TestMost: of large bodies no more is compared than so many lines, and that is said; of one line of many fields, no more than so many
// by themselves. Red without the looks at most and at parts.
func TestMost(t *testing.T) {
	note := "#no more than the first 50000 lines of each are compared\n"
	rest := strings.Repeat("OBX|1|same\r\n", most)
	a, b := header+"PID|1|a\r"+rest, header+"PID|1|b\r"+rest
	if got, want := shown(Between([]byte(a), []byte(b))), "-PID|1|[a]\n+PID|1|[b]\n~PID-2 \"a\" \"b\"\n"+note; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := shown(Between([]byte(header+rest+"a"), []byte(header+rest+"b"))); got != note {
		t.Errorf("got\n%s", got)
	}
	line := header + "OBX" + strings.Repeat("|", 2*parts)
	if d := Between([]byte(line+"a"), []byte(line+"b")); len(d) != 3 || d[2].Path != fmt.Sprint("OBX-", parts-1) {
		t.Errorf("%d lines, of %q", len(d), d[len(d)-1].Path)
	}
}
