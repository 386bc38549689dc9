package storetest

import (
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// purge purges step by step until there is nothing more to do.
func (f *fixture) purge(r store.PurgeRequest) (sum store.Purged) {
	f.Helper()
	for range 1000 {
		p, err := f.s.Purge(f.ctx(), r)
		f.must(err)
		sum.Messages += p.Messages
		sum.Bytes += p.Bytes
		if !p.More {
			return sum
		}
	}
	f.Fatalf("a purge does not end")
	return sum
}

func (f *fixture) wantLeft(what string, want ...message.ID) {
	f.Helper()
	list, err := f.s.Messages(f.ctx(), store.Query{Limit: 1000})
	f.must(err)
	var got []message.ID
	for _, m := range list {
		got = append(got, m.ID)
	}
	slices.Reverse(got)
	equal(f, "left after "+what, fmt.Sprint(got), fmt.Sprint(want))
}

// testPurge: what has ended goes by its kind and its time, with all that belongs to it; what is still to do stays.
func testPurge(f *fixture) {
	received := f.receive("in", "received")
	pending := f.routed("in", "pending", plan("h", "a"))
	ready := f.routed("in", "ready", plan("h", "b"))
	f.end(ready, "h", sent([2]string{"b", string(large(300 << 10))}))
	f.must(f.s.Retry(f.ctx(), f.head("b").ID, "down", false, time.Time{}))
	processed := f.routed("in", "processed", plan("h", "c", "d"))
	out := sent([2]string{"c", "processed"}, [2]string{"d", string(large(400 << 10))}, [2]string{"d", "small"})
	out.Tags = map[string]string{"mrn": "1"}
	f.end(processed, "h", out)
	for _, to := range []string{"c", "d", "d"} {
		f.delivered(f.head(to))
	}
	filteredOut := f.routed("in", "filtered", plan("h", "e"))
	f.end(filteredOut, "h", filtered("no"))
	unrouted := f.routed("in", string(large(1000<<10)))
	dead := f.routed("in", "dead", plan("h", "f"))
	f.end(dead, "h", failed("boom"))
	all := []message.ID{received, pending, ready, processed, filteredOut, unrouted, dead}

	past, future := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	equal(f, "by no time", f.purge(store.PurgeRequest{}), store.Purged{})
	equal(f, "too young", f.purge(store.PurgeRequest{DoneBefore: past, DeadBefore: past}), store.Purged{})
	f.wantLeft("a purge of what is older", all...)

	done := store.PurgeRequest{DoneBefore: future, DeadBefore: past}
	want := store.Purged{Messages: 3, Bytes: int64(len("processed")+len("filtered")) + 1000<<10}
	could, err := f.s.Purgeable(f.ctx(), done)
	f.must(err)
	equal(f, "purgeable", could, store.Purged{Messages: want.Messages, Bytes: want.Bytes, More: true})
	equal(f, "done", f.purge(done), want)
	f.wantLeft("a purge of what is done", received, pending, ready, dead)
	for _, id := range []message.ID{processed, filteredOut, unrouted} {
		_, err := f.s.Timeline(f.ctx(), id)
		f.wantErr(err, store.ErrNotFound)
	}
	equal(f, "dead", f.purge(store.PurgeRequest{DeadBefore: future}), store.Purged{Messages: 1, Bytes: 4})
	f.wantLeft("a purge of what is dead", received, pending, ready)

	f.wantBody("the head that stays", f.head("b").Body, large(300<<10))
	f.delivered(f.head("b"))
	f.wantDisposition(ready, message.Processed, "")
	if id := f.receive("in", "new"); id <= dead {
		f.Errorf("id %d was given out again after a purge", id)
	}
}

// testPurgeRefusals: a refusal has no message to go with, and goes by the shorter of the two times.
func testPurgeRefusals(f *fixture) {
	now := time.Now()
	for i := range 5 {
		f.must(f.s.Refuse(f.ctx(), message.Refusal{Reason: fmt.Sprint(i), At: now.Add(time.Duration(i-5) * time.Hour)}))
	}
	left := func() (s string) {
		list, err := f.s.Refusals(f.ctx(), 10)
		f.must(err)
		for _, r := range list {
			s += r.Reason
		}
		return s
	}
	f.purge(store.PurgeRequest{})
	equal(f, "after a purge of nothing", left(), "43210")
	f.purge(store.PurgeRequest{DeadBefore: now.Add(-210 * time.Minute)})
	equal(f, "after a purge of the dead", left(), "432")
	f.purge(store.PurgeRequest{DoneBefore: now.Add(-90 * time.Minute), DeadBefore: now.Add(-200 * time.Hour)})
	equal(f, "after a purge by the earlier time", left(), "432")
}

// testPurgeSources: a file is known as long as it lies where it was found, whether its message is still there or not.
func testPurgeSources(f *fixture) {
	var files []message.Source
	for _, name := range []string{"gone", "lies"} {
		src := message.Source{Path: "/in/" + name, Size: 3, ModTime: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), SHA256: "ab"}
		id, err := f.s.Receive(f.ctx(), message.Incoming{Inbound: "file", Body: []byte("abc"), File: &src})
		f.must(err)
		f.route(id)
		files = append(files, src)
	}
	known := func() (s string) {
		for _, src := range files {
			_, ok, err := f.s.Seen(f.ctx(), src)
			f.must(err)
			s += fmt.Sprint(ok, " ")
		}
		return s
	}
	var asked []string
	lies := func(path string) bool {
		asked = append(asked, path)
		return path == "/in/lies"
	}
	young := store.PurgeRequest{DoneBefore: time.Now().Add(-time.Hour), DeadBefore: time.Now().Add(time.Hour), Lies: lies}
	f.purge(young)
	equal(f, "known", known(), "true true ")
	equal(f, "asked for", len(asked), 0)
	// A file that is there just now is not that old any more, also to one who asks for what is to come.
	old := store.PurgeRequest{DoneBefore: time.Now().Add(time.Hour), Lies: lies}
	f.purge(old)
	f.wantLeft("a purge")
	equal(f, "known after the purge", known(), "false true ")
	f.purge(old)
	equal(f, "asked for", fmt.Sprint(asked), "[/in/gone /in/lies]")
	f.purge(store.PurgeRequest{DoneBefore: time.Now().Add(2 * time.Hour)})
	equal(f, "known once it is gone", known(), "false false ")
}

// purgeStep takes one step of a purge: a store may choose which of those messages go that may.
func (m *machine) purgeStep(t *rapid.T) {
	var r store.PurgeRequest
	if rapid.Bool().Draw(t, "done") {
		r.DoneBefore = time.Now().Add(time.Hour)
	}
	if rapid.Bool().Draw(t, "dead") {
		r.DeadBefore = time.Now().Add(time.Hour)
	}
	may := func(msg *modelMessage) bool {
		if msg.disposition == message.Error {
			return !r.DeadBefore.IsZero()
		}
		return msg.disposition.Final() && !r.DoneBefore.IsZero()
	}
	m.touched = nil
	p, err := m.s.Purge(m.ctx(), r)
	m.must(err)
	list, err := m.s.Messages(m.ctx(), store.Query{Limit: len(m.model.messages) + 1})
	m.must(err)
	m.model.messages = slices.DeleteFunc(m.model.messages, func(msg *modelMessage) bool {
		if slices.ContainsFunc(list, func(l message.Message) bool { return l.ID == msg.id }) {
			if may(msg) && !p.More {
				t.Fatalf("message %d is left, and there is no more to do", msg.id)
			}
			return false
		}
		if !may(msg) {
			t.Fatalf("message %d is gone, which was %s", msg.id, msg.disposition)
		}
		p.Messages--
		return true
	})
	equal(m.fixture, "gone and not counted", -p.Messages, 0)
}
