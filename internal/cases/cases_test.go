package cases

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

func sample() Result {
	return Result{
		Inbound: "adt", Message: 42, Received: time.Date(2026, 1, 2, 3, 4, 5, 678000, time.UTC), Disposition: message.Error,
		Tags: map[string]string{"mrn": "7\"\n\x00é"},
		Handlers: []Part{
			{Handler: "admit", State: message.RunSent, Sends: []message.Send{{To: "archive", Body: []byte("a\r\n\x00\xff")},
				{To: "emr", Body: []byte("1")}, {To: "emr", Body: nil}}},
			{Handler: "drop", State: message.RunFiltered, Reason: "no MRN"},
			{Handler: "slow", State: message.RunError, Fault: "deadline", Reason: "no answer by the deadline, after 1.0003s"},
		},
	}
}

// TestWrite: what is written is read again, bytes for bytes, and written only where it differs. Red with the reasons of
// Measured compared, and without the removal of bodies that are named no more.
func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a.hl7.want")
	if _, err := Read(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("an expectation that is not there: %v", err)
	}
	want := sample()
	for i, first := range []bool{true, false} {
		if changed, err := Write(dir, want); err != nil || changed != first {
			t.Fatalf("write %d: changed %v, %v", i, changed, err)
		}
	}
	if names := list(t, dir); !slices.Equal(names, []string{"admit.archive.hl7", "admit.emr.2.hl7", "admit.emr.hl7", "outcome.toml"}) {
		t.Errorf("files %v", names)
	}
	got, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if d := Compare(got, want); len(d) > 0 {
		t.Errorf("%+v", d)
	}
	if got.Message != 42 || got.Inbound != "adt" || !got.Received.Equal(want.Received) {
		t.Errorf("%+v", got)
	}
	want.Handlers[0].Sends = want.Handlers[0].Sends[:2]
	if err := os.WriteFile(filepath.Join(dir, "notes.md"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if changed, err := Write(dir, want); err != nil || !changed {
		t.Fatalf("changed %v, %v", changed, err)
	}
	if names := list(t, dir); !slices.Equal(names, []string{"admit.archive.hl7", "admit.emr.hl7", "notes.md", "outcome.toml"}) {
		t.Errorf("files %v", names)
	}
}

func list(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestSpoilt: what a hand has spoilt is an error that says where, and never leads out of the folder. Red without the look at
// names in read.
func TestSpoilt(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{`state = 'SENT'`, `status = 'SENT'`, `unknown key "handler.status"`},
		{`message = 42`, `message = 0`, "from 1"},
		{`message = 42`, `message = `, "line 3"},
		{`'emr', 'emr'`, `'emr', '../../secret'`, `"../../secret" is no name`},
		{`name = 'admit'`, `name = '..'`, `".." is no name`},
		{`'emr', 'emr'`, `'emr', 'lab'`, "handler admit, to lab: "},
	} {
		dir := t.TempDir()
		if _, err := Write(dir, sample()); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, outcomeFile)
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), c.old) {
			t.Fatalf("no %q in %s: %v", c.old, text, err)
		}
		if err := os.WriteFile(path, []byte(strings.Replace(string(text), c.old, c.new, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", c.new, err)
		}
	}
}

// TestCompare names each kind of difference. Guards seen red: each call of Compare taken out leaves one of them out.
func TestCompare(t *testing.T) {
	for name, c := range map[string]struct {
		change func(r *Result)
		want   []string
	}{
		"nothing":     {func(r *Result) {}, nil},
		"told":        {func(r *Result) { r.Message, r.Received, r.Reason = 1, time.Time{}, "x" }, nil},
		"disposition": {func(r *Result) { r.Disposition = message.Processed }, []string{"disposition: ERROR, PROCESSED"}},
		"router": {func(r *Result) { r.Router = &Part{State: message.RunError, Fault: "handler", Reason: "KeyError"} },
			[]string{"router: , ERROR: KeyError"}},
		"order":    {func(r *Result) { slices.Reverse(r.Handlers) }, []string{"handlers: admit, drop, slow, slow, drop, admit"}},
		"reason":   {func(r *Result) { r.Handlers[1].Reason = "no PID" }, []string{"handler drop: FILTERED: no MRN, FILTERED: no PID"}},
		"measured": {func(r *Result) { r.Handlers[2].Reason = "after 1.2s" }, nil},
		"fault":    {func(r *Result) { r.Handlers[2].Fault = "crash" }, []string{"handler slow: ERROR, deadline, ERROR, crash"}},
		"tag":      {func(r *Result) { r.Tags = map[string]string{"x": "1"} }, []string{`tag mrn: "7\"\n\x00é", none`, `tag x: none, "1"`}},
		"not sent": {func(r *Result) { r.Handlers[0].Sends = r.Handlers[0].Sends[:1] },
			[]string{"admit -> emr: 1 byte, nothing", "admit -> emr (2): 0 bytes, nothing"}},
		"more sent": {func(r *Result) {
			r.Handlers[0].Sends = append(slices.Clone(r.Handlers[0].Sends), message.Send{To: "lab", Body: []byte("xy")})
		},
			[]string{"admit -> lab: nothing, 2 bytes"}},
		"body": {func(r *Result) {
			r.Handlers[0].Sends = slices.Clone(r.Handlers[0].Sends)
			r.Handlers[0].Sends[0].Body = []byte("a\r\n\x00\xfe")
		}, []string{"admit -> archive: 5 bytes, 5 bytes, \"a\\r\\n\\x00\\xff\", \"a\\r\\n\\x00\\xfe\""}},
	} {
		got := sample()
		c.change(&got)
		var said []string
		for _, d := range Compare(sample(), got) {
			s := d.What + ": " + d.Want + ", " + d.Got
			if d.Bodies != nil {
				s += ", " + strings.Join([]string{quote(d.Bodies.Want), quote(d.Bodies.Got)}, ", ")
			}
			said = append(said, s)
		}
		if !slices.Equal(said, c.want) {
			t.Errorf("%s: %q, want %q", name, said, c.want)
		}
	}
}

func quote(b []byte) string { return fmt.Sprintf("%q", b) }

// TestAnyResult: any bytes, tags and reasons survive. rapid prints the seed.
func TestAnyResult(t *testing.T) {
	names := rapid.SampledFrom([]string{"emr", "archive", "a-b", "a_b", "0"})
	base := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		run := message.Run{Handler: "h", State: message.RunSent}
		for range rapid.IntRange(1, 4).Draw(t, "sends") {
			run.Outcome.Sends = append(run.Outcome.Sends, message.Send{To: names.Draw(t, "to"), Body: rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "body")})
		}
		failed := message.Run{Handler: "g", State: message.RunError, Outcome: message.Outcome{
			Reason: rapid.String().Draw(t, "reason"), Fault: &message.Fault{Kind: "handler"}}}
		tags := rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "tags")
		want := Of(message.Message{ID: 1, Inbound: "in", Received: time.Unix(1, 0)}, []message.Run{run, failed}, tags)
		dir, err := os.MkdirTemp(base, "")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Write(dir, want); err != nil {
			t.Fatal(err)
		}
		got, err := Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		if d := Compare(want, got); len(d) > 0 {
			t.Fatalf("%+v", d)
		}
	})
}

// TestFind: guards seen red: without the look at .want, its bodies are cases; without several, a file of JSON is an error.
func TestFind(t *testing.T) {
	dir := t.TempDir()
	const msh = "MSH|^~\\&|A|B|C|D|2026||ADT^A01|%|P|2.5\r"
	for name, text := range map[string]string{
		"b/one.hl7": msh + "\n\n", "a.hl7": msh + msh + "\r" + msh, "c.json": "{}", "d.json": "{}", "README.md": "x", ".hidden.hl7": msh,
		"c.json.want/outcome.toml": "", "c.json.want/h.emr.hl7": msh, "e.hl7": msh + msh, "e.hl7.want/outcome.toml": "",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files, _, err := Find([]string{dir, filepath.Join(dir, "d.json")})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range files {
		for c, err := range In(f) {
			if err != nil {
				t.Fatal(err)
			}
			rel, _ := filepath.Rel(dir, c.Name)
			want, _ := filepath.Rel(dir, c.Want)
			got = append(got, filepath.ToSlash(rel)+" "+filepath.ToSlash(want)+" "+quote(c.Body))
		}
	}
	one := quote([]byte(msh))
	want := []string{"a.hl7#1 a.hl7.want/1 " + one, "a.hl7#2 a.hl7.want/2 " + one, "a.hl7#3 a.hl7.want/3 " + one,
		"b/one.hl7 b/one.hl7.want " + quote([]byte(msh+"\n\n")), `c.json c.json.want "{}"`,
		"e.hl7 e.hl7.want " + quote([]byte(msh+msh)), `d.json d.json.want "{}"`}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if _, _, err := Find([]string{filepath.Join(dir, "c.json.want")}); err != nil {
		t.Error("a folder that is named is searched, whatever it is called:", err)
	}
	if _, _, err := Find([]string{t.TempDir()}); err == nil {
		t.Error("no cases are no success")
	}
}

// TestFromStore: a message counts once its handlers have ended, whatever becomes of its deliveries; places that were closed
// are nothing that was sent. Red without the looks at RunPending and at Closed.
func TestFromStore(t *testing.T) {
	m := message.Message{ID: 3, Inbound: "in", Disposition: message.Routed}
	runs := []message.Run{{State: message.RunSent}, {Handler: "h", State: message.RunSent}, {Handler: "g", State: message.RunFiltered}}
	deliveries := []message.Delivery{
		{Handler: "h", Outbound: "emr", State: message.Ready, Body: []byte("1")},
		{Handler: "h", Outbound: "archive", State: message.Dead, Body: []byte("2")},
		{Handler: "g", Outbound: "emr", State: message.Closed},
		{Handler: "h", Outbound: "emr", State: message.Delivered, Body: []byte("3")},
	}
	got, ended := FromStore(store.Timeline{Message: m, Runs: runs, Deliveries: deliveries})
	want := Result{Disposition: message.Processed, Handlers: []Part{
		{Handler: "h", State: message.RunSent, Sends: []message.Send{{To: "archive", Body: []byte("2")}, {To: "emr", Body: []byte("1")}, {To: "emr", Body: []byte("3")}}},
		{Handler: "g", State: message.RunFiltered}}}
	if d := Compare(want, got); !ended || len(d) > 0 {
		t.Errorf("%v, %+v", ended, d)
	}
	// A delivery that was replayed, and failed again, and was replayed, is one send in its old place; what is sent twice is two.
	twice := func(number int, replayed bool) message.Delivery {
		d := message.Delivery{Number: number, Handler: "h", Outbound: "emr", State: message.Delivered, Body: []byte("1")}
		if replayed {
			d.State, d.Replayed = message.Dead, time.Now()
		}
		return d
	}
	again := []message.Delivery{twice(1, true), deliveries[1], twice(3, false), deliveries[3], twice(5, true), twice(6, false)}
	want.Handlers[0].Sends = []message.Send{{To: "archive", Body: []byte("2")}, {To: "emr", Body: []byte("1")}, {To: "emr", Body: []byte("3")},
		{To: "emr", Body: []byte("1")}}
	got, _ = FromStore(store.Timeline{Message: m, Runs: runs, Deliveries: again})
	if d := Compare(want, got); len(d) > 0 {
		t.Errorf("replayed: %+v", d)
	}
	runs[2].State = message.RunPending
	if _, ended := FromStore(store.Timeline{Message: m, Runs: runs}); ended {
		t.Error("a pending run has ended")
	}
	m.Disposition = message.Received
	if _, ended := FromStore(store.Timeline{Message: m}); ended {
		t.Error("a received message has ended")
	}
}
