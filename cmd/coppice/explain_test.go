package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"syscall"
	"testing"

	"coppice.dev/coppice/internal/flight"
	"coppice.dev/coppice/sandbox"
	"coppice.dev/coppice/tree"
)

// TestMembers: each process is drawn once, below its parent, whatever a spoilt record says. Red without drawn: circles never
// end.
func TestMembers(t *testing.T) {
	for name, c := range map[string]struct {
		list []tree.Member
		want string
	}{
		"a tree":     {[]tree.Member{{Pid: 3, Parent: 2, Name: "c"}, {Pid: 2, Parent: 1, Name: "b"}, {Pid: 4, Parent: 2, Name: "d"}}, "  2 \"b\"\n    3 \"c\"\n    4 \"d\"\n"},
		"its own":    {[]tree.Member{{Name: "x"}}, "  0 \"x\"\n"},
		"a circle":   {[]tree.Member{{Pid: 2, Parent: 3, Name: "b"}, {Pid: 3, Parent: 2, Name: "c"}}, "  2 \"b\"\n    3 \"c\"\n"},
		"twice":      {[]tree.Member{{Pid: 2, Name: "b"}, {Pid: 2, Name: "b"}}, "  2 \"b\"\n"},
		"a terminal": {[]tree.Member{{Pid: 2, Name: "\x1b[31m\nx"}}, "  2 \"\\x1b[31m\\nx\"\n"},
	} {
		var b strings.Builder
		s := story{b: &b}
		s.members(c.list)
		if b.String() != c.want {
			t.Errorf("%s:\n%swant\n%s", name, b.String(), c.want)
		}
	}
}

// TestDeepTree: a chain of as many processes as a spoilt record holds costs a line each, not a line as wide as it is deep: one of
// 60,000 had coppice explain take 20 GB. Red without deepest in members.
func TestDeepTree(t *testing.T) {
	var chain []tree.Member
	for pid := 1; pid <= 3000; pid++ {
		chain = append(chain, tree.Member{Pid: pid, Parent: pid - 1, Name: "x"})
	}
	var b strings.Builder
	s := story{b: &b}
	s.members(chain)
	if lines := strings.Count(b.String(), "\n"); lines != len(chain) || b.Len() > 100*len(chain) {
		t.Errorf("%d lines of %d bytes", lines, b.Len())
	}
}

// TestKilledStory: the hint says what is known of a kill: for certain, perhaps, or not at all. Red with the cases of OOM left out of
// hint.
func TestKilledStory(t *testing.T) {
	for oom, want := range map[tree.OOM]string{tree.OOMCertain: "the kernel killed it for want of memory", tree.OOMPerhaps: "this one, if",
		tree.OOMNone: "nothing says that the kernel did for want of memory"} {
		if got := hint(flight.Record{Kind: "crash", Status: tree.Status{Known: true, Signal: 9, OOM: oom}.String(), OOM: oom}); !strings.Contains(got, want) {
			t.Errorf("%q: %q", oom, got)
		}
	}
}

// TestHints: what a story advises fits what happened. Red with the case of an exit status left out of hint: a crash would be told
// of with no advice; with one text for all limits; and with the engine named in the place of the code in the third.
func TestHints(t *testing.T) {
	for want, r := range map[string]flight.Record{
		"A function answers by returning":                  {Kind: "crash", Status: tree.Status{Known: true}.String()},
		"a fault in native code":                           {Kind: "crash", Status: tree.Status{Known: true, Signal: syscall.SIGSEGV}.String()},
		"did its own code":                                 {Kind: "crash", Status: tree.Status{Known: true, Signal: syscall.SIGKILL}.String()},
		"in a global or a cache? `limits = { memory = ...": {Kind: "limit", Name: sandbox.LimitMemory},
		"goes on working? `limits = { idle_cpu = ...":      {Kind: "limit", Name: sandbox.LimitIdleCPU},
		"whole messages? `limits = { output = ...":         {Kind: "limit", Name: sandbox.LimitOutput},
		"is it in a loop? `limits = { cpu = ...":           {Kind: "limit", Name: sandbox.LimitCPU},
	} {
		r.Tree.Level = tree.Atomic // it was started
		if got := hint(r); !strings.Contains(got, want) {
			t.Errorf("%+v: %q, want %q", r, got, want)
		}
		if got := recordJSON(r); got.Hint != hint(r) || got.Rule != rule(r) || got.Rule == "" {
			t.Errorf("%+v as JSON: %q, %q", r, got.Rule, got.Hint)
		}
	}
}

// TestRecordJSON: headers are objects where they are whole, and strings where they were cut, refused, or are no object. Red without
// recordJSON in tell.
func TestRecordJSON(t *testing.T) {
	for header, want := range map[string]string{
		`{"type":"ready","a":[1]}`: `{"type":"ready","a":[1]}`, `{"type":"re`: `"{\"type\":\"re"`, `[1]`: `"[1]"`, `null`: `"null"`, "\xff": `"\ufffd"`,
	} {
		var b strings.Builder
		e := explaining{io: stdio{out: &b}, asJSON: true}
		if err := e.tell(flight.Record{Said: header, Heard: header, Tree: tree.Report{Level: tree.Group}}); err != nil {
			t.Fatal(err)
		}
		var got map[string]json.RawMessage
		if err := json.Unmarshal([]byte(b.String()), &got); err != nil {
			t.Fatal(err)
		}
		for _, field := range []string{"said", "heard"} {
			var one bytes.Buffer
			if err := json.Compact(&one, got[field]); err != nil || one.String() != want {
				t.Errorf("%q: %s is %s, %v; want %s", header, field, one.String(), err, want)
			}
		}
	}
	var b strings.Builder
	if err := printJSON(&b, recordJSON(flight.Record{Tree: tree.Report{Level: tree.Group}})); err != nil || strings.Contains(b.String(), `"said"`) {
		t.Errorf("%s, %v", b.String(), err)
	}
}

// TestStoryIsPrintable: nothing of a record reaches a terminal as it is. Red without printable in seen, and in any other place.
func TestStoryIsPrintable(t *testing.T) {
	const bad = "a\x1b[31m\u009b\nforged line"
	for _, kind := range []string{"deadline", "violation", "crash", "limit", "cancel", "boot", "exit", bad} {
		var b strings.Builder
		r := flight.Record{Worker: bad, Kind: kind, Name: bad, Why: bad, Times: 2, Said: bad, Heard: bad, Status: bad, Left: bad, Output: []string{bad},
			Tree: tree.Report{Rung: bad, Unseen: "", Seen: 1, Named: []tree.Member{{Name: bad}}, Survivors: []tree.Member{{Pid: 7, Name: bad}}}}
		r.Steps = append(r.Steps, stepsOf(bad)...)
		for _, left := range []string{bad, "", "unstarted"} {
			r.Left = left
			if r.Tree.Level = tree.Group; left == "unstarted" {
				r.Tree.Level = 0
			}
			s := story{Record: r, b: &b}
			s.tell()
		}
		if out := b.String(); strings.ContainsAny(out, "\x1b\u009b") || strings.Contains(out, "\nforged") {
			t.Errorf("%s: %q", kind, out)
		}
	}
}

func stepsOf(text string) (out []sandbox.Step) {
	for _, what := range []string{sandbox.StepStart, sandbox.StepReady, sandbox.StepRequest, sandbox.StepAnswer, text} {
		out = append(out, sandbox.Step{What: what, Phase: text, Name: text, Answer: text})
	}
	return out
}
