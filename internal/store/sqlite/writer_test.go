package sqlite

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// hold keeps the writer busy until the returned function is called, so that what a test queues meanwhile is one group.
func hold(s *Store) (release func()) {
	held, free := make(chan struct{}), make(chan struct{})
	s.queue <- newOp(0, func(*tx) error {
		close(held)
		<-free
		return nil
	})
	<-held
	return func() { close(free) }
}

// result waits for an operation's answer.
func result(t *testing.T, o *op) error {
	t.Helper()
	return answer(t, o.done)
}

func answer(t *testing.T, c <-chan error) error {
	t.Helper()
	select {
	case err := <-c:
		return err
	case <-time.After(10 * time.Second):
		t.Fatal("no answer came")
		return nil
	}
}

func insertRefusal(reason string) func(*tx) error {
	return func(t *tx) error {
		return t.run("INSERT INTO refusals (inbound, peer, reason, size, at) VALUES ('', '', ?, 0, 0)", reason)
	}
}

// Red when fill does not look for more than one operation: then there are as many commits as operations.
func TestGroupCommit(t *testing.T) {
	s := openAt(t, newPath(t), Options{})
	const producers, each = 64, 10
	before := s.writer.commits.Load()
	var wg sync.WaitGroup
	for range producers {
		wg.Go(func() {
			for range each {
				if _, err := s.Receive(context.Background(), message.Incoming{Inbound: "adt"}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := s.writer.ops.Load(); n != producers*each {
		t.Errorf("%d operations were committed, want %d", n, producers*each)
	}
	if n := s.writer.commits.Load() - before; n > producers*each/2 {
		t.Errorf("%d commits for %d operations of %d producers", n, producers*each, producers)
	} else {
		t.Logf("%d commits for %d operations", n, producers*each)
	}
}

// A group ends at its caps. Red when fill does not count.
func TestGroupCaps(t *testing.T) {
	for _, tt := range []struct{ queued, bytes, commits int }{
		{maxGroup, 0, 1},
		{10, maxGroupBytes / 5, 2},
		{3, maxGroupBytes + 1, 3},
	} {
		s := openAt(t, newPath(t), Options{})
		release := hold(s)
		var ops []*op
		for range tt.queued {
			o := newOp(tt.bytes, insertRefusal("x"))
			ops = append(ops, o)
			s.queue <- o
		}
		before := s.writer.commits.Load() // the held group counts itself at its end
		release()
		for _, o := range ops {
			must(t, result(t, o))
		}
		if n := int(s.writer.commits.Load()-before) - 1; n != tt.commits {
			t.Errorf("%d operations of %d bytes made %d commits, want %d", tt.queued, tt.bytes, n, tt.commits)
		}
		must(t, s.Close())
	}
}

// One that fails, or panics, in the middle of a group takes nothing with it and leaves nothing behind. Red when step has
// no savepoint (what "half" wrote stays), and when call does not recover (everyone gets the panic).
func TestFailureInsideGroup(t *testing.T) {
	s := openAt(t, newPath(t), Options{})
	boom := errors.New("boom")
	release := hold(s)
	good1 := newOp(0, insertRefusal("good 1"))
	half := newOp(0, func(t *tx) error { return errors.Join(insertRefusal("half")(t), boom) })
	invalid := newOp(0, func(t *tx) error {
		return errors.Join(insertRefusal("invalid")(t), t.run("UPDATE meta SET value = NULL"))
	})
	panics := newOp(0, func(t *tx) error {
		_ = insertRefusal("panics")(t)
		panic("at the disco")
	})
	good2 := newOp(0, insertRefusal("good 2"))
	for _, o := range []*op{good1, half, invalid, panics, good2} {
		s.queue <- o
	}
	release()
	must(t, result(t, good1))
	must(t, result(t, good2))
	if err := result(t, half); !errors.Is(err, boom) || errors.Is(err, store.ErrUnknown) {
		t.Errorf("half: got error %v", err)
	}
	if err := result(t, invalid); err == nil || errors.Is(err, store.ErrUnknown) {
		t.Errorf("invalid: got error %v", err)
	}
	if err := result(t, panics); err == nil || !strings.Contains(err.Error(), "at the disco") || !strings.Contains(err.Error(), "writer_test.go") {
		t.Errorf("panics: got error %v", err)
	}
	wantRefusals(t, s, "good 2, good 1, ")
	receive(t, s, "adt", "the writer goes on")
}

func wantRefusals(t *testing.T, s *Store, want string) {
	t.Helper()
	list, err := s.Refusals(t.Context(), 100)
	must(t, err)
	got := ""
	for _, r := range list {
		got += r.Reason + ", "
	}
	if got != want {
		t.Errorf("the store has %q, want %q", got, want)
	}
}

// An operation that loses the whole transaction (a full disk, here a full database) fails alone: the others of its group
// are run again without it. Red when transact gives up the group.
func TestLostTransaction(t *testing.T) {
	s := openAt(t, newPath(t), Options{})
	pages := queryInt(t, s, "PRAGMA page_count")
	queryInt(t, s, fmt.Sprintf("PRAGMA max_page_count=%d", pages+10))
	release := hold(s)
	good1 := newOp(0, insertRefusal("good 1"))
	huge := newOp(0, insertRefusal(strings.Repeat("x", 1<<20)))
	good2 := newOp(0, insertRefusal("good 2"))
	for _, o := range []*op{good1, huge, good2} {
		s.queue <- o
	}
	release()
	must(t, result(t, good1))
	must(t, result(t, good2))
	if err := result(t, huge); err == nil || errors.Is(err, store.ErrUnknown) {
		t.Errorf("huge: got error %v", err)
	}
	wantRefusals(t, s, "good 2, good 1, ")
}

// Red when commitError does not join ErrUnknown, and when it always does.
func TestCommitFails(t *testing.T) {
	s := openAt(t, newPath(t), Options{})
	for _, tt := range []struct {
		name    string
		commit  func() error
		unknown bool
	}{
		{"sync failed", func() error { return errors.New("disk I/O error") }, true},
		// A deferred constraint is checked by the COMMIT itself, before it writes.
		{"violated", func() error {
			return errors.Join(s.writer.tx.run("PRAGMA defer_foreign_keys=1"),
				s.writer.tx.run("INSERT INTO tags VALUES (12345, 'a', 'b')"), s.writer.tx.run("COMMIT"))
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			release := hold(s)
			sound := s.writer.commit
			first := true
			s.writer.commit = func() error { // the writer is held, so it does not look; after the held group, fail once
				if first {
					first = false
					return sound()
				}
				s.writer.commit = sound
				return tt.commit()
			}
			ops := []*op{newOp(0, insertRefusal("lost")), newOp(0, insertRefusal("lost"))}
			for _, o := range ops {
				s.queue <- o
			}
			release()
			for _, o := range ops {
				if err := result(t, o); err == nil || errors.Is(err, store.ErrUnknown) != tt.unknown {
					t.Errorf("got error %v, unknown: %v", err, !tt.unknown)
				}
			}
			receive(t, s, "adt", "the writer goes on")
			wantRefusals(t, s, "")
		})
	}
}

// A panic outside of any operation stops the writing and says so to everyone, then and later; Close still works. Red
// when serve does not recover: the process ends.
func TestWriterPanics(t *testing.T) {
	s := openAt(t, newPath(t), Options{})
	release := hold(s)
	sound := s.writer.commit
	s.writer.commit = func() error {
		s.writer.commit = func() error { panic("at the commit") }
		return sound()
	}
	o := newOp(0, insertRefusal("lost"))
	s.queue <- o
	release()
	if err := result(t, o); !errors.Is(err, store.ErrUnknown) || !strings.Contains(err.Error(), "at the commit") {
		t.Errorf("got error %v", err)
	}
	_, err := s.Receive(t.Context(), message.Incoming{})
	if err == nil || !strings.Contains(err.Error(), "at the commit") || errors.Is(err, store.ErrUnknown) {
		t.Errorf("later: got error %v", err)
	}
	if _, err := s.Counts(t.Context()); err != nil {
		t.Errorf("reading: %v", err)
	}
	_ = s.Close() // may report the open transaction; must end
}

// A caller that stops waiting before the writer has looked has done nothing. Red when fill runs abandoned operations, and
// when commit does not watch the context.
func TestContextEndsInQueue(t *testing.T) {
	s := openAt(t, newPath(t), Options{})
	release := hold(s)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := s.Receive(ctx, message.Incoming{Inbound: "adt"})
		failed <- err
	}()
	for len(s.queue) == 0 { // until it is queued
		time.Sleep(time.Millisecond)
	}
	cancel()
	select {
	case err := <-failed:
		if !errors.Is(err, context.Canceled) || errors.Is(err, store.ErrUnknown) {
			t.Errorf("got error %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the caller still waits")
	}
	release()
	if n := queryInt(t, s, "SELECT count(*) FROM messages"); n != 0 {
		t.Errorf("%d messages were received", n)
	}
}

// Once the writer has picked an operation up, its caller gets the true result. Red when commit returns ctx.Err() then.
func TestContextEndsInTransaction(t *testing.T) {
	s := openAt(t, newPath(t), Options{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := s.commit(ctx, 0, func(t *tx) error {
		cancel()
		time.Sleep(20 * time.Millisecond) // long enough for the caller to see its context end, if it looked
		return insertRefusal("done")(t)
	})
	must(t, err)
	wantRefusals(t, s, "done, ")
}

// Close waits for what was called before it, and refuses what comes after: what is stored is what was acknowledged.
func TestCloseDrains(t *testing.T) {
	path := newPath(t)
	s := openAt(t, path, Options{})
	var mu sync.Mutex
	acknowledged := 0
	var wg sync.WaitGroup
	started := make(chan struct{}, 32)
	for range 32 {
		wg.Go(func() {
			for first := true; ; first = false {
				_, err := s.Receive(context.Background(), message.Incoming{Inbound: "adt"})
				if errors.Is(err, store.ErrClosed) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				acknowledged++
				mu.Unlock()
				if first {
					started <- struct{}{}
				}
			}
		})
	}
	for range 32 {
		<-started
	}
	must(t, s.Close())
	wg.Wait()
	n, err := openAt(t, path, Options{}).Unfinished(t.Context())
	must(t, err)
	if int(n) != acknowledged {
		t.Errorf("%d messages are stored, %d were acknowledged", n, acknowledged)
	}
}

// A call that is inside when Close begins still has a queue. Red when gate.shut does not wait (the call then sends on a
// closed channel, which panics), and when the loop ends with operations still in the queue (nobody answers them).
func TestCloseWaitsForCallers(t *testing.T) {
	s := openAt(t, newPath(t), Options{})
	release := hold(s)
	for range cap(s.queue) {
		s.queue <- newOp(0, func(*tx) error { return nil })
	}
	received, closed := make(chan error, 1), make(chan error, 1)
	go func() { // waits for room in the queue
		_, err := s.Receive(context.Background(), message.Incoming{Inbound: "adt"})
		received <- err
	}()
	for s.gate.mu.TryLock() { // until it is inside
		s.gate.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	go func() { closed <- s.Close() }()
	for !s.gate.closed.Load() {
		time.Sleep(time.Millisecond)
	}
	if _, err := s.Receive(t.Context(), message.Incoming{}); !errors.Is(err, store.ErrClosed) {
		t.Errorf("a call while Close waits: %v", err)
	}
	release()
	must(t, answer(t, received))
	must(t, answer(t, closed))
}
