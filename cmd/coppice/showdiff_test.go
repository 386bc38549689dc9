package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// changed is a message of which a handler sent something else to a, the same to b, and what came to c.
func changed() store.Timeline {
	came, sent := []byte("MSH|^~\\&|A|B|||2026||ADT^A01|1|P|2.5\rPV1|1|OLD\x1b[31m\r"), []byte("MSH|^~\\&|A|B|||2026||ADT^A01|1|P|2.5\rPV1|1|NEW\x9b\r")
	return store.Timeline{Message: message.Message{ID: 1, Disposition: message.Processed, Body: came}, Deliveries: []message.Delivery{
		{Number: 1, Outbound: "a", Handler: "h", State: message.Delivered, Body: sent},
		{Number: 2, Outbound: "b", Handler: "h", State: message.Ready, Body: sent},
		{Number: 3, Outbound: "c", Handler: "h", State: message.Delivered, Body: came},
		{Number: 4, Outbound: "d", Handler: "h", State: message.Reserved},
	}}
}

// TestShowDiff: each body is compared with what came, once, and a terminal sees no control character of it. Red without asItCame, without
// shown, and without printable in quotedBytes and in marked.
func TestShowDiff(t *testing.T) {
	for _, diff := range []bool{true, false} {
		var out bytes.Buffer
		if err := showText(stdio{out: &out}, changed(), holds{}, diff, nil); err != nil {
			t.Fatal(err)
		}
		got := out.String()
		for text, want := range map[string]int{
			"bytes; what came is -, and what was made of it is +\n    - PV1|1|OLD\\x1b[31m\n    + PV1|1|NEW\\x9b\n      PV1-2: \"OLD\\x1b[31m\" -> \"NEW\\x9b\"\n": count(diff),
			"bytes, those of delivery 1\n": 1,
			"bytes, as it came\n":          1,
			"PV1-2":                        count(diff),
			"\x1b":                         0,
			"\x9b":                         0,
		} {
			if n := strings.Count(got, text); n != want {
				t.Errorf("with diff %v: %q stands there %d times, not %d:\n%s", diff, text, n, want, got)
			}
		}
	}
}

// TestShowDiffColor: Red without color in text.
func TestShowDiffColor(t *testing.T) {
	tl := changed()
	got := (&comparing{came: tl.Message.Body, diff: true, color: true}).text(tl.Deliveries[0])
	if !strings.Contains(got, "\x1b[31m- \x1b[0m") || strings.Contains(colours.ReplaceAllString(got, ""), "\x1b") {
		t.Errorf("%q", got)
	}
}

// TestShowDiffJSON: the same facts. Red without as_it_came, and with a diff of what is as it came.
func TestShowDiffJSON(t *testing.T) {
	for _, diff := range []bool{true, false} {
		var out bytes.Buffer
		if err := printJSON(&out, timelineJSON(changed(), holds{}, diff, nil)); err != nil {
			t.Fatal(err)
		}
		var got struct {
			Deliveries []struct {
				Same *bool `json:"as_it_came"`
				Diff []string
			}
		}
		if err := json.Unmarshal(out.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		d := got.Deliveries
		if *d[0].Same || *d[1].Same || !*d[2].Same || d[3].Same != nil {
			t.Errorf("as it came: %s", out.String())
		}
		if want := 3 * count(diff); len(d[0].Diff) != want || len(d[1].Diff) != want || len(d[2].Diff)+len(d[3].Diff) > 0 {
			t.Errorf("with diff %v: %s", diff, out.String())
		}
	}
}
