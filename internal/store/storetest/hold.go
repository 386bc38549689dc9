package storetest

import (
	"fmt"
	"time"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

func handlerTarget(name string) message.Target {
	return message.Target{Kind: message.KindHandler, Name: name}
}

func outboundTarget(name, lane string) message.Target {
	return message.Target{Kind: message.KindOutbound, Name: name, Inbound: lane}
}

// wantHolds checks what is held, as "handler h: reason; ".
func (f *fixture) wantHolds(want string) {
	f.Helper()
	list, err := f.s.Holds(f.ctx())
	f.must(err)
	equal(f, "holds", showHolds(list), want)
}

func showHolds(list []message.Hold) string {
	s := ""
	for _, h := range list {
		s += fmt.Sprintf("%s: %s; ", h.Target, h.Reason)
	}
	return s
}

func (f *fixture) release(t message.Target, bury bool) []message.Hold {
	f.Helper()
	released, err := f.s.Release(f.ctx(), t, bury)
	f.must(err)
	return released
}

func testHoldAndRelease(f *fixture) {
	f.wantHolds("")
	since := time.Date(2026, 1, 2, 3, 4, 5, 678000, time.UTC)
	f.must(f.s.Hold(f.ctx(), message.Hold{Target: handlerTarget("h"), Reason: "by\nhand", Since: since}))
	f.must(f.s.Hold(f.ctx(), message.Hold{Target: handlerTarget("h"), Reason: "again"}))
	f.must(f.s.Hold(f.ctx(), message.Hold{Target: outboundTarget("a", "adt"), Reason: "lane"}))
	f.must(f.s.Hold(f.ctx(), message.Hold{Target: outboundTarget("a", ""), Reason: "all"}))
	f.must(f.s.Hold(f.ctx(), message.Hold{Target: outboundTarget("b", "adt"), Reason: "other"}))
	f.wantHolds("handler h: by hand; outbound a: all; outbound a, lane of adt: lane; outbound b, lane of adt: other; ")
	list, err := f.s.Holds(f.ctx())
	f.must(err)
	equal(f, "since", list[0].Since, since)

	for _, bad := range []message.Target{{Kind: "worker", Name: "h"}, {Kind: message.KindHandler}, {Kind: message.KindHandler, Name: "h", Inbound: "adt"}} {
		f.wantRefused(fmt.Sprintf("a hold of %+v", bad), f.s.Hold(f.ctx(), message.Hold{Target: bad}))
		_, err := f.s.Release(f.ctx(), bad, false)
		f.wantRefused(fmt.Sprintf("a release of %+v", bad), err)
	}
	equal(f, "released", showHolds(f.release(outboundTarget("a", ""), false)), "outbound a: all; outbound a, lane of adt: lane; ")
	equal(f, "released again", len(f.release(outboundTarget("a", ""), false)), 0)
	equal(f, "released of another lane", len(f.release(outboundTarget("b", "lab"), false)), 0)
	f.release(handlerTarget("h"), false)
	f.wantHolds("outbound b, lane of adt: other; ")
}

// Only failures in a row hold, of one handler, and they count from zero after a release.
func testHoldAfter(f *fixture) {
	end := func(out message.Outcome) {
		out.HoldAfter = 3
		id := f.routed("adt", "x", plan("h"), plan("other"))
		f.end(id, "h", out)
		f.end(id, "other", failed("mine"))
	}
	end(failed("1"))
	end(failed("2"))
	end(filtered("good"))
	end(failed("1"))
	end(failed("2"))
	f.wantHolds("")
	end(failed("third"))
	f.wantHolds("handler h: 3 failures in a row, the last: third; ")
	end(failed("was under way"))
	f.wantHolds("handler h: 3 failures in a row, the last: third; ")
	f.release(handlerTarget("h"), false)
	end(failed("1"))
	end(failed("2"))
	f.wantHolds("")

	for range 3 {
		out := failed("router")
		out.HoldAfter = 3
		f.must(f.s.FailRoute(f.ctx(), f.receive("adt", "x"), out))
	}
	f.wantHolds("inbound adt: 3 failures in a row, the last: router; ")
}

func testPark(f *fixture) {
	first := f.routed("adt", "1", plan("h", "a"))
	second := f.routed("adt", "2", plan("h", "a"))
	for _, id := range []message.ID{first, second} {
		f.end(id, "h", sent([2]string{"a", "x"}))
	}
	d := f.head("a")
	f.must(f.s.Retry(f.ctx(), d.ID, "AE", true, time.Now()))
	f.must(f.s.Park(f.ctx(), d.ID, "AR: no such ward"))
	f.wantHolds("outbound a, lane of adt: delivery " + d.Name() + ": AR: no such ward; ")
	d = f.head("a")
	equal(f, "parked", fmt.Sprint(d.Name(), d.State, d.Attempts, d.Rejected, d.NextTry.IsZero(), d.Reason),
		fmt.Sprint(message.Delivery{Message: first, Number: 1}.Name(), message.Ready, 2, 2, true, "AR: no such ward"))
	f.wantDisposition(first, message.Routed, "")

	// Released as it is, it is still the head; released with bury, it is a dead letter and what is behind it is not.
	equal(f, "buried by a plain release", f.release(outboundTarget("a", "adt"), false)[0].Buried, "")
	f.wantHead("a", first, 1, message.Ready, "x")
	f.must(f.s.Park(f.ctx(), d.ID, "AR again"))
	equal(f, "buried", f.release(outboundTarget("a", ""), true)[0].Buried, d.Name())
	f.wantDisposition(first, message.Error, "given up by hand; AR again")
	f.wantHead("a", second, 1, message.Ready, "x")
	f.wantErr(f.s.Park(f.ctx(), d.ID, "late"), store.ErrStale)

	// So it is with a lane that was held by hand: one that was never tried stays, one that is tried again and again goes.
	byHand := message.Hold{Target: outboundTarget("a", "adt"), Reason: "by hand"}
	f.must(f.s.Hold(f.ctx(), byHand))
	equal(f, "buried before it was tried", f.release(outboundTarget("a", "adt"), true)[0].Buried, "")
	d = f.head("a")
	f.must(f.s.Retry(f.ctx(), d.ID, "500", false, time.Now().Add(time.Hour)))
	f.must(f.s.Hold(f.ctx(), byHand))
	equal(f, "buried after it was tried", f.release(outboundTarget("a", "adt"), true)[0].Buried, d.Name())
	f.wantDisposition(second, message.Error, "given up by hand; 500")
}
