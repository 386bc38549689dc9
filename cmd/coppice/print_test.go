package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"":                       "",
		"Ada Sørensen\u0301 木":   "Ada Sørensen\u0301 木",
		"a\tb\r\nc\x00":          `a\x09b\x0d\x0ac\x00`,
		"\x1b[31mred\x1b[0m":     `\x1b[31mred\x1b[0m`,
		"\x7f":                   `\x7f`,
		"\u009b31m":              `\u009b31m`, // the 8-bit form of ESC [
		"latin \xe9":             `latin \xe9`,
		"half \xf0\x9f":          `half \xf0\x9f`,
		"replaced \ufffd":        "replaced \ufffd",
		"\u202egnp.exe":          `\u202egnp.exe`, // turns the writing direction
		"\U000e0041":             `\U000e0041`,    // an invisible tag
		`a\b`:                    `a\b`,
		"no-break\u00a0space":    `no-break\u00a0space`,
		"line\u2028and\u0085end": `line\u2028and\u0085end`,
	} {
		if got := printable(in); got != want {
			t.Errorf("printable(%q) = %s, not %s", in, got, want)
		}
	}
}

// FuzzPrintable: whatever comes, a terminal sees no control character and the whole is one line of UTF-8.
func FuzzPrintable(f *testing.F) {
	for _, s := range []string{"a", "\x1b]0;x\x07", "\xff\xfe", "\u202e"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := printable(s)
		if !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 }) {
			t.Errorf("printable(%q) = %q", s, got)
		}
		if printable(got) != got {
			t.Errorf("twice is not once: %q", got)
		}
	})
}

// TestPrintJSON: JSON is safe to look at, too, and means what it meant; also what is passed through raw, as headers are. Red with w in
// the place of escaping{w} in lines.
func TestPrintJSON(t *testing.T) {
	text := "\x1b[31m \x7f \u009b31m \u0085 \u202e \u2028 \U000e0041 Sørensen 木 😀 <&>"
	for name, print := range map[string]func(*bytes.Buffer, any) error{
		"indented": func(b *bytes.Buffer, v any) error { return printJSON(b, v) },
		"a line":   func(b *bytes.Buffer, v any) error { return lines(b).Encode(v) },
	} {
		var out bytes.Buffer
		raw := json.RawMessage("\"\x7f\u009b31m\U000e0041\"")
		if err := print(&out, map[string]any{"text": text, "raw": raw}); err != nil {
			t.Fatal(err)
		}
		if s := strings.NewReplacer("\n", "", "  ", " ").Replace(out.String()); printable(s) != s || !strings.Contains(s, "Sørensen 木 😀 <&>") {
			t.Errorf("%s: printed %q", name, s)
		}
		var back map[string]string
		if err := json.Unmarshal(out.Bytes(), &back); err != nil || back["text"] != text || back["raw"] != "\x7f\u009b31m\U000e0041" {
			t.Errorf("%s: %q, %v", name, back, err)
		}
	}
}

func TestClip(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"", 3, ""}, {"abc", 3, "abc"}, {"abcd", 3, "ab…"}, {"äöüß", 4, "äöüß"}, {"äöüßé", 4, "äöü…"}, {"ab", 1, "…"}, {"a", 1, "a"},
		{"\xff\xfe\xfd", 2, "\xff…"}, // bytes that are no UTF-8 stay what they are
	} {
		if got := clip(c.in, c.n); got != c.want {
			t.Errorf("clip(%q, %d) = %q, not %q", c.in, c.n, got, c.want)
		}
	}
}

func TestPrintableError(t *testing.T) {
	err := errors.New("a.toml:1:1: boot: \x1b[31m\nb.toml:9:9: forged\n  hint: real")
	if got, want := printableError(err), "a.toml:1:1: boot: \\x1b[31m\n  b.toml:9:9: forged\n  hint: real"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
}

func TestTable(t *testing.T) {
	var out bytes.Buffer
	if err := table(&out, [][]string{{"ID", "WHY"}, {"10", ""}, {"1", "a\tb\x1b"}}); err != nil {
		t.Fatal(err)
	}
	if want := "ID  WHY\n10\n1   a\\x09b\\x1b\n"; out.String() != want {
		t.Errorf("%q, not %q", out.String(), want)
	}
}

func TestClock(t *testing.T) {
	if got := clock(time.Time{}); got != "" {
		t.Errorf("a time that is not known shows as %q", got)
	}
	at := time.Date(2026, 3, 2, 7, 0, 0, 0, time.UTC)
	if got, want := clock(at), at.Local().Format("2006-01-02 15:04:05 -07:00"); got != want {
		t.Errorf("%q, not %q", got, want)
	}
}

func TestShellWord(t *testing.T) {
	for in, want := range map[string]string{"feed": "feed", "my feed": `"my feed"`, `C:\a`: `C:\a`} {
		if got := shellWord(in); got != want {
			t.Errorf("shellWord(%q) = %s", in, got)
		}
	}
}
