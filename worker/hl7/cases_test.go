package hl7

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// text is a value of a case: text, or {"hex": ...}.
type text string

func (v *text) UnmarshalJSON(data []byte) error {
	var raw struct{ Hex string }
	if json.Unmarshal(data, (*string)(v)) == nil {
		return nil
	}
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	b, err := hex.DecodeString(raw.Hex)
	*v = text(b)
	return err
}

// octets is a body of a case, each character of which stands for one byte.
type octets []byte

func (o *octets) UnmarshalJSON(data []byte) error {
	var s string
	err := json.Unmarshal(data, &s)
	*o = octets{}
	for _, c := range s {
		if c > 0xff {
			return errors.New("a character beyond U+00FF in a body")
		}
		*o = append(*o, byte(c))
	}
	return err
}

type testCase struct {
	Name     string
	Body     octets
	HL7      *bool
	Get      map[string]text
	Count    map[string]int
	NoPath   []string `json:"no_path"`
	Escape   map[string]string
	Unescape map[string]string
	Refuse   [][3]text
	Set      [][2]text
	Bytes    octets
}

// The cases of protocol/hl7, which the SDKs of Python and Node run as well. Seen red with each case's result changed by one letter.
func TestCases(t *testing.T) {
	for _, c := range cases(t) {
		t.Run(c.Name, c.run)
	}
}

func cases(t testing.TB) []testCase {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "..", "protocol", "hl7", "cases.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var list []testCase
	decoder := json.NewDecoder(f)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&list); err != nil {
		t.Fatal(err)
	}
	if len(list) < 40 {
		t.Fatalf("only %d cases", len(list))
	}
	return list
}

func (c *testCase) run(t *testing.T) {
	m, err := Parse(c.Body)
	if c.HL7 != nil && !*c.HL7 {
		if !errors.Is(err, ErrNotHL7) {
			t.Errorf("Parse: %v, want ErrNotHL7", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	c.reads(t, m)
	c.refuses(t, m)
	if got := string(m.Bytes()); got != string(c.Body) {
		t.Fatalf("it became %q, was %q", got, c.Body)
	}
	for _, s := range c.Set {
		if err := m.Set(string(s[0]), string(s[1])); err != nil {
			t.Errorf("Set(%q, %q): %v", s[0], s[1], err)
		}
		if got := m.Get(string(s[0])); got != string(s[1]) {
			t.Errorf("%s reads as %q, was set to %q", s[0], got, s[1])
		}
	}
	want := c.Bytes
	if want == nil {
		want = c.Body
	}
	if got := string(m.Bytes()); got != string(want) {
		t.Errorf("after all it is\n%q, want\n%q", got, want)
	}
}

func (c *testCase) reads(t *testing.T, m *Message) {
	for path, want := range c.Get {
		if got := m.Get(path); got != string(want) {
			t.Errorf("%s reads as %q, want %q", path, got, want)
		}
		if p, err := parsePath(path); err == nil && p.header && p.field <= 2 {
			continue
		}
		if err := m.Set(path, string(want)); err != nil {
			t.Errorf("%s set to what it is: %v", path, err)
		}
	}
	for segment, want := range c.Count {
		if got := m.Count(segment); got != want {
			t.Errorf("%d segments %q, want %d", got, segment, want)
		}
	}
	for in, want := range c.Escape {
		if got := m.Escape(in); got != want {
			t.Errorf("Escape(%q) is %q, want %q", in, got, want)
		}
	}
	for in, want := range c.Unescape {
		if got := m.Unescape(in); got != want {
			t.Errorf("Unescape(%q) is %q, want %q", in, got, want)
		}
	}
}

func (c *testCase) refuses(t *testing.T, m *Message) {
	kinds := map[text]error{"segment": ErrNoSegment, "value": ErrValue}
	for _, r := range c.Refuse {
		if err := m.Set(string(r[0]), string(r[1])); !errors.Is(err, kinds[r[2]]) {
			t.Errorf("Set(%q, %q): %v, want %s", r[0], r[1], err, r[2])
		}
	}
	for _, path := range c.NoPath {
		if err := m.Set(path, "x"); !errors.Is(err, ErrPath) {
			t.Errorf("Set(%q): %v, want ErrPath", path, err)
		}
		if err := CheckPath(path); !errors.Is(err, ErrPath) {
			t.Errorf("CheckPath(%q): %v", path, err)
		}
		if err := panicOf(func() { m.Get(path) }); !errors.Is(err, ErrPath) {
			t.Errorf("Get(%q) panicked with %v, want ErrPath", path, err)
		}
	}
}

// panicOf calls f and returns the error that it panicked with.
func panicOf(f func()) (err error) {
	defer func() { err, _ = recover().(error) }()
	f()
	return nil
}
