package sqlite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// noise is a body of which no two parts are alike.
func noise(size int) []byte {
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(size), byte(size >> 8), byte(size >> 16)}).Read(b) // which never fails
	return b
}

// A large body is in chunks of the one size, each once, also where a delivery passes it on. Red when EndRun stages the
// message's own body.
func TestLargeBodiesAreInChunks(t *testing.T) {
	s := openAt(t, newPath(t), Options{})
	own, other := noise(2*maxChunk+1), noise(maxChunk+1)
	id, err := s.Receive(t.Context(), message.Incoming{Inbound: "adt", Body: own})
	must(t, err)
	route(t, s, id, store.Plan{Handler: "h", To: []string{"a", "b"}})
	r, _ := nextRun(t, s, "h")
	must(t, s.EndRun(t.Context(), r.ID, message.Outcome{State: message.RunSent, Sends: []message.Send{
		{To: "a", Body: own}, {To: "b", Body: other}, {To: "a", Body: other}}}))
	for query, want := range map[string]int{
		"SELECT count(*) FROM bodies": 2, "SELECT count(*) FROM chunks": 5, "SELECT max(length(data)) FROM bodies": 0,
		"SELECT max(length(data)) FROM chunks": maxChunk, "SELECT count(*) FROM loose": 0,
	} {
		if n := queryInt(t, s, query); n != want {
			t.Errorf("%s: %d, want %d", query, n, want)
		}
	}
	if n := len(s.staging.all); n != 0 {
		t.Errorf("%d bodies are still on their way in", n)
	}
}

// A commit group takes one chunk at most, and with it what else waits. Red when fill goes on taking chunks.
func TestOneChunkAGroup(t *testing.T) {
	s := openAt(t, newPath(t), Options{})
	const large = 4
	inGroup := map[int64]int{} // the writer's alone until it has answered
	chunk := func(*tx) error { inGroup[s.writer.commits.Load()]++; return nil }
	release := hold(s)
	var ops []*op
	for range large {
		ops = append(ops, newOp(maxChunk, chunk))
		s.chunks <- ops[len(ops)-1]
	}
	small := newOp(0, insertRefusal("small"))
	s.queue <- small
	release()
	must(t, result(t, small))
	for _, o := range ops {
		must(t, result(t, o))
	}
	for group, n := range inGroup {
		if n != 1 {
			t.Errorf("group %d has %d chunks", group, n)
		}
	}
}

// What was cut short while it came in is nothing that anybody sees, and its caller knows that it is not there.
func TestReceiveCutShort(t *testing.T) {
	path := newPath(t)
	s := openAt(t, path, Options{})
	cutShort(t, s, 3)
	list, err := s.Messages(t.Context(), store.Query{})
	must(t, err)
	if len(list) != 0 || queryInt(t, s, "SELECT count(*) FROM chunks") != 3 {
		t.Errorf("%d messages, %d chunks", len(list), queryInt(t, s, "SELECT count(*) FROM chunks"))
	}
	if n := len(s.staging.all); n != 0 {
		t.Errorf("%d bodies are still on their way in", n)
	}
}

// cutShort ends a Receive's context once so many of its chunks are stored.
func cutShort(t *testing.T, s *Store, chunks int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	sound := s.writer.commit
	defer func() { s.writer.commit = sound }() // the writer rests: nobody else calls
	s.writer.commit = func() error {
		err := sound()
		if chunks--; chunks == 0 {
			cancel()
		}
		return err
	}
	_, err := s.Receive(ctx, message.Incoming{Inbound: "adt", Body: noise(100 * maxChunk)})
	if !errors.Is(err, context.Canceled) || errors.Is(err, store.ErrUnknown) {
		t.Fatalf("got error %v", err)
	}
}

// A database of schema 1 has one blob a body. It is brought up to date without rewriting any, and both forms are read. Red
// when whole takes every body for one in chunks.
func TestBodiesOfSchema1(t *testing.T) {
	path := newPath(t)
	old := noise(3 * maxChunk)
	execRaw(t, path, fmt.Sprintf("PRAGMA auto_vacuum=INCREMENTAL; PRAGMA journal_mode=WAL; %s; PRAGMA application_id=%d; PRAGMA user_version=1",
		schema1, applicationID))
	execRaw(t, path, fmt.Sprintf(`INSERT INTO bodies VALUES (7, x'%x'), (8, x'');
		INSERT INTO messages VALUES
			(3, 'adt', '', '', '', 1, NULL, %d, 'a', 'RECEIVED', '', 7),
			(4, 'orm', '', '', '', 2, 5, 0, 'b', 'PROCESSED', '', 8);
		INSERT INTO runs (id, message, handler, state) VALUES (1, 4, 'h', 'SENT');
		INSERT INTO deliveries (id, message, number, run, inbound, outbound, place, sub, state, body)
			VALUES (1, 4, 1, 1, 'orm', 'out', 1, 0, 'DONE', 7);
		INSERT INTO sources VALUES ('/in/a.hl7', 1, 2, 'c', 4)`, old, len(old)))
	if _, err := OpenReader(t.Context(), path); !errors.Is(err, ErrSchema) {
		t.Errorf("a reader opens schema 1: %v", err)
	}
	s := openAt(t, path, Options{})
	if n := queryInt(t, s, "SELECT count(*) FROM chunks"); n != 0 {
		t.Errorf("an old body was taken apart into %d chunks", n)
	}
	if n := queryInt(t, s, "SELECT seen FROM sources"); n != 2 {
		t.Errorf("an old file was there last at %d, want when its message came", n)
	}
	m, err := s.NextReceived(t.Context(), "adt")
	must(t, err)
	if !bytes.Equal(m.Body, old) {
		t.Errorf("the old body has %d bytes now, and had %d", len(m.Body), len(old))
	}
	tl, err := s.Timeline(t.Context(), 4)
	must(t, err)
	if tl.Message.Body == nil || len(tl.Message.Body) != 0 || !bytes.Equal(tl.Deliveries[0].Body, old) {
		t.Errorf("bodies of the other message: %d, %d bytes", len(tl.Message.Body), len(tl.Deliveries[0].Body))
	}
	id, err := s.Receive(t.Context(), message.Incoming{Inbound: "adt", Body: old})
	must(t, err)
	tl, err = s.Timeline(t.Context(), id)
	must(t, err)
	if id != 5 || !bytes.Equal(tl.Message.Body, old) {
		t.Errorf("message %d, received behind it, has %d bytes", id, len(tl.Message.Body))
	}
}

// Chunks that are not what the body's row says are an error and never a message. Red when whole does not compare, and when it
// takes any size for a body's.
func TestBodyNotWhole(t *testing.T) {
	for what, damage := range map[string]string{
		"a chunk is missing": "DELETE FROM chunks WHERE n = 1", "one too many": "INSERT INTO chunks VALUES (1, 3, 'x')",
		"no size": "UPDATE bodies SET size = 1 << 60",
	} {
		s := openAt(t, newPath(t), Options{})
		_, err := s.Receive(t.Context(), message.Incoming{Inbound: "adt", Body: noise(3 * maxChunk)})
		must(t, err)
		must(t, s.commit(t.Context(), 0, func(t *tx) error { return t.run(damage) }))
		if m, err := s.NextReceived(t.Context(), "adt"); !errors.Is(err, errNotWhole) {
			t.Errorf("%s: got a message (%v), error %v", what, m != nil, err)
		}
	}
}
