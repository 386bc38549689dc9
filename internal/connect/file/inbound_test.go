package file

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/connect/connecttest"
	"coppice.dev/coppice/internal/message"
)

func TestInboundConfig(t *testing.T) {
	for name, cfg := range map[string]InboundConfig{
		"no dir":           {},
		"bad pattern":      {Dir: "in", Pattern: "["},
		"unknown after":    {Dir: "in", After: "shred"},
		"nowhere to move":  {Dir: "in", After: Move},
		"move and delete":  {Dir: "in", After: Delete, MoveTo: "done"},
		"moves to itself":  {Dir: "in", MoveTo: "."},
		"relative, but up": {Dir: "in", MoveTo: "../done"},
	} {
		if _, err := NewInbound(cfg, connecttest.NewSink()); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestListenErrors(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, cfg := range map[string]InboundConfig{
		"missing":          {Dir: filepath.Join(dir, "missing")},
		"no folder":        {Dir: plain},
		"target no folder": {Dir: dir, MoveTo: "plain"},
	} {
		if err := inbound(t, cfg, connecttest.NewSink()).Listen(t.Context()); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("the probe left %q", got)
	}
}

// Files of any content, in the order of their names, with what belongs to a source.
func TestTakesInOrder(t *testing.T) {
	dir := t.TempDir()
	bodies := map[string][]byte{
		"a.hl7": adt("1"), "b.json": []byte(`{"a":1}`), "c.empty": {}, "d.bin": {0, 1, 2, 0xff}, "e.utf16": []byte("\xff\xfeM\x00"),
	}
	for name, body := range bodies {
		drop(t, dir, name, body)
	}
	sink := connecttest.NewSink()
	connecttest.Serve(t, inbound(t, InboundConfig{Dir: dir, Stable: 50 * time.Millisecond}, sink))
	got := sink.AwaitMessages(t, len(bodies))
	var order []string
	for _, m := range got {
		name := filepath.Base(m.Peer)
		order = append(order, name)
		sum := sha256.Sum256(bodies[name])
		if !bytes.Equal(m.Body, bodies[name]) || m.File == nil || m.File.Path != filepath.Join(dir, name) || m.Peer != m.File.Path ||
			m.File.Size != int64(len(bodies[name])) || m.File.ModTime.IsZero() || m.File.SHA256 != hex.EncodeToString(sum[:]) {
			t.Errorf("%s: %+v, %+v", name, m, m.File)
		}
		wantGone(t, m.Peer)
	}
	if !slices.IsSorted(order) || len(order) != len(bodies) {
		t.Errorf("order %q", order)
	}
	if got[0].Type != "ADT^A01" || got[0].ControlID != "1" || got[1].Type != "" {
		t.Errorf("types %q, %q", got[0].Type, got[1].Type)
	}
}

// A link is kept out by its type, by the root, and by the size and time that are the link's own and not its target's: no one
// of these left out turns this red.
func TestLeavesWhatIsNotItsOwn(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	outside := filepath.Join(other, "outside.hl7")
	for _, p := range []string{outside, filepath.Join(dir, ".hidden.hl7"), filepath.Join(dir, "x.tmp"), filepath.Join(dir, "x.part"), filepath.Join(dir, "x.txt")} {
		if err := os.WriteFile(p, adt("no"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "folder.hl7"), 0o700); err != nil {
		t.Fatal(err)
	}
	link(t, outside, filepath.Join(dir, "a-link.hl7"))
	link(t, "z.hl7", filepath.Join(dir, "b-link.hl7"))
	link(t, other, filepath.Join(dir, "c-link.hl7"))
	before := names(t, dir)
	sink := connecttest.NewSink()
	served := connecttest.Serve(t, inbound(t, InboundConfig{Dir: dir, Pattern: "*.hl7"}, sink))
	drop(t, dir, "z.hl7", adt("yes")) // the last of one look, after all that it leaves
	wantGone(t, filepath.Join(dir, "z.hl7"))
	served.Stop(t)
	if got := sink.Messages(); len(got) != 1 || got[0].ControlID != "yes" {
		t.Errorf("messages %+v", got)
	}
	if got := names(t, dir); !slices.Equal(got, before) {
		t.Errorf("folder holds %q, want %q", got, before)
	}
}

// A file that grows is read once it stands still: never a part of it. Red with left set to 0 in
// survey.
func TestWaitsUntilQuiet(t *testing.T) {
	dir := t.TempDir()
	sink := connecttest.NewSink()
	connecttest.Serve(t, inbound(t, InboundConfig{Dir: dir, Stable: 500 * time.Millisecond}, sink))
	f, err := os.Create(filepath.Join(dir, "slow.hl7"))
	if err != nil {
		t.Fatal(err)
	}
	var want []byte
	tick := time.NewTicker(60 * time.Millisecond) // several looks
	defer tick.Stop()
	for range 10 { // longer than a file must stand still
		<-tick.C
		want = append(want, "OBX|1\r"...)
		if _, err := f.WriteString("OBX|1\r"); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if got := sink.AwaitMessages(t, 1); !bytes.Equal(got[0].Body, want) {
		t.Errorf("%d bytes, want %d", len(got[0].Body), len(want))
	}
}

// The outcome of a commit is unknown and it did happen: the next look finds the source recorded, and only puts the file
// away. Red with the answer of Seen ignored.
func TestUnknownOutcomeIsNotReadTwice(t *testing.T) {
	dir := t.TempDir()
	sink := connecttest.NewSink()
	sink.OnReceive(func(_ context.Context, in message.Incoming) error {
		sink.Keep(in)
		return errors.Join(errors.New("disk"), connect.ErrUnknown)
	})
	connecttest.Serve(t, inbound(t, InboundConfig{Dir: dir}, sink))
	drop(t, dir, "a.hl7", adt("1"))
	wantGone(t, filepath.Join(dir, "a.hl7"))
	if got := sink.Messages(); len(got) != 1 {
		t.Errorf("%d messages, want 1", len(got))
	}
}

// The same file, to the last byte and the time, dropped once more is another message; one that lay there at the start and is
// recorded is what an engine that died before the move has left, and only put away. Red with Seen asked of every file (the
// second drop is lost), and with it never asked (the leftover is read twice).
func TestDroppedAgain(t *testing.T) {
	dir := t.TempDir()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	again := func() {
		drop(t, dir, ".a", adt("1"))
		if err := os.Chtimes(filepath.Join(dir, ".a"), at, at); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, ".a"), filepath.Join(dir, "a.hl7")); err != nil {
			t.Fatal(err)
		}
	}
	sink := connecttest.NewSink()
	served := connecttest.Serve(t, inbound(t, InboundConfig{Dir: dir}, sink))
	for i := range 2 {
		again()
		sink.AwaitMessages(t, i+1)
		wantGone(t, filepath.Join(dir, "a.hl7"))
	}
	served.Stop(t)
	again()
	connecttest.Serve(t, inbound(t, InboundConfig{Dir: dir}, sink))
	wantGone(t, filepath.Join(dir, "a.hl7"))
	if got := sink.Messages(); len(got) != 2 {
		t.Errorf("%d messages, want 2", len(got))
	}
}

// Moved files replace none: the name that is taken is extended by the message's id.
func TestMoves(t *testing.T) {
	for name, to := range map[string]string{"inside": "done/a", "elsewhere": filepath.Join(t.TempDir(), "done")} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			sink := connecttest.NewSink()
			connecttest.Serve(t, inbound(t, InboundConfig{Dir: dir, MoveTo: to}, sink))
			target := to
			if !filepath.IsAbs(to) {
				target = filepath.Join(dir, to)
			}
			for i, id := range []string{"1", "2"} {
				drop(t, dir, "a.hl7", adt(id))
				sink.AwaitMessages(t, i+1)
				wantGone(t, filepath.Join(dir, "a.hl7"))
			}
			if got := names(t, target); !slices.Equal(got, []string{"a.hl7", "a.hl7.0000000002"}) {
				t.Errorf("moved to %q", got)
			}
		})
	}
}

// A file that is written anew between the commit and the deletion is another file. Red without the comparison in
// putAway.
func TestWrittenAnewIsNotDeleted(t *testing.T) {
	dir := t.TempDir()
	sink := connecttest.NewSink()
	sink.OnReceive(func(_ context.Context, in message.Incoming) error {
		if bytes.Equal(in.Body, adt("1")) {
			drop(t, dir, "a.hl7", adt("two"))
		}
		return nil
	})
	connecttest.Serve(t, inbound(t, InboundConfig{Dir: dir}, sink))
	drop(t, dir, "a.hl7", adt("1"))
	got := sink.AwaitMessages(t, 2)
	if got[1].ControlID != "two" {
		t.Errorf("second message %+v", got[1])
	}
	wantGone(t, filepath.Join(dir, "a.hl7"))
}

// A file over the limit is refused, recorded, and put where it is not met again; others go on.
func TestHuge(t *testing.T) {
	dir := t.TempDir()
	sink := connecttest.NewSink()
	connecttest.Serve(t, inbound(t, InboundConfig{Dir: dir, MaxMessage: 1000}, sink))
	drop(t, dir, "a.hl7", bytes.Repeat([]byte("x"), 1001))
	drop(t, dir, "b.hl7", bytes.Repeat([]byte("x"), 1000))
	if got := sink.AwaitRefusals(t, 1); got[0].Size != 1001 || !strings.Contains(got[0].Reason, "1000") || got[0].Peer != filepath.Join(dir, "a.hl7") {
		t.Errorf("refusal %+v", got[0])
	}
	sink.AwaitMessages(t, 1)
	wantThere(t, filepath.Join(dir, errorFolder, "a.hl7"))
	wantGone(t, filepath.Join(dir, "a.hl7"))
	wantGone(t, filepath.Join(dir, "b.hl7"))
	if n := len(sink.Refusals()); n != 1 {
		t.Errorf("%d refusals, want 1", n)
	}
}

// The error folder that a stranger made a link does not lead out: the file stays, and is refused once. Red with rename
// given the paths instead of the root.
func TestErrorFolderIsALink(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	link(t, other, filepath.Join(dir, errorFolder))
	sink := connecttest.NewSink()
	served := connecttest.Serve(t, inbound(t, InboundConfig{Dir: dir, MaxMessage: 100}, sink))
	drop(t, dir, "a.hl7", make([]byte, 101))
	sink.AwaitRefusals(t, 1)
	drop(t, dir, "z.hl7", adt("1"))
	wantGone(t, filepath.Join(dir, "z.hl7"))
	served.Stop(t)
	if got := names(t, other); len(got) != 0 {
		t.Errorf("%q left the folder", got)
	}
	if n := len(sink.Refusals()); n != 1 {
		t.Errorf("%d refusals, want 1", n)
	}
}

// Events bring a file without a poll: not the first one, which the first look may find. Red without renew.
func TestWatches(t *testing.T) {
	if runtime.GOOS != "linux" && runtime.GOOS != "windows" && runtime.GOOS != "darwin" {
		t.Skip("missing: events of files")
	}
	dir := t.TempDir()
	sink := connecttest.NewSink()
	connecttest.Serve(t, inbound(t, InboundConfig{Dir: dir, Poll: time.Hour}, sink))
	for i, name := range []string{"a.hl7", "b.hl7", "c.hl7"} {
		drop(t, dir, name, adt("1"))
		sink.AwaitMessages(t, i+1)
		wantGone(t, filepath.Join(dir, name))
	}
}

// The folder may be taken away and come back.
func TestFolderReplaced(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "in")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	sink := connecttest.NewSink()
	connecttest.Serve(t, inbound(t, InboundConfig{Dir: dir}, sink))
	drop(t, dir, "a.hl7", adt("1"))
	sink.AwaitMessages(t, 1)
	wantGone(t, filepath.Join(dir, "a.hl7"))
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Skipf("missing: renaming of a watched folder: %v", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	drop(t, dir, "b.hl7", adt("2"))
	sink.AwaitMessages(t, 2)
}

// One file that cannot be read holds up no other.
func TestUnreadable(t *testing.T) {
	if os.Geteuid() <= 0 {
		t.Skip("missing: a user who may not read every file")
	}
	dir := t.TempDir()
	sink := connecttest.NewSink()
	connecttest.Serve(t, inbound(t, InboundConfig{Dir: dir}, sink))
	if err := os.WriteFile(filepath.Join(dir, "a.hl7"), adt("1"), 0); err != nil {
		t.Fatal(err)
	}
	drop(t, dir, "b.hl7", adt("2"))
	sink.AwaitMessages(t, 1)
}

func TestLoad(t *testing.T) {
	load := connecttest.Load(t)
	dir := t.TempDir()
	for i, body := range load {
		if err := os.WriteFile(filepath.Join(dir, string(rune('a'+i/676))+string(rune('a'+i/26%26))+string(rune('a'+i%26))), body, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sink := connecttest.NewSink()
	connecttest.Serve(t, inbound(t, InboundConfig{Dir: dir, Stable: 50 * time.Millisecond}, sink))
	for i, m := range sink.AwaitMessages(t, len(load)) {
		if !bytes.Equal(m.Body, load[i]) || m.Type == "" {
			t.Fatalf("message %d is %.80q, want %.80q", i, m.Body, load[i])
		}
	}
}
