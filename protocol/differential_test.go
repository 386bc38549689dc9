// Package protocol_test holds the readers of the three languages against each other: PROTOCOL.md means the same to each.
package protocol_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"coppice.dev/coppice/protocol/vectors"
	"coppice.dev/coppice/wire"
)

// TestDifferential has Go, Python and Node judge the vectors, the committed fuzz corpus of package wire, and mutations of both:
// each stream is accepted by all of them, or refused by all under the same name.
//
// COPPICE_TEST_MUTATIONS is how many mutations, COPPICE_SEED the seed of a run that failed.
//
// Red without the look for a duplicate in Python's next_key or Node's key, and with null taken for a value by either.
func TestDifferential(t *testing.T) {
	others := map[string][]string{"python": pythonJudge(t), "node": nodeJudge(t)}
	count, seed := 4000, rand.Uint64()
	if s := os.Getenv("COPPICE_TEST_MUTATIONS"); s != "" {
		count, _ = strconv.Atoi(s)
	}
	if s := os.Getenv("COPPICE_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	seeds := corpus(t)
	verdicts := map[string]int{}
	compare(t, others, seeds, verdicts)
	const batch = 20_000 // of mutations, so that a long run needs no more memory than a short one
	for from := 0; from < count && !t.Failed(); from += batch {
		cases := make([]stream, min(batch, count-from))
		for i := range cases {
			cases[i] = mutate(rand.New(rand.NewPCG(seed, uint64(from+i))), seeds)
		}
		compare(t, others, cases, verdicts)
	}
	t.Logf("COPPICE_SEED=%d, %d streams and %d mutations: %v", seed, len(seeds), count, verdicts)
	if want := 24; len(verdicts) < want {
		t.Errorf("%d different verdicts alone, not %d: %v", len(verdicts), want, slices.Sorted(maps.Keys(verdicts)))
	}
}

// stream is what a side sends, and the caps that it is held against.
type stream struct {
	from  wire.Side
	caps  wire.Caps
	bytes []byte
}

// record is a stream as the judges of the other languages read it.
func (s stream) record(to *bytes.Buffer) {
	to.WriteByte(byte(s.from - wire.Engine))
	for _, n := range []int{s.caps.Frame, s.caps.Header, s.caps.Segments, s.caps.Depth, len(s.bytes)} {
		to.Write(binary.BigEndian.AppendUint32(nil, uint32(n)))
	}
	to.Write(s.bytes)
}

func (s stream) judge() string {
	body, err := wire.ReadFrame(bytes.NewReader(s.bytes), s.caps)
	if err == io.EOF {
		return "end"
	}
	if err == nil {
		_, err = wire.Decode(body, s.from, s.caps)
	}
	var v *wire.Violation
	if errors.As(err, &v) {
		return v.Name
	}
	return "ok"
}

// compare has everybody judge the streams, and counts the verdicts.
func compare(t *testing.T, others map[string][]string, cases []stream, verdicts map[string]int) {
	t.Helper()
	var records bytes.Buffer
	for _, s := range cases {
		s.record(&records)
	}
	said := map[string][]string{}
	for name, command := range others {
		said[name] = ask(t, command, records.Bytes(), len(cases))
	}
	told := 0
	for i, s := range cases {
		own := s.judge()
		verdicts[own]++
		for name, list := range said {
			if list[i] == own {
				continue
			}
			if told++; told <= 10 {
				t.Errorf("from side %d, caps %+v: go says %s, %s says %s\n%s\n%.2000q", s.from, s.caps, own, name, list[i],
					hex.EncodeToString(s.bytes[:min(len(s.bytes), 2000)]), s.bytes)
			}
		}
	}
	if told > 10 {
		t.Errorf("%d disagreements in all", told)
	}
}

// ask runs a judge over all records.
func ask(t *testing.T, command []string, records []byte, count int) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin = bytes.NewReader(records)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, stderr.Bytes())
	}
	lines := strings.Fields(string(out))
	if len(lines) != count {
		t.Fatalf("%s: %d verdicts on %d streams\n%s", command, len(lines), count, stderr.Bytes())
	}
	return lines
}

func pythonJudge(t *testing.T) []string {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("missing: python3")
	}
	touch(t, "../sdk/python/coppice_worker/*.py", "../sdk/python/tests/judge.py")
	return []string{path, "-I", "-B", "../sdk/python/tests/judge.py"}
}

func nodeJudge(t *testing.T) []string {
	t.Helper()
	path, err := exec.LookPath("node")
	if err != nil {
		t.Skip("missing: node")
	}
	touch(t, "../sdk/node/*.js", "../sdk/node/tests/*.js")
	return []string{path, "../sdk/node/tests/judge.js"}
}

// touch opens the files that the test depends on: go test repeats a cached result unless a file that the test itself has opened is
// another one since.
func touch(t *testing.T, patterns ...string) {
	t.Helper()
	for _, pattern := range patterns {
		names, err := filepath.Glob(pattern)
		if err != nil || len(names) == 0 {
			t.Fatal(pattern, err)
		}
		for _, name := range names {
			if _, err := os.ReadFile(name); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// corpus are the vectors, and what fuzzing has found, as each side would send it.
func corpus(t *testing.T) (list []stream) {
	t.Helper()
	for _, file := range []string{"accept.json", "refuse.json", "binding.json"} {
		data, err := os.ReadFile(filepath.Join("vectors", file))
		if err != nil {
			t.Fatal(err)
		}
		var vectors []struct {
			From string
			Caps struct{ Frame, Header, Segments, Depth int }
			Hex  json.RawMessage
		}
		if err := json.Unmarshal(data, &vectors); err != nil {
			t.Fatal(err)
		}
		for _, v := range vectors {
			s := stream{from: wire.Worker, caps: wire.DefaultCaps(), bytes: unhex(t, v.Hex)}
			if v.From == "engine" {
				s.from = wire.Engine
			}
			for to, from := range map[*int]int{&s.caps.Frame: v.Caps.Frame, &s.caps.Header: v.Caps.Header,
				&s.caps.Segments: v.Caps.Segments, &s.caps.Depth: v.Caps.Depth} {
				if from != 0 {
					*to = from
				}
			}
			list = append(list, s)
		}
	}
	return append(list, found(t)...)
}

// found is the committed corpus of FuzzDecode: bodies of frames.
func found(t *testing.T) (list []stream) {
	t.Helper()
	names, err := filepath.Glob("../wire/testdata/fuzz/FuzzDecode/*")
	if err != nil || len(names) == 0 {
		t.Fatal("no corpus of FuzzDecode: ", err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		_, line, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
		body, err := strconv.Unquote(strings.TrimSuffix(strings.TrimPrefix(line, "[]byte("), ")"))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, side := range []wire.Side{wire.Engine, wire.Worker} {
			list = append(list, stream{from: side, caps: wire.DefaultCaps(), bytes: sized([]byte(body))})
		}
	}
	return list
}

// sized puts a length in front.
func sized(b []byte) []byte { return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...) }

// unhex returns the bytes that a vector writes.
func unhex(t *testing.T, written json.RawMessage) []byte {
	t.Helper()
	all, err := vectors.Bytes(written)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// tokens are what a header is made of, right and wrong.
var tokens = strings.Fields(`{ } [ ] : , " \ \" \\ \/ \b \u \u0000 \u00e9 \ud83d\ude00 \ud83d \ude00 \ude00\ud83d \ud83d\u0041 \uD8 \x null true false
 nul tru True NaN Infinity 0 -0 00 01 -1 1 1. .5 1.0 1e0 1e5 1E+5 1e 1e400 -1e400 1e-400 2147483647 2147483648 4294967295 4294967296 9007199254740993
 9223372036854775807 9223372036854775808 -9223372036854775808 -9223372036854775809 18446744073709551616 100000000000000000000000000
 0.1e-5 1e999999999999 [] {} [[]] [{}] {"a":1} {"a":1,"a":1} "" "x" "type" "id" "phase" "name" "body" "to" "tags" "sends" "handlers" "drop"
 "version" "settings" "offers" "file" "frame_cap" "__proto__" "constructor" "toString" "error" "text" "traceback" "\u0074ype" "route"
 "handle" "result" "fail" "boot" "ready" "bootfail" "request" ,"tags":{} ,"drop":"" ,"sends":[] ,"handlers":[] "__proto__":1 "a":null
 00000000000000000000000000000000 // /**/ 'x' é 😀 ٣`)

// raw are bytes that text is not made of, and white space that JSON has and does not have.
var raw = []string{"\x00", "\x1f", "\x7f", "\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x80\xa8", "\xef\xbb\xbf", "\xc2\x85",
	"\xc2\xa0", "\xe3\x80\x80", "\v", "\f", " ", "\t", "\n", "\r", "\xe2\x80", "\xc3"}

// mutate changes a stream of the corpus, as a whole or inside its lengths, which are made right again then.
func mutate(r *rand.Rand, seeds []stream) stream {
	s := seeds[r.IntN(len(seeds))]
	// Large ones are about size, and cost the time of many; of one that is refused already, a change shows less.
	for len(s.bytes) > 4000 || s.judge() != "ok" && r.IntN(8) > 0 {
		s = seeds[r.IntN(len(seeds))]
	}
	s.bytes = slices.Clone(s.bytes)
	if r.IntN(8) == 0 {
		s.from = wire.Engine + wire.Worker - s.from
	}
	if r.IntN(8) == 0 {
		s.caps = wire.Caps{Frame: 4 + r.IntN(400), Header: r.IntN(400), Segments: r.IntN(4), Depth: r.IntN(6)}
	}
	header, segments, ok := apart(s.bytes)
	other, _, okOther := apart(seeds[r.IntN(len(seeds))].bytes)
	if !ok || r.IntN(6) == 0 {
		s.bytes = change(r, s.bytes, s.bytes)
		return s
	}
	if !okOther || len(other) > 4000 {
		other = header
	}
	for range 1 + r.IntN(3) {
		header = change(r, header, other)
	}
	if r.IntN(6) == 0 {
		segments = change(r, segments, segments)
	}
	s.bytes = sized(append(sized(header), segments...))
	return s
}

// apart takes a whole frame apart: its header, and what is behind it.
func apart(b []byte) (header, segments []byte, ok bool) {
	if len(b) < 8 {
		return nil, nil, false
	}
	size := int64(binary.BigEndian.Uint32(b[4:]))
	if size > int64(len(b)-8) {
		return nil, nil, false
	}
	return slices.Clone(b[8 : 8+size]), slices.Clone(b[8+size:]), true
}

// change makes one change: a byte, a token, a piece taken out, doubled, moved, or taken from another.
func change(r *rand.Rand, b, other []byte) []byte {
	piece := func(of []byte) []byte {
		from := r.IntN(len(of) + 1)
		return of[from : from+r.IntN(min(len(of)-from, 40)+1)]
	}
	at := r.IntN(len(b) + 1)
	end := at + r.IntN(min(len(b)-at, 12)+1)
	var in []byte
	switch r.IntN(7) {
	case 0:
		in, end = []byte{byte(r.IntN(256))}, min(at+1, len(b))
	case 1:
		in = []byte(tokens[r.IntN(len(tokens))])
		end = at
	case 2:
		in = []byte(tokens[r.IntN(len(tokens))])
		at, end = value(r, b)
	case 3:
		in, end = []byte(raw[r.IntN(len(raw))]), at
	case 4: // a piece taken out
	case 5:
		in, end = piece(other), at
	case 6:
		in, end = piece(b), at
	}
	return slices.Concat(b[:at], in, b[end:])
}

// value is where one of the header's values stands, by its colon.
func value(r *rand.Rand, b []byte) (from, to int) {
	var colons []int
	for i, c := range b {
		if c == ':' {
			colons = append(colons, i+1)
		}
	}
	if len(colons) == 0 {
		return 0, 0
	}
	from = colons[r.IntN(len(colons))]
	n := bytes.IndexAny(b[from:], ",}]")
	if n < 0 {
		return from, len(b)
	}
	return from, from + n
}
