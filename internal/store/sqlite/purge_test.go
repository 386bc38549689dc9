package sqlite

import (
	"context"
	"strings"
	"testing"
	"time"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// everything is a request for all that has ended.
func everything() store.PurgeRequest {
	later := time.Now().Add(time.Hour)
	return store.PurgeRequest{DoneBefore: later, DeadBefore: later}
}

// purgeAll purges until there is no more to do, and returns in how many steps; look is called after each.
func purgeAll(t *testing.T, s *Store, look func(store.Purged)) (steps int) {
	t.Helper()
	for range 10_000 {
		p, err := s.Purge(t.Context(), everything())
		must(t, err)
		steps++
		if look != nil {
			look(p)
		}
		if !p.More {
			return steps
		}
	}
	t.Fatal("the purge does not end")
	return 0
}

func wantNone(t *testing.T, s *Store, tables ...string) {
	t.Helper()
	for _, table := range tables {
		if n := queryInt(t, s, "SELECT count(*) FROM "+table); n != 0 {
			t.Errorf("%d rows are left in %s", n, table)
		}
	}
}

// ended is a message that took every kind of row, and went through.
func endMessage(t *testing.T, s *Store, body []byte) {
	t.Helper()
	id, err := s.Receive(t.Context(), message.Incoming{Inbound: "adt", Body: body,
		File: &message.Source{Path: "/in/" + time.Now().String(), ModTime: time.Now()}})
	must(t, err)
	route(t, s, id, store.Plan{Handler: "h", To: []string{"a", "b"}})
	r, m := nextRun(t, s, "h")
	must(t, s.EndRun(t.Context(), r.ID, message.Outcome{State: message.RunSent, Tags: map[string]string{"mrn": "1"},
		Printed: []message.Printed{{Stream: "stderr", Text: "done"}},
		Sends:   []message.Send{{To: "a", Body: m.Body}, {To: "a", Body: append([]byte("more of "), m.Body...)}}}))
	for range 2 {
		heads, err := s.Heads(t.Context(), "a", 1)
		must(t, err)
		must(t, s.Delivered(t.Context(), heads[0].ID, message.Receipt{}))
	}
}

// dismissMessage is a message that failed, and that somebody has seen to.
func dismissMessage(t *testing.T, s *Store) {
	t.Helper()
	id, err := s.Receive(t.Context(), message.Incoming{Inbound: "adt", Body: []byte("x")})
	must(t, err)
	must(t, s.FailRoute(t.Context(), id, message.Outcome{State: message.RunError, Attempts: 1}))
	_, err = s.Dismiss(t.Context(), id, "by hand")
	must(t, err)
}

// Nothing of a purged message is left, its large bodies included, and no step takes more than its bounds. Red when message
// leaves out any of the tables, when sweep takes all chunks, and without the bounds on messages and bytes.
func TestPurgeInSteps(t *testing.T) {
	s := openAt(t, newPath(t), Options{})
	for range purgeRows + 10 {
		endMessage(t, s, []byte("small"))
	}
	for range 12 {
		endMessage(t, s, noise(maxChunk-100))
	}
	endMessage(t, s, noise(21*maxChunk))
	dismissMessage(t, s)
	must(t, s.Refuse(t.Context(), message.Refusal{}))
	chunks, bytes := queryInt(t, s, "SELECT count(*) FROM chunks"), queryInt(t, s, "SELECT sum(length(data)) FROM bodies")
	purgeAll(t, s, func(p store.Purged) {
		c, b := queryInt(t, s, "SELECT count(*) FROM chunks"), queryInt(t, s, "SELECT coalesce(sum(length(data)), 0) FROM bodies")
		if p.Messages > purgeRows || chunks-c > 4 || bytes-b > purgeBytes+2*maxChunk {
			t.Errorf("one step removed %d messages, %d bytes and %d chunks", p.Messages, bytes-b, chunks-c)
		}
		chunks, bytes = c, b
	})
	wantNone(t, s, "messages", "runs", "deliveries", "tags", "printed", "dismissals", "bodies", "chunks", "loose", "refusals", "sources")
	wantNone(t, s, "pragma_foreign_key_check", "pragma_quick_check WHERE quick_check <> 'ok'")
}

// What a receive that was cut short has left is swept, also by the next life of the store; what is on its way in is not.
// Red when sweep does not ask staging, and when beginBody does not note that the body is loose.
func TestSweep(t *testing.T) {
	path := newPath(t)
	s := openAt(t, path, Options{})
	cutShort(t, s, 3)
	body, err := s.stage(t.Context(), noise(10*maxChunk))
	must(t, err)
	purgeAll(t, s, nil)
	if n := queryInt(t, s, "SELECT count(*) FROM chunks"); n != 10 {
		t.Errorf("%d chunks are left, want the 10 that are on their way in", n)
	}
	s.staging.drop(body)
	must(t, s.Close())
	s = openAt(t, path, Options{})
	if n := purgeAll(t, s, nil); n < 3 {
		t.Errorf("10 chunks were swept in %d steps", n)
	}
	wantNone(t, s, "chunks", "loose", "bodies")
}

// The file gets shorter, by a bounded number of pages a step, and keeps some to write on. Red without incremental_vacuum, and
// when its rows are not read to the end: then a step gives back one page.
func TestPurgeGivesBack(t *testing.T) {
	s := openAt(t, newPath(t), Options{})
	for range 20 {
		id, err := s.Receive(t.Context(), message.Incoming{Inbound: "adt", Body: noise(5 * maxChunk)})
		must(t, err)
		route(t, s, id)
	}
	full := queryInt(t, s, "SELECT page_count FROM pragma_page_count")
	last := full
	steps := purgeAll(t, s, func(store.Purged) {
		pages := queryInt(t, s, "SELECT page_count FROM pragma_page_count")
		if last-pages > 2*purgePages { // those that say where pages are go with them
			t.Errorf("a step gave back %d pages", last-pages)
		}
		last = pages
	})
	free := queryInt(t, s, "SELECT freelist_count FROM pragma_freelist_count")
	if last > full/3 || free > freePages || free < freePages/2 || steps > 100 {
		t.Errorf("of %d pages %d are left, %d of them free, after %d steps", full, last, free, steps)
	}
	receive(t, s, "adt", "x")
	wantNone(t, s, "pragma_quick_check WHERE quick_check <> 'ok'")
}

// A purge finds what it removes by an index, however much stays, and so does the check of what refers to it. Red when any of
// these indexes is dropped.
func TestPurgePlans(t *testing.T) {
	s := openAt(t, newPath(t), Options{})
	for _, tt := range []struct {
		query string
		args  []any
		want  string
	}{
		{sqlEnded, []any{"ERROR", 1, 1}, "SEARCH messages USING INDEX messages_by_end (disposition=? AND ended<?)"},
		{sqlPurgeable, []any{"ERROR", 1}, "SEARCH messages USING INDEX messages_by_end (disposition=? AND ended<?)"},
		{sqlOldSources, []any{1, 1}, "SEARCH sources USING COVERING INDEX sources_by_seen (seen<?)"},
		{sqlRemoveChunks, []any{1, 4}, "SEARCH chunks USING COVERING INDEX sqlite_autoindex_chunks_1 (body=?)"},
	} {
		plan := explain(t, s, tt.query, tt.args...)
		if !strings.Contains(plan, tt.want) {
			t.Errorf("the plan has no %q:\n%s", tt.want, plan)
		}
		wantNoScan(t, tt.query, plan, false)
	}
	for _, remove := range []string{sqlRemoveSent, sqlRemoveRuns, sqlRemoveMessage} { // what others refer to
		if n := rewinds(t, s, remove); n != 0 {
			t.Errorf("%s walks %d tables from the beginning", remove, n)
		}
	}
}

// rewinds counts how often a statement's program walks something from its first row. The plan does not tell, as it leaves
// out the checks of foreign keys.
func rewinds(t *testing.T, s *Store, query string) (n int) {
	t.Helper()
	rows, err := s.db.QueryContext(context.Background(), "EXPLAIN "+query, 1)
	must(t, scanAll(rows, err, func(row scanner) error {
		var addr, p1, p2, p3, p5 int
		var op string
		var p4, comment any
		err := row.Scan(&addr, &op, &p1, &p2, &p3, &p4, &p5, &comment)
		if op == "Rewind" {
			n++
		}
		return err
	}))
	return n
}
