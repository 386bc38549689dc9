package flight

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"coppice.dev/coppice/sandbox"
	"coppice.dev/coppice/tree"
	"coppice.dev/coppice/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var booted = []sandbox.Step{{What: sandbox.StepStart}, {What: sandbox.StepReady}}

func recorder(t *testing.T, dir string) *Recorder {
	t.Helper()
	r, err := Open(dir, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func deadline(message int64) sandbox.Cut {
	return sandbox.Cut{Session: "handler a", Why: &sandbox.DeadlineError{After: time.Second}, Message: message, At: time.Now(), Steps: booted,
		Report: tree.Report{Cause: "deadline", Level: tree.Atomic, Named: []tree.Member{{Pid: 7, Name: "x\x1b[31m"}}, Seen: 1}}
}

// TestNumbers: a record comes back as it went, numbers go on after a restart, and none is given twice. Red without r.last in Open.
func TestNumbers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cuts")
	for want := 1; want < 4; want++ {
		r := recorder(t, dir)
		if id := r.Note(deadline(int64(want))); id != want {
			t.Fatalf("the number %d, not %d", id, want)
		}
		r.Close()
		got, err := Read(dir, want)
		if err != nil || got.Message != int64(want) || got.Kind != "deadline" || got.Why != "no answer by the deadline, after 1s" ||
			got.Tree.Named[0].Name != "x\x1b[31m" || got.Tree.Level != tree.Atomic {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if ids, err := List(dir); err != nil || !slices.Equal(ids, []int{1, 2, 3}) {
		t.Errorf("%v, %v", ids, err)
	}
	// What says that it is another is not taken for it. Red without the number's replacement in Read.
	if err := os.Rename(filepath.Join(dir, name(3)), filepath.Join(dir, name(7))); err != nil {
		t.Fatal(err)
	}
	if r, err := Read(dir, 7); err != nil || r.ID != 7 {
		t.Errorf("%d, %v", r.ID, err)
	}
	if info, err := os.Stat(filepath.Join(dir, name(1))); err != nil || info.Mode().Perm()&0o077 != 0 && filepath.Separator == '/' {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if _, err := Read(dir, 9); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a record that is not there: %v", err)
	}
	if ids, err := List(filepath.Join(dir, "none")); err != nil || len(ids) > 0 {
		t.Errorf("a folder that is not there: %v, %v", ids, err)
	}
}

// TestKinds: red with the look at the steps left out of kind (what failed at boot is then charged like a dispatch).
func TestKinds(t *testing.T) {
	for want, c := range map[string]sandbox.Cut{
		"deadline ":       {Why: &sandbox.DeadlineError{}, Steps: booted},
		"violation order": {Why: &sandbox.ViolationError{Violation: &wire.Violation{Name: wire.BadOrder}}, Steps: booted},
		"crash ":          {Why: &sandbox.CrashError{}, Steps: booted},
		"limit output":    {Why: &sandbox.LimitError{Limit: sandbox.LimitOutput}, Steps: booted},
		"cancel ":         {Why: errors.New("stopped"), Steps: booted},
		"boot ":           {Why: &sandbox.DeadlineError{}, Steps: booted[:1]},
		"exit ":           {Steps: booted, Report: tree.Report{Cause: "exit"}},
	} {
		if kind, name := kind(c); kind+" "+name != strings.Replace(want, "  ", " ", 1) {
			t.Errorf("%q, not %q", kind+" "+name, want)
		}
	}
}

// TestOOM: a record keeps what is known of the kernel's part in a death. Red with OOM left out of of.
func TestOOM(t *testing.T) {
	r := of(sandbox.Cut{Status: tree.Status{Known: true, Signal: 9, OOM: tree.OOMPerhaps}})
	if r.OOM != tree.OOMPerhaps || r.Status != "signal: killed, perhaps out of memory" {
		t.Errorf("%q, %q", r.OOM, r.Status)
	}
}

// TestOrderly: what is in order is not recorded; what could not be proved gone is, whatever it was cut for. Red with c.Err left
// out of orderly.
func TestOrderly(t *testing.T) {
	dir := t.TempDir()
	r := recorder(t, dir)
	if id := r.Note(sandbox.Cut{Expected: true, Report: tree.Report{Cause: "exit"}}); id != 0 {
		t.Errorf("one that is expected has the number %d", id)
	}
	if id := r.Note(sandbox.Cut{Expected: true, Err: errors.New("survivors")}); id != 1 {
		t.Errorf("one that is not proved gone has the number %d", id)
	}
}

// TestBoots: a worker that cannot boot, over and over, has one record, until the reason or the kind is another. Red with again
// left false in Note.
func TestBoots(t *testing.T) {
	dir := t.TempDir()
	r := recorder(t, dir)
	fails := func(worker, why string) int {
		return r.Note(sandbox.Cut{Session: worker, Why: errors.New(why), Steps: booted[:1], Report: tree.Report{Level: tree.Group}})
	}
	got := []int{fails("a", "x"), fails("b", "x"), fails("a", "x"), fails("a", "y"), fails("a", "y"), fails("a", "x"), r.Note(deadline(1)), fails("b", "x")}
	if want := []int{1, 2, 1, 3, 3, 4, 5, 2}; !slices.Equal(got, want) {
		t.Errorf("numbers %v, not %v", got, want)
	}
	r.Close()
	if one, err := Read(dir, 2); err != nil || one.Times != 2 {
		t.Errorf("%+v, %v", one, err)
	}
}

// TestUnstarted: who could not be started has a story, which comes back as it went, and shares it with its next tries. Red without
// omitzero in Record: a level of 0 has no name that could be read.
func TestUnstarted(t *testing.T) {
	dir := t.TempDir()
	r := recorder(t, dir)
	u := sandbox.Unstarted{Session: "handler a", Err: &fs.PathError{Op: "exec", Path: "/x", Err: fs.ErrNotExist}, At: time.Now(), Steps: booted[:1]}
	if first, second := r.NoteUnstarted(u), r.NoteUnstarted(u); first != 1 || second != 1 {
		t.Errorf("numbers %d, %d", first, second)
	}
	r.Close()
	got, err := Read(dir, 1)
	if err != nil || !got.Unstarted() || got.Kind != "boot" || got.Times != 2 || got.Why != "exec /x: file does not exist" || len(got.Steps) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestKeep: the oldest go. Red without the removal in put.
func TestKeep(t *testing.T) {
	dir := t.TempDir()
	for id := 1; id <= Keep; id++ {
		if err := os.WriteFile(filepath.Join(dir, name(id)), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := recorder(t, dir)
	r.Note(deadline(1))
	r.Note(deadline(2))
	r.Close()
	if ids, err := List(dir); err != nil || len(ids) != Keep || ids[0] != 3 || ids[Keep-1] != Keep+2 {
		t.Errorf("%d records, from %d, %v", len(ids), ids[0], err)
	}
}

// TestForeign: what stands in the place of a record is refused, and is never read beyond the cap. Red without the look at the
// size in Read.
func TestForeign(t *testing.T) {
	dir := t.TempDir()
	large, err := json.Marshal(Record{Worker: strings.Repeat("x", recordCap), Tree: tree.Report{Level: tree.Group}})
	if err != nil {
		t.Fatal(err)
	}
	for id, content := range map[int]string{1: "garbage", 2: string(large), 3: ""} {
		if err := os.WriteFile(filepath.Join(dir, name(id)), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(dir, id); err == nil {
			t.Errorf("record %d is taken", id)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, name(4)), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir, 4); err == nil {
		t.Error("a folder is taken")
	}
	// A number that the next one could not follow is none of ours. Red without the look at lastID in List.
	if err := os.WriteFile(filepath.Join(dir, "9223372036854775807.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if ids, _ := List(dir); len(ids) != 4 {
		t.Errorf("listed %v", ids)
	}
}
