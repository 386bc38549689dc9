package sqlite

import (
	"errors"
	"testing"

	"coppice.dev/coppice/internal/message"
)

// What the writer remembers of the rows does not outlive a rollback: no place is given out twice, also by the next life of the
// store, no failure in a row stays counted, and no run is said to come behind one that was never made. Red with what undo forgets left out, each of the three.
func TestForgetsWithARollback(t *testing.T) {
	path := newPath(t)
	s := openAt(t, path, Options{})
	var last int64
	place := func(n int, fails error) {
		t.Helper()
		before := last
		var got int64
		err := s.commit(t.Context(), 0, func(tx *tx) (err error) {
			got, err = tx.takePlaces(n)
			return errors.Join(err, fails)
		})
		if !errors.Is(err, fails) || got-int64(n) < before {
			t.Fatalf("%d places up to %d after %d, error %v", n, got, before, err)
		}
		if fails == nil {
			last = got
		}
	}
	boom := errors.New("boom")
	handler := message.Target{Kind: message.KindHandler, Name: "h"}
	failure := message.Outcome{State: message.RunError, HoldAfter: 2}
	run := func(out message.Outcome, fails error) {
		t.Helper()
		if err := s.commit(t.Context(), 0, func(tx *tx) error { return errors.Join(tx.streak(handler, out), fails) }); !errors.Is(err, fails) {
			t.Fatal(err)
		}
	}
	for range 2 {
		place(1, boom)
		place(2, nil)
		place(spare, nil)
		place(3*spare, boom)
		place(1, nil)
		must(t, s.Close())
		s = openAt(t, path, Options{})
		place(1, nil)
	}
	in, plans := message.Incoming{Inbound: "adt"}, []message.Plan{{Handler: "h"}}
	var before int64
	for range 3 {
		_, runs, err := s.ReceiveRouted(t.Context(), in, plans)
		must(t, err)
		if b := runs[0].Before; b != 0 && b != before {
			t.Errorf("run %d is said to come behind %d, and not behind %d", runs[0].Run.ID, b, before)
		}
		before = runs[0].Run.ID
		err = s.commit(t.Context(), 0, func(tx *tx) error {
			id, err := tx.receive(in, "", nil, message.Routed)
			_, reserving := tx.reserve(message.ID(id), "adt", plans, 0)
			return errors.Join(err, reserving, boom)
		})
		if !errors.Is(err, boom) {
			t.Fatal(err)
		}
	}
	good := message.Outcome{State: message.RunSent}
	run(good, nil)
	run(failure, nil)
	run(good, boom) // happened not
	if n := queryInt(t, s, "SELECT failures FROM streaks"); n != 1 {
		t.Errorf("%d failures in a row, want 1", n)
	}
	run(good, nil)
	if n := queryInt(t, s, "SELECT count(*) FROM streaks"); n != 0 {
		t.Errorf("%d streaks after a success, want none", n)
	}
}

// A failure is counted from one again after each success, however often. Red where streak does not forget that there was none.
func TestFailuresBetweenSuccesses(t *testing.T) {
	s := openAt(t, newPath(t), Options{})
	handler := message.Target{Kind: message.KindHandler, Name: "h"}
	for range 3 {
		for _, state := range []message.RunState{message.RunSent, message.RunError} {
			out := message.Outcome{State: state, HoldAfter: 2}
			must(t, s.commit(t.Context(), 0, func(tx *tx) error { return tx.streak(handler, out) }))
		}
	}
	if n := queryInt(t, s, "SELECT count(*) FROM holds"); n != 0 {
		t.Error("held, though no two failures came one after the other")
	}
}
