package sqlite

import (
	"context"
	"strings"
	"testing"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// A body is stored once: the message's own, its pass-through deliveries and equal sends of one run share a row. Red when
// filling.body does not look for it.
func TestBodiesAreShared(t *testing.T) {
	s := openAt(t, newPath(t), Options{})
	id := receive(t, s, "adt", "the body")
	route(t, s, id, store.Plan{Handler: "h", To: []string{"a", "b", "c", "d"}})
	r, m := nextRun(t, s, "h")
	must(t, s.EndRun(t.Context(), r.ID, message.Outcome{State: message.RunSent, Sends: []message.Send{
		{To: "a", Body: m.Body}, {To: "b", Body: []byte("other")}, {To: "c", Body: []byte("other")}, {To: "a", Body: m.Body},
		{To: "d", Body: []byte("the bodY")},
	}}))
	if n := queryInt(t, s, "SELECT count(*) FROM bodies"); n != 3 {
		t.Errorf("%d bodies are stored, want 3", n)
	}
	tl, err := s.Timeline(t.Context(), id)
	must(t, err)
	var got []string
	for _, d := range tl.Deliveries {
		got = append(got, string(d.Body))
	}
	if want := "the body,other,other,the bodY,the body"; strings.Join(got, ",") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Red when Refuse does not trim.
func TestRefusalsAreBounded(t *testing.T) {
	s := openAt(t, newPath(t), Options{KeepRefusals: 3})
	for _, reason := range []string{"1", "2", "3", "4", "5"} {
		must(t, s.Refuse(t.Context(), message.Refusal{Reason: reason}))
	}
	wantRefusals(t, s, "5, 4, 3, ")
}

// explain returns SQLite's plan of a query, a line a step.
func explain(t *testing.T, s *Store, query string, args ...any) string {
	t.Helper()
	rows, err := s.db.QueryContext(context.Background(), "EXPLAIN QUERY PLAN "+query, args...)
	plan := ""
	must(t, scanAll(rows, err, func(row scanner) error {
		var id, parent, unused int
		var detail string
		err := row.Scan(&id, &parent, &unused, &detail)
		plan += detail + "\n"
		return err
	}))
	return plan
}

// What the engine asks all the time is answered from an index, without walking a queue and without sorting one. Red when
// any of the indexes named here is dropped from the schema.
func TestPlans(t *testing.T) {
	s := openAt(t, newPath(t), Options{})
	for _, tt := range []struct {
		name, query string
		args        []any
		want        []string
	}{
		{"NextReceived", sqlNextReceived, []any{"a"},
			[]string{"SEARCH m USING INDEX messages_open (inbound=? AND disposition=? AND ended=?)"}},
		{"NextRuns", sqlNextRuns, []any{"h", 1},
			[]string{"SEARCH r USING INDEX runs_pending (handler=?)", "SEARCH d USING INDEX sqlite_autoindex_deliveries_1 (message=?)"}},
		{"Heads", sqlHeads, []any{"o", 1},
			[]string{"SEARCH deliveries USING COVERING INDEX deliveries_open (outbound=?)",
				"SEARCH deliveries USING COVERING INDEX deliveries_open (outbound=? AND inbound>?)",
				"SEARCH deliveries USING COVERING INDEX deliveries_open (outbound=? AND inbound=?)",
				"SEARCH d USING INTEGER PRIMARY KEY (rowid=?)"}},
		{"ReceivedSize", sqlReceivedSize, []any{"a"},
			[]string{"SEARCH messages USING INDEX messages_open (inbound=? AND disposition=? AND ended=?)"}},
		{"RunSize", sqlRunSize, []any{"h"}, []string{"SEARCH runs USING COVERING INDEX runs_pending (handler=?)"}},
		{"DeliverySize", sqlDeliverySize, []any{1}, []string{"SEARCH d USING INTEGER PRIMARY KEY (rowid=?)"}},
		{"Seen", sqlSeen, []any{"p", 1, 2, "h"}, []string{"SEARCH sources USING PRIMARY KEY (path=? AND size=? AND mtime=? AND sha256=?)"}},
		{"settle", sqlSettle, []any{1},
			[]string{"SEARCH runs USING INDEX runs_by_message (message=?)",
				"SEARCH deliveries USING INDEX sqlite_autoindex_deliveries_1 (message=?)"}},
		{"failed runs", sqlFailedRuns, []any{1}, []string{"SEARCH runs USING"}},
		{"dead deliveries", sqlDead, []any{1}, []string{"SEARCH deliveries USING"}},
		{"tried", sqlTried, []any{"o", "a"}, []string{"SEARCH deliveries USING INDEX deliveries_open (outbound=? AND inbound=?)"}},
		{"lane head", sqlLaneHead, []any{"o", "a"}, []string{"SEARCH d USING INDEX deliveries_open (outbound=? AND inbound=?)"}},
		{"ready", sqlReady, []any{"o", 9},
			[]string{"SEARCH deliveries USING COVERING INDEX deliveries_unordered (outbound=?)",
				"SEARCH deliveries USING COVERING INDEX deliveries_unordered (outbound=? AND inbound>?)",
				"SEARCH deliveries USING COVERING INDEX deliveries_unordered (outbound=? AND inbound=?)",
				"SEARCH d USING INTEGER PRIMARY KEY (rowid=?)"}},
		{"lane tried", sqlLaneTried, []any{"o", "a"}, []string{"SEARCH d USING INDEX deliveries_tried (outbound=? AND inbound=?)"}},
		{"give up", sqlGiveUp, []any{"o", "a"}, []string{"SEARCH deliveries USING INDEX deliveries_tried (outbound=? AND inbound=?)"}},
		{"resubmits", sqlResubmits, []any{1}, []string{"messages_resubmits (resubmits=?)"}},
		{"pending run", sqlPendingRun, []any{1}, []string{"SEARCH d USING INDEX sqlite_autoindex_deliveries_1 (message=?)"}},
		{"to extend", sqlToExtend, []any{"h", 1, 1}, []string{"SEARCH r USING INDEX runs_pending (handler=? AND rowid>?)"}},
		{"repeats", sqlRepeats, []any{"1", "abc", 1}, []string{"SEARCH messages USING INDEX messages_by_control_id (control_id=? AND <expr>=?)"}},
		{"inbounds", sqlInbounds[true], []any{9}, []string{"SEARCH messages USING INDEX messages_by_inbound (inbound>?)"}},
		{"open inbounds", sqlInbounds[false], []any{9}, []string{"SEARCH messages USING COVERING INDEX messages_open (inbound>?)"}},
	} {
		plan := explain(t, s, tt.query, tt.args...)
		for _, want := range tt.want {
			if !strings.Contains(plan, want) {
				t.Errorf("%s: the plan has no %q:\n%s", tt.name, want, plan)
			}
		}
		wantNoScan(t, tt.name, plan, tt.name == "Heads" || tt.name == "ready") // which sort the few that they return, not the lanes
	}
}

// wantNoScan checks that a plan walks no table and sorts nothing. It may walk what it has found itself.
func wantNoScan(t *testing.T, name, plan string, mayUseTree bool) {
	t.Helper()
	found := map[string]bool{"CONSTANT ROW": true, "lane": true, "i": true}
	for line := range strings.Lines(plan) {
		line = strings.TrimSpace(line)
		for _, step := range []string{"CO-ROUTINE ", "MATERIALIZE "} {
			if what, ok := strings.CutPrefix(line, step); ok {
				found[what] = true
			}
		}
		what, scan := strings.CutPrefix(line, "SCAN ")
		if scan && !found[what] || (strings.Contains(line, "TEMP B-TREE") && !mayUseTree) {
			t.Errorf("%s: the plan has %q:\n%s", name, line, plan)
		}
	}
}

// The list of messages stops at its limit, whatever it filters by; only a prefix of control ids is sorted. Red when
// searchSQL asks for all dispositions of an inbound in one SELECT, and when an index is dropped.
func TestSearchPlans(t *testing.T) {
	s := openAt(t, newPath(t), Options{})
	for _, tt := range []struct {
		q     store.Query
		types []string
		want  string
	}{
		{store.Query{Inbound: "a"}, nil, "SEARCH m USING INDEX messages_by_inbound (inbound=? AND disposition=?)"},
		{store.Query{Inbound: "a"}, nil, "SEARCH m USING INDEX messages_open (inbound=? AND disposition=? AND ended=?)"},
		{store.Query{Inbound: "a", Disposition: message.Error, Before: 9}, nil,
			"SEARCH m USING INDEX messages_by_inbound (inbound=? AND disposition=? AND rowid<?)"},
		{store.Query{Disposition: message.Error}, nil, "SEARCH m USING INDEX messages_by_inbound (inbound=? AND disposition=?)"},
		{store.Query{Disposition: message.Routed, Type: "A"}, nil, "SEARCH m USING INDEX messages_open (inbound=? AND disposition=? AND ended=?)"},
		{store.Query{Type: "A"}, []string{"A1", "A2", "A3"}, "SEARCH m USING INDEX messages_by_type (type=?)"},
		{store.Query{Type: "A", Inbound: "a"}, []string{"A1"}, "SEARCH m USING INDEX messages_by_type (type=?)"},
	} {
		inbounds := []string{tt.q.Inbound}
		if tt.q.Inbound == "" {
			inbounds = []string{"a", "b", "c"} // that there are
		}
		query, args := searchSQL(tt.q, tt.types, inbounds, ids{})
		plan := explain(t, s, query, args...)
		if !strings.Contains(plan, tt.want) {
			t.Errorf("%+v: the plan has no %q:\n%s", tt.q, tt.want, plan)
		}
		wantNoScan(t, "search", plan, false)
	}
	query, args := searchSQL(store.Query{}, nil, nil, ids{})
	if plan := explain(t, s, query, args...); strings.Contains(plan, "TEMP B-TREE") {
		t.Errorf("the newest messages are sorted:\n%s", plan)
	}
	query, args = searchSQL(store.Query{ControlID: "17", Inbound: "a", Disposition: message.Processed}, nil, nil, ids{})
	if plan := explain(t, s, query, args...); !strings.Contains(plan, "messages_by_control_id (control_id>? AND control_id<?)") {
		t.Errorf("a control id is looked for in\n%s", plan)
	}
	query, args = deadSQL(store.DeadLetters{Inbound: "a", Before: 9})
	plan := explain(t, s, query, args...)
	for _, want := range []string{"SEARCH r USING INDEX runs_dead (message<?)", "SEARCH d USING INDEX deliveries_dead (message<?)"} {
		if !strings.Contains(plan, want) || strings.Contains(plan, "TEMP B-TREE") {
			t.Errorf("dead letters are looked for in\n%s", plan)
		}
	}
	plan = explain(t, s, sqlWaiting)
	for _, want := range []string{"SCAN messages USING COVERING INDEX messages_open",
		"SCAN runs USING COVERING INDEX runs_pending", "SCAN deliveries USING COVERING INDEX deliveries_open"} {
		if !strings.Contains(plan, want) {
			t.Errorf("waiting work is looked for in\n%s", plan)
		}
	}
	plan = explain(t, s, sqlTypes, "A", "B", 5)
	if strings.Count(plan, "USING COVERING INDEX messages_by_type") != 2 {
		t.Errorf("the types are looked for in\n%s", plan)
	}
}
