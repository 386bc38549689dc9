package storetest

import (
	"fmt"
	"slices"
	"time"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// wantReady checks what can be sent at an outbound that keeps no order, by name, with what was tried marked.
func (f *fixture) wantReady(outbound string, limit int, want ...string) {
	f.Helper()
	equal(f, fmt.Sprintf("%d of each lane ready at %s", limit, outbound), fmt.Sprint(f.ready(outbound, limit)), fmt.Sprint(want))
}

func (f *fixture) ready(outbound string, limit int) []string {
	f.Helper()
	list, err := f.s.Ready(f.ctx(), outbound, limit)
	f.must(err)
	names := []string{}
	for _, d := range list {
		equal(f, "body of what is ready", d.Body == nil, true)
		equal(f, "state of what is ready", d.State, message.Ready)
		name := d.Name()
		if d.Attempts > 0 {
			name += "*"
		}
		names = append(names, name)
	}
	return names
}

// nth is the name of the nth delivery of a message.
func nth(id message.ID, n int) string { return message.Delivery{Message: id, Number: n}.Name() }

// Places that are still reserved are passed over, however many; the lanes of one outbound stand side by side; what ends, in any
// order, is gone.
func testReady(f *fixture) {
	f.must(f.s.KeepOrder(f.ctx(), "a", false))
	f.must(f.s.KeepOrder(f.ctx(), "a", false))
	f.wantReady("a", 10)
	slow := f.routed("adt", "1", plan("slow", "a"))
	var fast []message.ID
	for range 3 {
		id := f.routed("adt", "x", plan("h", "a", "strict"))
		f.end(id, "h", sent([2]string{"a", "x"}, [2]string{"strict", "x"}))
		fast = append(fast, id)
	}
	lab := f.routed("lab", "y", plan("h", "a"))
	f.end(lab, "h", sent([2]string{"a", "y"}, [2]string{"a", "z"}))
	f.wantReady("a", 2, nth(fast[0], 1), nth(fast[1], 1), nth(lab, 1), nth(lab, 2))
	f.wantReady("a", 10, nth(fast[0], 1), nth(fast[1], 1), nth(fast[2], 1), nth(lab, 1), nth(lab, 2))
	f.wantReady("strict", 10)

	second := f.timeline(fast[1]).Deliveries[0]
	f.must(f.s.Retry(f.ctx(), second.ID, "500", false, time.Now()))
	f.wantStillReady(second.ID, 1, true)
	f.delivered(f.timeline(fast[0]).Deliveries[0])
	f.must(f.s.Bury(f.ctx(), f.timeline(lab).Deliveries[0].ID, "AR"))
	f.wantReady("a", 10, nth(fast[1], 1)+"*", nth(fast[2], 1), nth(lab, 2))
	f.end(slow, "slow", sent([2]string{"a", "1"}))
	f.wantReady("a", 1, nth(slow, 1), nth(lab, 2))
	f.delivered(second)
	f.wantStillReady(second.ID, 0, false)
	f.wantStillReady(12345, 0, false)
	f.wantReady("a", 10, nth(slow, 1), nth(fast[2], 1), nth(lab, 2))

	_, err := f.s.Replay(f.ctx(), lab, message.Names{Outbounds: map[string]string{"a": "a"}})
	f.must(err)
	f.wantReady("a", 10, nth(slow, 1), nth(fast[2], 1), nth(lab, 2), nth(lab, 3))
}

func (f *fixture) wantStillReady(delivery int64, attempts int, ready bool) {
	f.Helper()
	gotAttempts, gotReady, err := f.s.StillReady(f.ctx(), delivery)
	f.must(err)
	equal(f, "still ready", fmt.Sprint(gotAttempts, gotReady), fmt.Sprint(attempts, ready))
}

// What waits follows a change of the order, and of the outbound's name.
func testKeepOrder(f *fixture) {
	early := f.routed("adt", "1", plan("h", "a"))
	f.end(early, "h", sent([2]string{"a", "1"}))
	f.wantReady("a", 10)
	f.must(f.s.KeepOrder(f.ctx(), "a", true))
	f.must(f.s.KeepOrder(f.ctx(), "a", false))
	late := f.routed("adt", "2", plan("h", "a"))
	f.end(late, "h", sent([2]string{"a", "2"}))
	f.wantReady("a", 10, nth(early, 1), nth(late, 1))
	f.must(f.s.KeepOrder(f.ctx(), "a", true))
	f.wantReady("a", 10)
	f.wantHead("a", early, 1, message.Ready, "1")

	// To the name of one that keeps none, and from there to one that does.
	f.must(f.s.KeepOrder(f.ctx(), "emr", false))
	_, err := f.s.Rename(f.ctx(), message.Names{Outbounds: map[string]string{"a": "emr"}})
	f.must(err)
	f.wantReady("emr", 10, nth(early, 1), nth(late, 1))
	_, err = f.s.Rename(f.ctx(), message.Names{Outbounds: map[string]string{"emr": "a"}})
	f.must(err)
	f.wantReady("emr", 10)
	f.wantReady("a", 10)
	f.must(f.s.KeepOrder(f.ctx(), "a", false))
	f.wantReady("a", 10, nth(early, 1), nth(late, 1))
}

// At a lane that keeps no order a release with bury gives up on all that was rejected for good, wherever it stands, and on nothing
// else; where nothing was, on the oldest that has been tried.
func testGiveUp(f *fixture) {
	f.must(f.s.KeepOrder(f.ctx(), "a", false))
	f.routed("adt", "0", plan("slow", "a"))
	var ids []message.ID
	var list []message.Delivery
	for range 5 {
		id := f.routed("adt", "x", plan("h", "a"))
		f.end(id, "h", sent([2]string{"a", "x"}))
		ids = append(ids, id)
		list = append(list, f.timeline(id).Deliveries[0])
	}
	f.must(f.s.Retry(f.ctx(), list[1].ID, "500", false, time.Now().Add(time.Hour)))
	f.must(f.s.Retry(f.ctx(), list[4].ID, "500", false, time.Now().Add(time.Hour)))
	f.must(f.s.Park(f.ctx(), list[2].ID, "AR: two"))
	f.must(f.s.Park(f.ctx(), list[3].ID, "AR: three"))
	f.wantHolds("outbound a, lane of adt: delivery " + nth(ids[2], 1) + ": AR: two; ")
	equal(f, "given up on", f.release(outboundTarget("a", "adt"), true)[0].Buried, nth(ids[2], 1)+", "+nth(ids[3], 1))
	f.wantDisposition(ids[2], message.Error, "given up by hand; AR: two")
	f.wantDisposition(ids[3], message.Error, "given up by hand; AR: three")
	f.must(f.s.Hold(f.ctx(), message.Hold{Target: outboundTarget("a", "adt"), Reason: "by hand"}))
	equal(f, "given up on by hand", f.release(outboundTarget("a", "adt"), true)[0].Buried, nth(ids[1], 1))
	f.must(f.s.Hold(f.ctx(), message.Hold{Target: outboundTarget("a", "adt"), Reason: "by hand"}))
	equal(f, "given up on by hand again", f.release(outboundTarget("a", "adt"), true)[0].Buried, nth(ids[4], 1))
	f.must(f.s.Hold(f.ctx(), message.Hold{Target: outboundTarget("a", "adt"), Reason: "by hand"}))
	equal(f, "given up on before it was tried", f.release(outboundTarget("a", "adt"), true)[0].Buried, "")
	f.wantReady("a", 10, nth(ids[0], 1))
}

// A lane that keeps no order says so, and shows what is tried again in the place of a head.
func testUnorderedLane(f *fixture) {
	f.must(f.s.KeepOrder(f.ctx(), "a", false))
	f.routed("adt", "0", plan("slow", "a"))
	id := f.routed("adt", "x", plan("h", "a"))
	f.end(id, "h", sent([2]string{"a", "x"}))
	lane := func() string {
		list, err := f.s.Lanes(f.ctx())
		f.must(err)
		l := list[slices.IndexFunc(list, func(l store.Lane) bool { return l.Target == outboundTarget("a", "adt") })]
		head := "none"
		if l.Head != nil {
			head = l.Head.Name()
		}
		return fmt.Sprint(l.Waiting, l.Unordered, head, l.Oldest.IsZero())
	}
	equal(f, "before a try", lane(), fmt.Sprint(2, true, "none", false))
	f.must(f.s.Retry(f.ctx(), f.timeline(id).Deliveries[0].ID, "500", false, time.Now()))
	equal(f, "after a try", lane(), fmt.Sprint(2, true, nth(id, 1), false))
	f.must(f.s.KeepOrder(f.ctx(), "a", true))
	equal(f, "in order again", lane(), fmt.Sprint(2, false, nth(1, 1), false))
}
