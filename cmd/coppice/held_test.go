package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"coppice.dev/coppice/internal/flight"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
	"coppice.dev/coppice/sandbox"
	"coppice.dev/coppice/tree"
)

// TestServes: a worker's name tells whose messages it has. Red without the look at the inbound.
func TestServes(t *testing.T) {
	for worker, want := range map[string]bool{
		"handler admit": true, "handler admit for inbound adt": true, "handler other and admit for inbound adt": true,
		"handler admit for inbound lab": false, "handler admits": false, "router of inbound adt": false, "handler other": false,
	} {
		if got := serves(worker, "admit", "adt"); got != want {
			t.Errorf("%s: %v", worker, got)
		}
	}
}

// TestReadRecordsKeepsLittle: all records are held at once, so of each what is told and no more: 500 may have 4 MiB each. Red with r in
// the place of the shorter one in readRecords.
func TestReadRecordsKeepsLittle(t *testing.T) {
	dir := t.TempDir()
	want := flight.Record{ID: 1, Worker: "handler a", Kind: "exit", Why: "why", Times: 2, Message: 3, At: time.Unix(7, 0).UTC(), Status: "exit status 3"}
	whole := want
	whole.Output, whole.Said, whole.Heard, whole.Steps = []string{"much"}, "much", "much", []sandbox.Step{{What: sandbox.StepStart}}
	whole.Tree = tree.Report{Level: tree.Group, Named: []tree.Member{{Pid: 7}}}
	text, err := json.Marshal(whole)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "00000001.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := readRecords(dir)
	if err != nil || !reflect.DeepEqual(got, []flight.Record{want}) {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestHolds: what holds a message, and what holds none: a start that failed before it came, one that went well later, a head that has
// a handler at work, another lane. Red without each of the comparisons in unstarted and behind.
func TestHolds(t *testing.T) {
	at := time.Now()
	boot := func(id int, worker string, after time.Duration) flight.Record {
		return flight.Record{ID: id, Worker: worker, Kind: "boot", Why: "no", At: at.Add(after)}
	}
	crash := flight.Record{ID: 9, Worker: "handler admit", Kind: "crash", At: at.Add(time.Minute)}
	next := at.Add(time.Hour)
	head := message.Delivery{ID: 5, Message: 3, Number: 1, Inbound: "adt", Outbound: "emr", State: message.Ready, NextTry: next, Reason: "refused"}
	reserved := message.Delivery{ID: 5, Message: 3, Number: 1, Inbound: "adt", Outbound: "emr", State: message.Reserved, Handler: "admit"}
	own := message.Delivery{ID: 7, Message: 4, Number: 1, Inbound: "adt", Outbound: "emr", State: message.Ready}
	pending := []message.Run{{}, {Handler: "admit", State: message.RunPending}}
	for name, c := range map[string]struct {
		h    holds
		d    message.Disposition
		runs []message.Run
		own  []message.Delivery
		want string
	}{
		"nothing":                     {d: message.Routed, runs: pending},
		"a handler":                   {h: holds{records: []flight.Record{boot(1, "handler admit", time.Second)}}, d: message.Routed, runs: pending, want: "handler admit 1"},
		"a handler, before":           {h: holds{records: []flight.Record{boot(1, "handler admit", -time.Second)}}, d: message.Routed, runs: pending},
		"a handler, later well":       {h: holds{records: []flight.Record{boot(1, "handler admit", time.Second), crash}}, d: message.Routed, runs: pending},
		"an older story, told again":  {h: holds{records: []flight.Record{boot(1, "handler admit", time.Hour), crash}}, d: message.Routed, runs: pending, want: "handler admit 1"},
		"a router":                    {h: holds{records: []flight.Record{boot(2, "router of inbound adt", time.Second)}}, d: message.Received, want: "router 2"},
		"another's router":            {h: holds{records: []flight.Record{boot(2, "router of inbound lab", time.Second)}}, d: message.Received},
		"it has ended":                {h: holds{records: []flight.Record{boot(1, "handler admit", time.Second)}}, d: message.Error, runs: pending},
		"its own try":                 {h: holds{heads: []message.Delivery{head}}, d: message.Routed, own: []message.Delivery{head}, want: "delivery 1 to emr next"},
		"behind a try":                {h: holds{heads: []message.Delivery{head}}, d: message.Routed, own: []message.Delivery{own}, want: "delivery 1 to emr next"},
		"behind a handler at work":    {h: holds{heads: []message.Delivery{reserved}}, d: message.Routed, own: []message.Delivery{own}},
		"behind a handler that holds": {h: holds{heads: []message.Delivery{reserved}, records: []flight.Record{boot(1, "handler admit", time.Second)}}, d: message.Routed, own: []message.Delivery{own}, want: "delivery 1 to emr 1"},
		"another lane":                {h: holds{heads: []message.Delivery{{ID: 5, Inbound: "lab", Outbound: "emr", State: message.Ready, NextTry: next}}}, d: message.Routed, own: []message.Delivery{own}},
	} {
		got := ""
		for _, w := range c.h.of(store.Timeline{Message: message.Message{ID: 4, Inbound: "adt", Received: at, Disposition: c.d}, Runs: c.runs, Deliveries: c.own}) {
			got += w.What
			if w.Cut != 0 {
				got += " " + string(rune('0'+w.Cut))
			}
			if w.NextTry != nil && w.NextTry.Equal(next) && strings.Contains(w.String(), "next try ") {
				got += " next"
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
