package storetest

import (
	"fmt"

	"pgregory.net/rapid"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// testDismiss: what failed of a message is no dead letter any more, and otherwise as it was: ERROR, with what was said of it, and to be
// replayed by whoever names it. What fails after that is one again. Red in SQLite without either of the conditions that leave dismissed
// parts out of the dead letters, and without the one that leaves them out of a second dismissal.
func testDismiss(f *fixture) {
	want := func(want int) {
		f.Helper()
		list, err := f.s.DeadLetters(f.ctx(), store.DeadLetters{})
		f.must(err)
		equal(f, "dead letters", len(list), want)
	}
	dismiss := func(id message.ID, reason string, want int64) {
		f.Helper()
		parts, err := f.s.Dismiss(f.ctx(), id, reason)
		f.must(err)
		equal(f, "parts", parts, want)
	}
	id := f.routed("adt", "x", plan("h"), plan("send", "a", "b"), plan("slow"))
	f.end(id, "h", failed("raised"))
	f.end(id, "send", sent([2]string{"a", "x"}, [2]string{"b", "y"}))
	f.must(f.s.Bury(f.ctx(), f.head("a").ID, "AR"))
	f.delivered(f.head("b"))
	other := f.routed("adt", "y", plan("h"))
	f.end(other, "h", failed("raised"))
	want(3)
	dismiss(id, "test\npatient", 2)
	want(1)
	_, err := f.s.Dismiss(f.ctx(), id, "again")
	f.wantErr(err, store.ErrNothingFailed)
	f.end(id, "slow", filtered(""))
	f.wantDisposition(id, message.Error, "raised")
	got := ""
	tl := f.timeline(id)
	for _, r := range tl.Runs {
		got += fmt.Sprintf("%s %s %q %t; ", r.Handler, r.State, r.Dismissed.Reason, r.Dismissed.At.IsZero())
	}
	for _, d := range tl.Deliveries {
		got += fmt.Sprintf("%s %s %q %t; ", d.Outbound, d.State, d.Dismissed.Reason, d.Dismissed.At.IsZero())
	}
	equal(f, "parts", got, `h ERROR "test patient" false; send SENT "" true; slow FILTERED "" true; a DEAD "test patient" false; b DONE "" true; `)

	f.replay(id, names(plan("h"), plan("send", "a", "b")))
	f.end(id, "h", failed("raised again"))
	want(2)
	dismiss(id, "", 1)
	want(1)
	_, err = f.s.Dismiss(f.ctx(), 99, "")
	f.wantErr(err, store.ErrNotFound)
	fine := f.routed("adt", "z")
	_, err = f.s.Dismiss(f.ctx(), fine, "")
	f.wantErr(err, store.ErrNothingFailed)
}

// dismiss takes what failed of any message from the dead letters, if there is anything.
func (m *machine) dismiss(t *rapid.T) {
	m.touched = pick(t, m.model.messages, "message")
	parts, err := m.s.Dismiss(m.ctx(), m.touched.id, drawReason(t))
	want := m.touched.dismiss()
	if want == 0 {
		m.wantErr(err, store.ErrNothingFailed)
		return
	}
	m.must(err)
	equal(m.fixture, "parts", parts, want)
}

// dismiss marks what failed, and says how much that was.
func (msg *modelMessage) dismiss() (n int64) {
	for _, r := range msg.runs {
		if r.state == message.RunError && !r.replayed && !r.dismissed {
			r.dismissed = true
			n++
		}
	}
	for _, d := range msg.deliveries {
		if d.state == message.Dead && !d.replayed && !d.dismissed {
			d.dismissed = true
			n++
		}
	}
	return n
}
