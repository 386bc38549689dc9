package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

func TestDemoCases(t *testing.T) {
	for _, escape := range []bool{true, false} {
		counts := map[message.Disposition]int{}
		controls := map[string]bool{}
		for _, c := range demoCases(demoSeed, escape) {
			counts[c.want]++
			controls[c.Control] = true
			if c.emr && !c.archive || c.archive != (c.want == message.Processed) {
				t.Errorf("%s is to be %s, at the EMR: %v, in the archive: %v", c.Control, c.want, c.emr, c.archive)
			}
		}
		want := map[message.Disposition]int{message.Processed: 28, message.Filtered: 6, message.Unrouted: 3, message.Error: 3}
		if !escape {
			want[message.Processed], want[message.Error] = 29, 2
		}
		if len(controls) != 40 {
			t.Errorf("%d control ids, not 40", len(controls))
		}
		for _, d := range message.Dispositions() {
			if counts[d] != want[d] {
				t.Errorf("escape %v: %d messages are to be %s, not %d", escape, counts[d], d, want[d])
			}
		}
	}
}

// balanced is a demonstration that went as it should have, with its books.
func balanced(t *testing.T) (*demo, []store.Timeline) {
	t.Helper()
	d := &demo{io: stdio{out: io.Discard, err: io.Discard}, dir: t.TempDir(), cases: demoCases(demoSeed, true)}
	archive := d.archive()
	if err := os.MkdirAll(archive, 0o700); err != nil {
		t.Fatal(err)
	}
	var books []store.Timeline
	for i, c := range d.cases {
		m := message.Message{ID: message.ID(i + 1), ControlID: c.Control, Body: c.Body, Disposition: c.want}
		line := store.Timeline{Message: m}
		if c.emr {
			d.arrived = append(d.arrived, c.Control)
			line.Deliveries = append(line.Deliveries, message.Delivery{Message: m.ID, Number: 1, Outbound: "emr", State: message.Delivered})
		}
		if c.archive {
			dl := message.Delivery{Message: m.ID, Number: 2, Outbound: "archive", State: message.Delivered}
			line.Deliveries = append(line.Deliveries, dl)
			if err := os.WriteFile(filepath.Join(archive, dl.Name()+".hl7"), c.Body, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		books = append(books, line)
	}
	return d, books
}

// first is the place of the first message that is to end so.
func (d *demo) first(disposition message.Disposition) int {
	return slices.IndexFunc(d.cases, func(c demoCase) bool { return c.want == disposition })
}

func (d *demo) anyFile() string {
	files, err := filepath.Glob(filepath.Join(d.archive(), "*"))
	if err != nil || len(files) == 0 {
		panic("the archive is empty")
	}
	return files[0]
}

// TestAudit spoils good books in every way that the demonstration promises to see. Each case is the guard of one line of
// audit or close, and was seen red with that line removed.
func TestAudit(t *testing.T) {
	if d, books := balanced(t); d.close(books, nil) != nil {
		t.Fatalf("good books have faults: %v", d.close(books, nil))
	}
	swap := func(s []string, i, j int) { s[i], s[j] = s[j], s[i] }
	for name, spoil := range map[string]struct {
		do   func(d *demo, books *[]store.Timeline) (stopped error)
		says string
	}{
		"a wrong disposition": {func(d *demo, books *[]store.Timeline) error {
			(*books)[d.first(message.Filtered)].Message.Disposition = message.Processed
			return nil
		}, "is PROCESSED, and should be FILTERED"},
		"a message under way": {func(d *demo, books *[]store.Timeline) error {
			(*books)[d.first(message.Processed)].Message.Disposition = message.Routed
			return nil
		}, "is ROUTED, and should be PROCESSED"},
		"a message missing": {func(d *demo, books *[]store.Timeline) error {
			*books = (*books)[1:]
			return nil
		}, "39 messages in the store, 40 were sent"},
		"a message twice": {func(d *demo, books *[]store.Timeline) error {
			*books = append(*books, (*books)[0])
			return nil
		}, "41 messages in the store, 40 were sent"},
		"another body": {func(d *demo, books *[]store.Timeline) error {
			(*books)[3].Message.Body = []byte("MSH|")
			return nil
		}, "message 4 is not what was sent"},
		"another order": {func(d *demo, books *[]store.Timeline) error {
			(*books)[0], (*books)[1] = (*books)[1], (*books)[0]
			return nil
		}, "is not what was sent"},
		"a delivery missing at the EMR": {func(d *demo, books *[]store.Timeline) error {
			d.arrived = d.arrived[:len(d.arrived)-1]
			return nil
		}, "the EMR has"},
		"a delivery twice at the EMR": {func(d *demo, books *[]store.Timeline) error {
			d.arrived = append(d.arrived, d.arrived[len(d.arrived)-1])
			return nil
		}, "the EMR has"},
		"two deliveries out of order at the EMR": {func(d *demo, books *[]store.Timeline) error {
			swap(d.arrived, 0, 1)
			return nil
		}, "the EMR has"},
		"a delivery missing in the books": {func(d *demo, books *[]store.Timeline) error {
			i := d.first(message.Processed)
			(*books)[i].Deliveries = (*books)[i].Deliveries[:len((*books)[i].Deliveries)-1]
			return nil
		}, "the archive has"},
		"a file missing in the archive": {func(d *demo, books *[]store.Timeline) error {
			return os.Remove(d.anyFile())
		}, "the archive has ["},
		"a file in the archive that holds something else": {func(d *demo, books *[]store.Timeline) error {
			return os.WriteFile(d.anyFile(), []byte("MSH|"), 0o600)
		}, "the archive has ["},
		"a file more in the archive": {func(d *demo, books *[]store.Timeline) error {
			return os.WriteFile(filepath.Join(d.archive(), "more"), nil, 0o600)
		}, "the archive has 29 files, and should have 28"},
		"a worker that runs on":      {func(d *demo, _ *[]store.Timeline) error { d.started = 1; return nil }, "1 workers are still running, 0 were not"},
		"a worker not proved gone":   {func(d *demo, _ *[]store.Timeline) error { d.unproved = 1; return nil }, "0 workers are still running, 1 were not"},
		"an engine that stopped ill": {func(*demo, *[]store.Timeline) error { return errors.New("oops") }, "the engine did not stop well: oops"},
	} {
		d, books := balanced(t)
		stopped := spoil.do(d, &books)
		err := d.close(books, stopped)
		if err == nil || !strings.HasPrefix(err.Error(), "not everything is accounted for\n  ") || !strings.Contains(err.Error(), spoil.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDemoFails: faults make the exit status 1, here of a demonstration whose engine cannot write what it should have.
func TestDemoFails(t *testing.T) {
	d, books := balanced(t)
	d.arrived = nil
	var said bytes.Buffer
	streams := stdio{out: io.Discard, err: &said}
	root := rootCommand(streams)
	for _, cmd := range root.Commands() {
		if cmd.Name() == "demo" {
			verb(cmd, func(_ *cobra.Command, _ []string) error { return d.close(books, nil) })
		}
	}
	if status := execute(context.Background(), root, []string{"demo"}, streams); status != exitProblem {
		t.Errorf("exit status %d", status)
	}
	if !strings.HasPrefix(said.String(), "coppice: not everything is accounted for\n  the EMR has") {
		t.Errorf("it says %q", said.String())
	}
}
