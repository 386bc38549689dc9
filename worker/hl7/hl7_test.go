package hl7

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// anyMessage is a message of odd segments with the given separators among bytes that mean nothing.
func anyMessage(t *rapid.T) []byte {
	lead := rapid.SampledFrom([]string{"", "\xef\xbb\xbf", "\r\n ", "\xef\xbb\xbf\n"}).Draw(t, "lead")
	separators := rapid.SampledFrom([]string{`|^~\&`, "#*+!%", `|^~\`, "|^", "|", `|^~\\&`, "\xa7^~\\&"}).Draw(t, "separators")
	ends := rapid.SampledFrom([]string{"\r", "\n", "\r\n"})
	segment := rapid.StringOf(rapid.SampledFrom([]rune("ABPID1ZZé|^~\\&#*+!%\u20ac  xyz")))
	name := rapid.SampledFrom([]string{"PID", "OBX", "MSH", "Z1", "pid", "", "ZZ1"})
	charset := rapid.SampledFrom([]string{"", strings.Repeat(separators[:1], 15) + "8859/1"}).Draw(t, "charset")
	body := lead + "MSH" + separators + separators[:1] + "A" + charset
	for range rapid.IntRange(0, 8).Draw(t, "segments") {
		body += ends.Draw(t, "end") + name.Draw(t, "name") + separators[:1] + segment.Draw(t, "segment")
	}
	garbage := rapid.SliceOfN(rapid.Byte(), 0, 8).Draw(t, "garbage")
	return append([]byte(body), garbage...)
}

func anyPath(t *rapid.T) string {
	segment := rapid.SampledFrom([]string{"PID", "OBX", "OBX[2]", "MSH", "MSH[2]", "ZZ1", "obx"}).Draw(t, "segment")
	n := rapid.IntRange(1, 4)
	path := fmt.Sprintf("%s-%d", segment, n.Draw(t, "field"))
	if rapid.Bool().Draw(t, "repeats") {
		path += fmt.Sprintf("[%d]", n.Draw(t, "repetition"))
	}
	for i := range rapid.IntRange(0, 2).Draw(t, "levels") {
		path += fmt.Sprintf(".%d", n.Draw(t, fmt.Sprint("level ", i)))
	}
	return path
}

// What is set is what is read, and every other byte stays: the old message without the old value is the new one without the new value,
// but for separators in front of it. Seen red with Set going on at place.end+1, with pad left out, and without
// refuseSeparators.
func TestSetThenGet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		body := anyMessage(t)
		before := bytes.Clone(body)
		m, err := Parse(body)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(m.Bytes(), body) {
			t.Fatalf("%q is %q when it is written", body, m.Bytes())
		}
		path := anyPath(t)
		old := m.Get(path)
		value := rapid.StringOf(rapid.SampledFrom([]rune("abcé|^~\\&#*+!%€\r\n1"))).Draw(t, "value")
		if err := m.Set(path, value); err != nil {
			refused(t, m, path, value, err)
			value = old
		}
		if got := m.Get(path); got != value {
			t.Fatalf("%s of %q reads as %q, was set to %q", path, body, got, value)
		}
		onlyThere(t, m, body, old, value)
		if err := m.Set(path, old); err == nil && old != "" && !bytes.Equal(m.Bytes(), body) {
			t.Fatalf("%q is %q when %s is what it was", body, m.Bytes(), path)
		}
		if !bytes.Equal(before, body) {
			t.Fatal("the body was changed in place")
		}
	})
}

// refused says whether an error of Set is true.
func refused(t *rapid.T, m *Message, path, value string, err error) {
	p, _ := parsePath(path)
	_, there := m.find(p)
	switch {
	case errors.Is(err, ErrNoSegment) && !there, p.header && p.field <= 2, m.latin1 && strings.Contains(value, "€"):
		return
	case errors.Is(err, ErrValue) && (strings.ContainsAny(value, m.field+m.component+m.repetition+m.subcomponent+"\r\n") || m.component == "" || m.subcomponent == ""):
		return
	case errors.Is(err, ErrValue) && bytes.Contains([]byte(value), []byte(m.field)): // a separator that is no whole character
		return
	}
	t.Fatalf("Set(%q, %q): %v", path, value, err)
}

// onlyThere compares the message with what it was: the same start and end, and between them the old and the new value.
func onlyThere(t *rapid.T, m *Message, body []byte, old, value string) {
	now := m.Bytes()
	rawOld, _ := m.encode(old)
	rawNew, _ := m.encode(value)
	start := 0
	for start < min(len(body), len(now)) && body[start] == now[start] {
		start++
	}
	end := 0
	for end < min(len(body), len(now))-start && body[len(body)-1-end] == now[len(now)-1-end] {
		end++
	}
	gone, came := string(body[start:len(body)-end]), string(now[start:len(now)-end])
	if !strings.Contains(string(rawOld), gone) {
		t.Fatalf("%q was %q: %q is gone, which is not of %q", now, body, gone, rawOld)
	}
	pads := m.field + m.component + m.repetition + m.subcomponent
	if old != "" {
		pads = ""
	}
	if rest := strings.TrimLeft(came, pads); !strings.Contains(string(rawNew), rest) && !strings.Contains(string(rawNew), came) {
		t.Fatalf("%q was %q: %q came, which is not of %q", now, body, came, rawNew)
	}
}

func FuzzParse(f *testing.F) {
	for _, c := range cases(f) {
		f.Add([]byte(c.Body), "PID-3[2].4.1", "x")
	}
	f.Fuzz(func(t *testing.T, body []byte, path, value string) {
		m, err := Parse(body)
		if err != nil {
			return
		}
		if !bytes.Equal(m.Bytes(), body) {
			t.Fatalf("%q is %q when it is written", body, m.Bytes())
		}
		if m.Unescape(value); CheckPath(path) != nil || m.latin1 && !utf8.ValidString(value) { // Latin-1 has no such text to read back
			return
		}
		if m.Set(path, m.Escape(value)) == nil && m.Get(path) != m.Escape(value) {
			t.Fatalf("%s of %q is %q, was set to %q", path, body, m.Get(path), m.Escape(value))
		}
	})
}

// A message of 20 MB with a read and a change in every second segment: work for each path that grew with the message would run into the
// deadline of go test.
func TestManySegments(t *testing.T) {
	const n = 200_000
	var b bytes.Buffer
	b.WriteString("MSH|^~\\&|A\r")
	for i := range n {
		fmt.Fprintf(&b, "OBX|%d|ST|CODE^TEXT||%d|%s\r", i, i, strings.Repeat("z", 80))
	}
	m, err := Parse(b.Bytes())
	if err != nil || b.Len() < 20_000_000 {
		t.Fatal(b.Len(), err)
	}
	for i := 1; i <= n; i += 2 {
		if got := m.Get(fmt.Sprintf("OBX[%d]-5", i)); got != fmt.Sprint(i-1) {
			t.Fatalf("OBX[%d]-5 is %q", i, got)
		}
		if err := m.Set(fmt.Sprintf("OBX[%d]-3.1", i), "CHANGED"); err != nil {
			t.Fatal(err)
		}
	}
	if got := bytes.Count(m.Bytes(), []byte("|CHANGED^TEXT|")); got != n/2 {
		t.Errorf("%d segments are changed, want %d", got, n/2)
	}
}

// Twenty million fields cost what the message is long: no place is kept for what nobody asks for. Red with bytes.Split in locate.
func TestManyFields(t *testing.T) {
	body := append([]byte("MSH|^~\\&|A\rOBX|"), bytes.Repeat([]byte("|"), 20_000_000)...)
	allocated := testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			m, err := Parse(body)
			if err != nil || m.Get("OBX-5") != "" || m.Set("OBX-3", "x") != nil || len(m.Bytes()) != len(body)+1 {
				b.Fatal(err)
			}
		}
	}).AllocedBytesPerOp()
	if limit := int64(3*len(body) + 1<<20); allocated > limit {
		t.Errorf("%d bytes allocated, want at most %d", allocated, limit)
	}
}
