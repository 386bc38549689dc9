package storetest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

func testRouteReserves(f *fixture) {
	id := f.routed("adt", "x", plan("h1", "a", "b"), plan("h2", "b"), plan("h3"))
	f.wantDisposition(id, message.Routed, "")
	tl := f.timeline(id)
	var got string
	for _, r := range tl.Runs {
		got += fmt.Sprintf("%s %s %q; ", r.Handler, r.State, r.To)
	}
	equal(f, "runs", got, `h1 PENDING ["a" "b"]; h2 PENDING ["b"]; h3 PENDING []; `)
	got = ""
	for _, d := range tl.Deliveries {
		got += fmt.Sprintf("%d %s>%s %s %s; ", d.Number, d.Handler, d.Outbound, d.Inbound, d.State)
	}
	equal(f, "deliveries", got, "1 h1>a adt RESERVED; 2 h1>b adt RESERVED; 3 h2>b adt RESERVED; ")
	f.wantHead("b", id, 2, message.Reserved, "")

	// Places are taken in the order of routing, which for one inbound is receive order.
	f.routed("adt", "y", plan("h1", "a"))
	f.wantHead("a", id, 1, message.Reserved, "")
}

func testRouteRefusesBadPlans(f *fixture) {
	id := f.receive("adt", "x")
	for what, plans := range map[string][]store.Plan{
		"a handler planned twice":    {plan("h", "a"), plan("h", "b")},
		"an outbound named twice":    {plan("h", "a", "b", "a")},
		"a plan without a handler":   {plan("", "a")},
		"an outbound without a name": {plan("h", "")},
	} {
		f.wantRefused(what, f.s.Route(f.ctx(), id, plans, message.Outcome{State: message.RunSent}))
	}
	out := message.Outcome{State: message.RunError, Attempts: 1}
	f.wantRefused("a failed router's plan", f.s.Route(f.ctx(), id, []store.Plan{plan("h")}, out))
	f.wantRefused("a router that sends", f.s.Route(f.ctx(), id, nil, sent([2]string{"a", "x"})))
	f.wantRefused("a failed routing that did not fail", f.s.FailRoute(f.ctx(), id, filtered("no")))
	f.wantDisposition(id, message.Received, "")
	equal(f, "runs", len(f.timeline(id).Runs), 0)
}

func testRouteRecordsTheRouter(f *fixture) {
	id := f.receive("adt", "x")
	run := message.Outcome{State: message.RunSent, Attempts: 2, Code: "c0de", Took: 1234567 * time.Nanosecond,
		Tags: map[string]string{"mrn": "7"}}
	f.must(f.s.Route(f.ctx(), id, []store.Plan{plan("h", "a")}, run))
	tl := f.timeline(id)
	equal(f, "runs", len(tl.Runs), 2)
	r := tl.Runs[0]
	equal(f, "the router's run", fmt.Sprint(r.Handler, r.State, r.Outcome.Attempts, r.Outcome.Code, r.Outcome.Took),
		fmt.Sprint("", message.RunSent, 2, "c0de", run.Took))
	equal(f, "the router's run has ended", r.Ended.IsZero(), false)
	equal(f, "tag", tl.Tags["mrn"], "7")

	// The router's run is none of a handler's, so by itself it makes no message FILTERED.
	id = f.receive("adt", "x")
	f.must(f.s.Route(f.ctx(), id, nil, run))
	f.wantDisposition(id, message.Unrouted, "")

	id = f.receive("adt", "x")
	f.must(f.s.FailRoute(f.ctx(), id, failed("no such key")))
	f.wantDisposition(id, message.Error, "no such key")
	r = f.run(id, "")
	equal(f, "the router's fault", fmt.Sprint(r.State, *r.Outcome.Fault),
		fmt.Sprint(message.RunError, *failed("no such key").Fault))
}

// testNextRuns: a handler's runs come in the order in which they were planned, as many as are asked for, and the first whatever
// its size. Red with the look at the bytes left out.
func testNextRuns(f *fixture) {
	next := func(handler string) string {
		r, m := f.nextRun(handler)
		if r == nil {
			return "none"
		}
		return fmt.Sprintf("%d/%d %s %s %s %s %d", r.Message, m.ID, r.Handler, r.State, m.Body, m.Disposition, m.Size)
	}
	equal(f, "in an empty store", next("h"), "none")
	first := f.routed("adt", "one", plan("g"), plan("h"))
	second := f.routed("orm", "two", plan("h"))
	equal(f, "next of h", next("h"), fmt.Sprintf("%d/%d h PENDING one ROUTED 3", first, first))
	equal(f, "next of g", next("g"), fmt.Sprintf("%d/%d g PENDING one ROUTED 3", first, first))
	f.end(first, "h", filtered(""))
	equal(f, "next of h", next("h"), fmt.Sprintf("%d/%d h PENDING two ROUTED 3", second, second))
	f.end(second, "h", failed(""))
	equal(f, "next of h", next("h"), "none")
	equal(f, "next of the router", next(""), "none")

	bodies := []string{string(large(300 << 10)), "ab", "cde", string(large(300 << 10)), "f"}
	var ids []message.ID
	for _, body := range bodies {
		ids = append(ids, f.routed("adt", body, plan("h")))
	}
	ended := 0
	for _, tt := range []struct {
		ended, most int
		bytes       int64
		want        int
	}{
		{0, 1, 1 << 20, 1}, {0, 2, 1 << 20, 2}, {0, 9, 0, 1}, {0, 9, 300<<10 + 4, 2}, {0, 9, 300<<10 + 5, 3},
		{1, 9, 5, 2}, {1, 9, 4, 1}, {1, 9, 0, 1}, {1, 9, 1 << 20, 4}, {3, 9, 1 << 20, 2},
	} {
		for ; ended < tt.ended; ended++ {
			f.end(ids[ended], "h", filtered(""))
		}
		list, err := f.s.NextRuns(f.ctx(), "h", tt.most, tt.bytes)
		f.must(err)
		equal(f, fmt.Sprintf("how many are next, with %+v", tt), len(list), tt.want)
		for i, p := range list {
			equal(f, "message", p.Run.Message, ids[ended+i])
			f.wantBody("next", p.On.Body, []byte(bodies[ended+i]))
		}
	}
}

func testWaiting(f *fixture) {
	waiting := func() string {
		list, err := f.s.Waiting(f.ctx())
		f.must(err)
		var lines []string
		for _, w := range list {
			lines = append(lines, fmt.Sprintf("%s %s %d", w.Kind, w.Name, w.Count))
		}
		slices.Sort(lines) // no order is promised
		return strings.Join(lines, ", ")
	}
	equal(f, "in an empty store", waiting(), "")
	f.receive("orm", "x")
	f.receive("adt", "x")
	f.receive("adt", "x")
	id := f.routed("adt", "x", plan("h", "a", "b"), plan("g", "a"))
	equal(f, "all kinds", waiting(), "handler g 1, handler h 1, inbound adt 2, inbound orm 1, outbound a 2, outbound b 1")
	f.end(id, "h", sent([2]string{"a", "x"}, [2]string{"a", "y"}))
	f.end(id, "g", failed(""))
	equal(f, "after the handlers", waiting(), "inbound adt 2, inbound orm 1, outbound a 2")
	f.delivered(f.head("a"))
	f.must(f.s.Bury(f.ctx(), f.head("a").ID, "no"))
	equal(f, "after the deliveries", waiting(), "inbound adt 2, inbound orm 1")
}

func testFillAndClose(f *fixture) {
	id := f.routed("adt", "raw", plan("h", "a", "b", "c"))
	f.end(id, "h", sent([2]string{"c", "for c"}, [2]string{"a", "raw"}))
	f.wantHead("a", id, 1, message.Ready, "raw")
	f.wantHead("c", id, 3, message.Ready, "for c")
	equal(f, "heads of b", len(f.heads("b", 1)), 0)
	b := f.timeline(id).Deliveries[1]
	equal(f, "b", b.State, message.Closed)
	equal(f, "b has an end", b.Ended.IsZero(), false)
	f.wantDisposition(id, message.Routed, "")
	f.delivered(f.head("a"))
	f.wantDisposition(id, message.Routed, "")
	f.delivered(f.head("c"))
	f.wantDisposition(id, message.Processed, "")

	for _, out := range []message.Outcome{filtered("f"), failed("e"), sent()} {
		id := f.routed("adt", "raw", plan("h", "a", "b"))
		f.end(id, "h", out)
		for _, d := range f.timeline(id).Deliveries {
			equal(f, fmt.Sprintf("%s after %s", d.Outbound, out.State), d.State, message.Closed)
		}
	}
	equal(f, "heads of a", len(f.heads("a", 1)), 0)
}

// A second send to one outbound stands right behind the first, before the next message, with a number of its own.
func testSendTwice(f *fixture) {
	id := f.routed("adt", "raw", plan("h", "a", "b"), plan("g", "a"))
	next := f.routed("adt", "next", plan("h", "a"))
	f.end(next, "h", sent([2]string{"a", "next"}))
	f.end(id, "g", sent([2]string{"a", "g1"}, [2]string{"a", "g2"}))
	f.end(id, "h", sent([2]string{"a", "h1"}, [2]string{"b", "b1"}, [2]string{"a", "h2"}, [2]string{"b", "b2"}, [2]string{"a", ""}))
	var order string
	for range 6 {
		d := f.head("a")
		order += show([]message.Delivery{d})
		f.delivered(d)
	}
	want := []message.Delivery{
		{Message: id, Number: 1, State: message.Ready, Body: []byte("h1")},
		{Message: id, Number: 5, State: message.Ready, Body: []byte("h2")},
		{Message: id, Number: 7, State: message.Ready, Body: []byte("")},
		{Message: id, Number: 3, State: message.Ready, Body: []byte("g1")},
		{Message: id, Number: 4, State: message.Ready, Body: []byte("g2")},
		{Message: next, Number: 1, State: message.Ready, Body: []byte("next")},
	}
	equal(f, "order at a", order, show(want))
	equal(f, "heads of a", len(f.heads("a", 1)), 0)
	f.wantHead("b", id, 2, message.Ready, "b1")
	f.delivered(f.head("b"))
	f.wantHead("b", id, 6, message.Ready, "b2")
	f.wantDisposition(id, message.Routed, "")
	f.delivered(f.head("b"))
	f.wantDisposition(id, message.Processed, "")
}

func testReservedHeadBlocks(f *fixture) {
	slow := f.routed("adt", "slow", plan("h", "a"))
	fast := f.routed("adt", "fast", plan("h", "a"))
	f.end(fast, "h", sent([2]string{"a", "fast"}))
	head := f.head("a")
	equal(f, "head", fmt.Sprint(head.Message, head.State, head.Body == nil), fmt.Sprint(slow, message.Reserved, true))
	for what, err := range map[string]error{
		"a reserved place's delivery": f.s.Delivered(f.ctx(), head.ID, message.Receipt{}),
		"a reserved place's retry":    f.s.Retry(f.ctx(), head.ID, "x", false, time.Time{}),
		"a reserved place's burial":   f.s.Bury(f.ctx(), head.ID, "x"),
	} {
		f.wantRefused(what, err)
	}
	f.end(slow, "h", filtered("no"))
	f.wantHead("a", fast, 1, message.Ready, "fast")
}

// Two inbounds into one outbound are two lanes: neither waits for the other.
func testLanesAreApart(f *fixture) {
	zulu := f.routed("zulu", "z", plan("h", "a"))
	alfa := f.routed("alfa", "a1", plan("h", "a"))
	later := f.routed("alfa", "a2", plan("h", "a"))
	f.routed("mike", "m", plan("h", "b"))
	f.end(alfa, "h", sent([2]string{"a", "a1"}))
	f.end(later, "h", sent([2]string{"a", "a2"}))
	equal(f, "heads of a", show(f.heads("a", 1)), show([]message.Delivery{
		{Message: zulu, Number: 1, State: message.Reserved},
		{Message: alfa, Number: 1, State: message.Ready, Body: []byte("a1")},
	}))
	f.delivered(f.heads("a", 1)[1])
	equal(f, "heads of a", show(f.heads("a", 1)), show([]message.Delivery{
		{Message: zulu, Number: 1, State: message.Reserved},
		{Message: later, Number: 1, State: message.Ready, Body: []byte("a2")},
	}))
	equal(f, "lanes of a", f.heads("a", 1)[1].Inbound, "alfa")
}

func testUnknownDestination(f *fixture) {
	id := f.routed("adt", "raw", plan("h", "a"), plan("g", "b"))
	run := f.run(id, "h")
	out := sent([2]string{"a", "one"}, [2]string{"a", "two"}, [2]string{"b", "stray"})
	out.Tags = map[string]string{"k": "v"}
	f.wantRefused("a send outside of the plan", f.s.EndRun(f.ctx(), run.ID, out))
	tl := f.timeline(id)
	equal(f, "deliveries", show(tl.Deliveries), show([]message.Delivery{
		{Message: id, Number: 1, State: message.Reserved}, {Message: id, Number: 2, State: message.Reserved}}))
	equal(f, "tags", len(tl.Tags), 0)
	equal(f, "run", f.run(id, "h").State, message.RunPending)
	f.end(id, "h", sent([2]string{"a", "one"})) // the run can still end well
	f.wantHead("a", id, 1, message.Ready, "one")
}

func testBadOutcomes(f *fixture) {
	id := f.routed("adt", "raw", plan("h", "a"))
	run := f.run(id, "h").ID
	f.wantRefused("a pending outcome", f.s.EndRun(f.ctx(), run, message.Outcome{State: message.RunPending}))
	f.wantRefused("an outcome without a state", f.s.EndRun(f.ctx(), run, message.Outcome{}))
	out := sent([2]string{"a", "x"})
	out.State = message.RunFiltered
	f.wantRefused("a filtered outcome that sends", f.s.EndRun(f.ctx(), run, out))
	f.wantHead("a", id, 1, message.Reserved, "")
}

// testExtend: what waits for a handler that has one more outbound now has a place there, before what came later, and may send
// there; what has ended, and others' runs, have none. It holds however many wait. Red without sqlExtend's look for a place, with new
// places in that of the run's own, and with one step alone.
func testExtend(f *fixture) {
	ended := f.routed("adt", "x", plan("h1", "a"))
	f.end(ended, "h1", sent([2]string{"a", "x"}))
	var waits []message.ID
	for range 300 {
		waits = append(waits, f.routed("adt", "x", plan("h1", "a"), plan("h2", "a")))
	}
	later := f.routed("adt", "x", plan("h2", "b"))
	none := f.routed("adt", "x", plan("h3"))

	f.must(f.s.Extend(f.ctx(), plan("h1", "b", "a")))
	f.must(f.s.Extend(f.ctx(), plan("h1", "b", "a")))
	f.must(f.s.Extend(f.ctx(), plan("h3", "b")))
	for _, id := range []message.ID{waits[0], waits[299]} {
		tl := f.timeline(id)
		equal(f, "outbounds", fmt.Sprint(tl.Runs[0].To, tl.Runs[1].To, len(tl.Deliveries)), "[a b] [a] 3")
	}
	equal(f, "of what has ended", len(f.timeline(ended).Deliveries), 1)
	f.end(later, "h2", sent([2]string{"b", "later"}))
	f.wantHead("b", waits[0], 3, message.Reserved, "")
	for _, id := range waits {
		f.end(id, "h1", sent([2]string{"b", "x"}))
	}
	f.wantHead("b", waits[0], 3, message.Ready, "x")
	f.end(none, "h3", sent([2]string{"b", "last"}))
	for range waits {
		heads, err := f.s.Heads(f.ctx(), "b", 1)
		f.must(err)
		f.must(f.s.Delivered(f.ctx(), heads[0].ID, message.Receipt{}))
	}
	f.wantHead("b", later, 1, message.Ready, "later")
}
