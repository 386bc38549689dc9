package file

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/connect/connecttest"
	"coppice.dev/coppice/internal/message"
)

// The messages of a file are received together. One that is malformed is refused, and goes to the folder error; one of which it
// is not known whether it was committed is found to be, by its source, and only put away. Red without Split in commit, with
// ErrBatch taken for a failed commit, and with File left out of the first part.
func TestBatchIsSplit(t *testing.T) {
	dir, sink := t.TempDir(), connecttest.NewSink()
	sink.OnReceive(func(_ context.Context, in message.Incoming) error {
		if in.ControlID != "unknown" {
			return nil
		}
		sink.Keep(in)
		return errors.Join(errors.New("no sync"), connect.ErrUnknown)
	})
	batch := func(parts ...string) []byte {
		text := "FHS|^~\\&\r\nBHS|^~\\&\r\n"
		for _, id := range parts {
			text += string(adt(id))
		}
		return []byte(text + "BTS|2\r\nFTS|1\r\n")
	}
	drop(t, dir, "a.hl7", batch("1", "2"))
	drop(t, dir, "b.hl7", batch("3"))
	drop(t, dir, "c.hl7", batch("unknown", "4"))
	drop(t, dir, "d.hl7", adt("5"))
	served := connecttest.Serve(t, inbound(t, InboundConfig{Dir: dir, MoveTo: "done", Poll: 20 * time.Millisecond, Stable: time.Millisecond, Split: true}, sink))
	for _, name := range []string{"a.hl7", "b.hl7", "c.hl7", "d.hl7"} {
		wantGone(t, filepath.Join(dir, name))
	}
	served.Stop(t)
	var got []string
	for _, m := range sink.Messages() {
		got = append(got, m.ControlID)
	}
	if want := "1 2 unknown 5"; strings.Join(got, " ") != want {
		t.Errorf("received %q, want %q", got, want)
	}
	if r := sink.Refusals(); len(r) != 1 || !strings.Contains(r[0].Reason, "BTS-1") || !strings.HasSuffix(r[0].Peer, "b.hl7") {
		t.Errorf("refusals %+v", r)
	}
	if bad, good := names(t, filepath.Join(dir, "error")), names(t, filepath.Join(dir, "done")); len(bad) != 1 || len(good) != 3 {
		t.Errorf("error has %q, done has %q", bad, good)
	}
}
