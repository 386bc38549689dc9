package engine

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"coppice.dev/coppice/internal/hl7"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

const throughTOML = `
version = 1
[inbound.feed]
mllp = { listen = "127.0.0.1:0" }
router = "feed.py:route"
[handler.through]
run = "feed.py:through"
to = ["emr", "archive"]
[outbound.emr]
mllp = { connect = %q }
[outbound.archive]
file = { dir = "out", name = "{id}.hl7" }
`

// samples are the messages of the folder with real ones: all of the load corpus, and each .hl7 file as it is.
func samples(t *testing.T) [][]byte {
	t.Helper()
	dir := filepath.Join("..", "..", "..", "shared", "samples")
	load, err := os.Open(filepath.Join(dir, "simhospital-load.out"))
	if err != nil {
		t.Skipf("missing: samples: %v", err)
	}
	defer load.Close()
	var out [][]byte
	for m, err := range hl7.Split(load, 1<<20) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, m)
	}
	if len(out) != 1013 {
		t.Fatalf("%d messages in the load corpus", len(out))
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.hl7"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no .hl7 files: %v", err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, b)
	}
	return out
}

// TestSamples sends every sample through a Python handler that passes it on: each ends PROCESSED, and what arrives at the
// EMR and in the archive is byte for byte what was sent, in the order in which it was sent.
func TestSamples(t *testing.T) {
	needPython(t)
	sent := samples(t)
	receiver := newEMR(t, nil)
	dir := folder(t, fmt.Sprintf(throughTOML, receiver.Addr()))
	e := serve(t, dir, Options{})
	client := dial(t, e.Addr("feed"))
	for _, body := range sent {
		exchange(t, client, body)
	}
	counts := e.quiet(t, int64(len(sent)))
	if counts[message.Processed] != int64(len(sent)) {
		t.Errorf("dispositions: %v", counts)
	}
	if got := receiver.got(); !slices.EqualFunc(got, sent, bytes.Equal) {
		t.Errorf("the EMR got %d bodies, and not the %d that were sent, as they were, in their order", len(got), len(sent))
	}
	files, err := filepath.Glob(filepath.Join(dir, "out", "*.hl7"))
	if err != nil || len(files) != len(sent) {
		t.Fatalf("%d files in the archive, %v", len(files), err)
	}
	for i, f := range files { // Glob sorts, and the names sort in receive order
		if b, err := os.ReadFile(f); err != nil || !bytes.Equal(b, sent[i]) {
			t.Errorf("%s is not message %d: %v", f, i+1, err)
		}
	}
	list, err := e.Store().Messages(t.Context(), store.Query{Limit: 1})
	if err != nil || len(list) != 1 || list[0].ID != message.ID(len(sent)) {
		t.Errorf("newest message: %+v, %v", list, err)
	}
}
