package wire

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// mischief is what gets spliced into good headers: all that JSON readers have been known to disagree about.
var mischief = []string{"", " ", "\n", "\t", "\x00", "\x0c", "\x7f", "\u00a0", "\ufeff", "{", "}", "[", "]", ",", ":", `"`, `""`, `\`, `\\`,
	`\u0041`, `\ud83d\ude00`, `\ud800`, `\udc00`, `\/`, `\x`, "0", "-0", "01", "-", "1.0", "1e2", "1E+2", "1.", ".5", "1e400", "1e-400", "+1",
	"9223372036854775807", "9223372036854775808", "-9223372036854775809", "NaN", "Infinity", "true", "false", "null", "tru", "True",
	`"a":1,`, `,"a":1`, `"type":"boot",`, `"x":[{"y":[]}]`, "é", "\xff", "\xc0\xaf", "\xed\xa0\x80", "\u2028", "//", "/**/", "\x1f"}

// jsonValue draws the text of a JSON value, mostly good.
func jsonValue(t *rapid.T, depth int) string {
	kind := rapid.IntRange(0, 7).Draw(t, "kind")
	if depth == 0 {
		kind %= 5
	}
	space := rapid.SampledFrom([]string{"", "", "", " ", "\r\n\t"}).Draw(t, "space")
	switch kind {
	case 0:
		return space + strconv.FormatInt(rapid.Int64().Draw(t, "n"), 10) + space
	case 1:
		b, _ := json.Marshal(rapid.Float64Range(-1e300, 1e300).Draw(t, "f"))
		return space + string(b)
	case 2:
		pieces := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "é", `\u0041`, `\u00e9`, `\uD83D\uDE00`, `\u12fF`, `\n`, `\/`, `\"`, "\u2028", " "}), 0, 4)
		return `"` + strings.Join(pieces.Draw(t, "pieces"), "") + `"` + space
	case 3:
		return rapid.SampledFrom([]string{"true", "false", "{}", "[]", "[ ]", "{ }"}).Draw(t, "word")
	case 4:
		if rapid.Bool().Draw(t, "number") {
			return rapid.StringMatching(`-?[01]{1,2}(\.[05]{0,2})?([eE][+-]?[02]{0,2})?`).Draw(t, "numeral")
		}
		return rapid.SampledFrom(mischief).Draw(t, "mischief")
	case 5, 6:
		out := "["
		for i := range rapid.IntRange(0, 3).Draw(t, "items") {
			if i > 0 {
				out += ","
			}
			out += jsonValue(t, depth-1)
		}
		return out + "]"
	}
	out := "{"
	for i := range rapid.IntRange(0, 3).Draw(t, "keys") {
		if i > 0 {
			out += ","
		}
		out += rapid.SampledFrom([]string{`"a"`, `"A"`, `"b"`, `"\u0061"`, `""`, `"é"`}).Draw(t, "key") + space + ":" + jsonValue(t, depth-1)
	}
	return out + "}"
}

// Whatever Decode accepts, encoding/json accepts with the same values; what it refuses as no JSON is none to
// encoding/json. Red with the check of control characters in str taken out, with number taking leading zeros, and
// with hex4 shifting decimal digits by 3.
func TestDecodeAgreesWithEncodingJSON(t *testing.T) {
	var headers [][]byte
	for _, v := range loadVectors(t, "accept.json") {
		header, _, err := split(unhex(t, v.Hex)[lengthSize:], DefaultCaps())
		if err != nil {
			t.Fatal(err)
		}
		if len(header) < 2000 {
			headers = append(headers, header)
		}
	}
	var accepted int
	one := func(t *rapid.T) {
		header := rapid.SampledFrom(headers).Draw(t, "header")
		if rapid.Bool().Draw(t, "settings") {
			header = []byte(`{"type":"boot","version":1,"file":"","offers":[],"frame_cap":0,"settings":{"v":` + jsonValue(t, 3) + "}}")
		}
		for range rapid.IntRange(0, 2).Draw(t, "splices") {
			from := rapid.IntRange(0, len(header)).Draw(t, "from")
			to := min(len(header), from+rapid.IntRange(0, 3).Draw(t, "cut"))
			piece := rapid.SampledFrom(mischief).Draw(t, "piece")
			header = append(append(bytes.Clone(header[:from]), piece...), header[to:]...)
		}
		if agree(t, header) {
			accepted++
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		for range 20 {
			one(t)
		}
	})
	t.Logf("%d headers were accepted", accepted)
	if accepted == 0 {
		t.Error("no header was accepted: the generator tests nothing")
	}
}

// agree decodes a header with both readers. Segments hold their own numbers, so that a body can be compared with the
// reference to it.
func agree(t *rapid.T, header []byte) (accepted bool) {
	var m Message
	var err error
	for n := 0; n <= 2; n++ { // whichever number of segments it refers to
		segments := [][]byte{[]byte("0"), []byte("1")}[:n]
		frame, ferr := newFrame(append(make([]byte, 2*lengthSize), header...), segments, DefaultCaps())
		if ferr != nil {
			t.Fatal(ferr)
		}
		var buf bytes.Buffer
		if _, werr := frame.WriteTo(&buf); werr != nil {
			t.Fatal(werr)
		}
		for _, side := range []Side{Engine, Worker} {
			if m, err = readAndDecode(buf.Bytes(), side, DefaultCaps()); err == nil {
				compare(t, m, header)
				return true
			}
			if err.(*Violation).Name == JSONSyntax && json.Valid(header) {
				t.Fatalf("refused as no JSON (%v), and it is: %q", err, header)
			}
		}
	}
	return false
}

func compare(t *rapid.T, m Message, header []byte) {
	var want map[string]any
	d := json.NewDecoder(bytes.NewReader(header))
	d.UseNumber()
	if err := d.Decode(&want); err != nil || d.More() {
		t.Fatalf("accepted, and encoding/json says %v: %q", err, header)
	}
	oracle := numbers(t, want, "").(map[string]any)
	if tags, ok := oracle["tags"].(map[string]any); ok && len(tags) == 0 {
		delete(oracle, "tags")
	}
	if got := canonical(m); !reflect.DeepEqual(got, oracle) {
		t.Fatalf("%q\n      got %#v\njson says %#v", header, got, oracle)
	}
}

// numbers lets encoding/json make an int64 or a float64 of each number, and of a body's the text that its segment holds.
func numbers(t *rapid.T, v any, key string) any {
	switch v := v.(type) {
	case json.Number:
		if key == "body" {
			return v.String()
		}
		var n int64
		if bytes.ContainsAny([]byte(v), ".eE") {
			var f float64
			if err := json.Unmarshal([]byte(v), &f); err != nil {
				t.Fatalf("accepted, and encoding/json says %v", err)
			}
			return f
		}
		if err := json.Unmarshal([]byte(v), &n); err != nil {
			t.Fatalf("accepted, and encoding/json says %v", err)
		}
		return n
	case map[string]any:
		for k := range v {
			v[k] = numbers(t, v[k], k)
		}
	case []any:
		for i := range v {
			v[i] = numbers(t, v[i], "")
		}
	}
	return v
}
