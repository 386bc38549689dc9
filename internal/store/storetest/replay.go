package storetest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// names declares handler h, which may send to a and b, and the inbound adt.
func names(plans ...store.Plan) message.Names {
	n := message.Names{Inbounds: map[string]string{"adt": "adt"}, Handlers: map[string]message.Plan{}, Outbounds: map[string]string{}}
	for _, p := range plans {
		n.Handlers[p.Handler] = p
		for _, to := range p.To {
			n.Outbounds[to] = to
		}
	}
	return n
}

func (f *fixture) replay(id message.ID, n message.Names) message.Replay {
	f.Helper()
	r, err := f.s.Replay(f.ctx(), id, n)
	f.must(err)
	return r
}

// A handler runs again at the tail of its queue and of its lanes, with the outbounds that it may name now; the other
// handler's part is left alone.
func testReplayHandler(f *fixture) {
	id := f.routed("adt", "old", plan("h", "a"), plan("fine", "b"))
	f.end(id, "h", failed("bad code"))
	f.end(id, "fine", sent([2]string{"b", "fine"}))
	f.delivered(f.head("b"))
	f.wantDisposition(id, message.Error, "bad code")
	newer := f.routed("adt", "newer", plan("h", "a"))
	f.end(newer, "h", sent([2]string{"a", "newer"}))
	f.delivered(f.head("a"))
	waiting := f.routed("adt", "waiting", plan("h", "a"))

	r := f.replay(id, names(plan("h", "c", "a")))
	equal(f, "replay", fmt.Sprint(r.Router, r.Handlers, len(r.Sends), r.Ahead), fmt.Sprint(false, []string{"h"}, 0, map[string]int64{"a": 1, "c": 0}))
	f.wantDisposition(id, message.Routed, "")
	f.wantHead("a", waiting, 1, message.Reserved, "")
	f.wantHead("c", id, 3, message.Reserved, "")
	_, err := f.s.Replay(f.ctx(), id, names(plan("h", "c", "a")))
	f.wantErr(err, store.ErrNothingFailed)

	run, _ := f.nextRun("h")
	equal(f, "next", run.Message, waiting)
	f.must(f.s.EndRun(f.ctx(), run.ID, filtered("")))
	run, m := f.nextRun("h")
	equal(f, "after that", fmt.Sprint(run.Message, run.To, string(m.Body)), fmt.Sprint(id, []string{"c", "a"}, "old"))
	f.must(f.s.EndRun(f.ctx(), run.ID, sent([2]string{"a", "again"}, [2]string{"a", "twice"})))
	f.wantHead("a", id, 4, message.Ready, "again")
	f.delivered(f.head("a"))
	f.wantHead("a", id, 5, message.Ready, "twice")
	f.delivered(f.head("a"))
	f.wantDisposition(id, message.Processed, "")

	tl := f.timeline(id)
	got := ""
	for _, r := range tl.Runs {
		got += fmt.Sprintf("%s %s %v %v; ", r.Handler, r.State, r.To, !r.Replayed.IsZero())
	}
	equal(f, "runs", got, "h ERROR [a] true; fine SENT [b] false; h SENT [c a] false; ")
}

// A delivery is made again with the bytes that are stored, at the tail of its lane; the dead one stays in the history.
func testReplayDelivery(f *fixture) {
	id := f.routed("adt", "x", plan("h", "a", "b"))
	f.end(id, "h", sent([2]string{"a", "one"}, [2]string{"b", "fine"}, [2]string{"a", "two"}))
	f.must(f.s.Bury(f.ctx(), f.head("a").ID, "AR 1"))
	f.delivered(f.head("b"))
	f.must(f.s.Bury(f.ctx(), f.head("a").ID, "AR 2"))
	f.wantDisposition(id, message.Error, "AR 1")
	waiting := f.routed("adt", "waiting", plan("h", "a"))

	r := f.replay(id, names(plan("h", "a", "b")))
	equal(f, "replay", fmt.Sprint(r.Router, r.Handlers, r.Ahead), fmt.Sprint(false, []string(nil), map[string]int64{"a": 0}))
	equal(f, "sends", show(r.Sends), show([]message.Delivery{{Message: id, Number: 4, State: message.Ready}, {Message: id, Number: 5, State: message.Ready}}))
	f.wantHead("a", waiting, 1, message.Reserved, "")
	f.end(waiting, "h", filtered(""))
	f.wantHead("a", id, 4, message.Ready, "one")
	f.delivered(f.head("a"))
	f.wantDisposition(id, message.Routed, "")
	f.must(f.s.Bury(f.ctx(), f.head("a").ID, "AR 3"))
	f.wantDisposition(id, message.Error, "AR 3")

	f.replay(id, names(plan("h", "a", "b")))
	f.wantHead("a", id, 6, message.Ready, "two")
	f.delivered(f.head("a"))
	f.wantDisposition(id, message.Processed, "")
	var got []string
	for _, d := range f.timeline(id).Deliveries {
		got = append(got, fmt.Sprint(d.Number, d.State, !d.Replayed.IsZero()))
	}
	want := []string{"1DEADtrue", "2DONEfalse", "3DEADtrue", "4DONEfalse", "5DEADtrue", "6DONEfalse"}
	if !slices.Equal(got, want) {
		f.Errorf("got deliveries %v, want %v", got, want)
	}
	equal(f, "what the run was planned for", strings.Join(f.run(id, "h").To, " "), "a b")
}

func testReplayRouter(f *fixture) {
	id := f.receive("adt", "x")
	f.must(f.s.FailRoute(f.ctx(), id, failed("bad router")))
	r := f.replay(id, names())
	equal(f, "replay", fmt.Sprint(r.Router, r.Handlers, len(r.Sends)), fmt.Sprint(true, []string(nil), 0))
	f.wantDisposition(id, message.Received, "")
	m, err := f.s.NextReceived(f.ctx(), "adt")
	f.must(err)
	equal(f, "next to be routed", m.ID, id)
	f.must(f.s.Route(f.ctx(), id, []store.Plan{plan("h", "a")}, message.Outcome{State: message.RunSent, Attempts: 1}))
	f.end(id, "h", filtered("no need"))
	f.wantDisposition(id, message.Filtered, "no need")
}

// whole is a message's timeline as text.
func (f *fixture) whole(id message.ID) string {
	f.Helper()
	text, err := json.Marshal(f.timeline(id))
	f.must(err)
	return string(text)
}

// A replay that cannot be whole does nothing.
func testReplayRefused(f *fixture) {
	refused := func(id message.ID, n message.Names, want error) {
		f.Helper()
		before := f.whole(id)
		_, err := f.s.Replay(f.ctx(), id, n)
		f.wantErr(err, want)
		equal(f, "the message", f.whole(id), before)
	}
	id := f.routed("adt", "x", plan("h", "a"), plan("gone"))
	refused(id, names(), store.ErrNothingFailed)
	f.end(id, "h", sent([2]string{"a", "x"}))
	f.must(f.s.Bury(f.ctx(), f.head("a").ID, "AR"))
	f.end(id, "gone", failed("no"))
	refused(id, names(plan("h", "a")), store.ErrUndeclared)
	refused(id, names(plan("gone"), plan("h")), store.ErrUndeclared)
	lost := f.receive("lost", "x")
	f.must(f.s.FailRoute(f.ctx(), lost, failed("")))
	refused(lost, names(), store.ErrUndeclared)
	_, err := f.s.Replay(f.ctx(), 99, names())
	f.wantErr(err, store.ErrNotFound)

	// Under names of now it works: handler gone is called h, outbound a is called c.
	n := names(plan("h", "c"))
	n.Handlers["gone"], n.Outbounds["a"] = plan("h", "c"), "c"
	r := f.replay(id, n)
	equal(f, "replay", fmt.Sprint(r.Handlers, r.Sends[0].Outbound), fmt.Sprint([]string{"h"}, "c"))
}

func testDeadLetters(f *fixture) {
	want := func(q store.DeadLetters, want string) {
		f.Helper()
		list, err := f.s.DeadLetters(f.ctx(), q)
		f.must(err)
		got := ""
		for _, d := range list {
			got += fmt.Sprintf("%d %s %s %s %s; ", d.Message, d.Kind, d.Name, d.Delivery, d.Reason)
			equal(f, "inbound", d.Inbound, "adt")
			equal(f, "it has an end", d.Ended.IsZero(), false)
		}
		equal(f, fmt.Sprintf("dead letters %+v", q), got, want)
	}
	want(store.DeadLetters{}, "")
	router := f.receive("adt", "1")
	f.must(f.s.FailRoute(f.ctx(), router, failed("lost")))
	both := f.routed("adt", "2", plan("h"), plan("send", "a"))
	f.end(both, "h", failed("raised"))
	f.end(both, "send", sent([2]string{"a", "x"}, [2]string{"a", "y"}))
	f.must(f.s.Bury(f.ctx(), f.head("a").ID, "AR"))
	f.delivered(f.head("a"))
	f.end(f.routed("adt", "3", plan("h")), "h", filtered("fine"))
	last := f.routed("adt", "4", plan("h"), plan("slow"))
	f.end(last, "h", failed("raised too")) // dead already, although the other part is under way

	run := fmt.Sprintf("%d handler h  raised; ", both)
	sends := fmt.Sprintf("%d outbound a %s AR; ", both, message.Delivery{Message: both, Number: 1}.Name())
	newest, oldest := fmt.Sprintf("%d handler h  raised too; ", last), fmt.Sprintf("%d inbound adt  lost; ", router)
	all, err := f.s.DeadLetters(f.ctx(), store.DeadLetters{})
	f.must(err)
	equal(f, "dead letters", len(all), 4)
	want(store.DeadLetters{Limit: 1}, newest)
	want(store.DeadLetters{Kind: message.KindOutbound}, sends)
	want(store.DeadLetters{Kind: message.KindInbound}, oldest)
	want(store.DeadLetters{Kind: message.KindHandler}, newest+run)
	want(store.DeadLetters{Kind: message.KindHandler, Before: last}, run)
	want(store.DeadLetters{Name: "a"}, sends)
	want(store.DeadLetters{Kind: message.KindHandler, Name: "send"}, "")
	want(store.DeadLetters{Inbound: "lab"}, "")
	want(store.DeadLetters{Since: time.Now().Add(time.Hour)}, "")
	f.replay(both, names(plan("h"), plan("send", "a")))
	want(store.DeadLetters{}, newest+oldest)
	_, err = f.s.Receive(f.ctx(), message.Incoming{Inbound: "adt", Body: []byte("edited"), Resubmits: router})
	f.must(err)
	want(store.DeadLetters{}, newest)
}

func testResubmit(f *fixture) {
	id := f.receive("adt", "old")
	edited, err := f.s.Receive(f.ctx(), message.Incoming{Inbound: "adt", Body: []byte("new"), Resubmits: id})
	f.must(err)
	tl := f.timeline(edited)
	equal(f, "resubmits", fmt.Sprint(tl.Message.Resubmits, string(tl.Message.Body), tl.Message.Disposition), fmt.Sprint(id, "new", message.Received))
	equal(f, "resubmitted as", fmt.Sprint(f.timeline(id).Resubmits), fmt.Sprint([]message.ID{edited}))
	equal(f, "the old one", f.timeline(id).Message.Resubmits, 0)
	_, err = f.s.Receive(f.ctx(), message.Incoming{Inbound: "adt", Resubmits: 99})
	f.wantErr(err, store.ErrNotFound)
}

func testRename(f *fixture) {
	old := f.routed("adt", "done", plan("h", "a"))
	f.end(old, "h", sent([2]string{"a", "x"}))
	f.delivered(f.head("a"))
	routed := f.routed("adt", "routed", plan("h", "a", "b"))
	received := f.receive("adt", "received")
	f.must(f.s.Hold(f.ctx(), message.Hold{Target: outboundTarget("a", "adt"), Reason: "lane"}))
	f.must(f.s.Hold(f.ctx(), message.Hold{Target: handlerTarget("h"), Reason: "by hand"}))
	rename := func(names message.Names, want int64) {
		f.Helper()
		n, err := f.s.Rename(f.ctx(), names)
		f.must(err)
		equal(f, "renamed", n, want)
	}
	now := message.Names{
		Inbounds:  map[string]string{"adt": "admissions", "admissions": "admissions"},
		Handlers:  map[string]message.Plan{"h": {Handler: "admit"}, "admit": {Handler: "admit"}},
		Outbounds: map[string]string{"a": "emr", "emr": "emr", "b": "b"},
	}
	none := now
	none.Outbounds = map[string]string{"a": ""}
	_, err := f.s.Rename(f.ctx(), none)
	f.wantRefused("a rename to nothing", err)
	equal(f, "waits for the former name after that", len(f.waiting("adt")), 1)
	rename(now, 4)
	rename(now, 0)
	f.wantHolds("handler admit: by hand; outbound emr, lane of admissions: lane; ")
	m, err := f.s.NextReceived(f.ctx(), "admissions")
	f.must(err)
	equal(f, "next to be routed", m.ID, received)
	run, _ := f.nextRun("admit")
	equal(f, "next run", fmt.Sprint(run.Message, run.To), fmt.Sprint(routed, []string{"emr", "b"}))
	equal(f, "lane", f.head("emr").Inbound, "admissions")
	equal(f, "what has ended", f.timeline(old).Message.Inbound, "adt")
}

// testRenameIntoAnother: what was a former name's stands between the runs that the handler had and those that it gets. Red with
// what is known of the last runs kept.
func testRenameIntoAnother(f *fixture) {
	f.routed("adt", "x", plan("admit"))
	between := f.run(f.routed("adt", "y", plan("h")), "h")
	_, err := f.s.Rename(f.ctx(), message.Names{Handlers: map[string]message.Plan{"h": {Handler: "admit"}}})
	f.must(err)
	_, made, err := f.s.ReceiveRouted(f.ctx(), message.Incoming{Inbound: "adt"}, []store.Plan{plan("admit")})
	f.must(err)
	if before := made[0].Before; before != 0 && before != between.ID {
		f.Errorf("run %d is said to come behind %d; %d stands between them", made[0].Run.ID, before, between.ID)
	}
}

// waiting is what waits for a name.
func (f *fixture) waiting(name string) (list []store.Waiting) {
	f.Helper()
	all, err := f.s.Waiting(f.ctx())
	f.must(err)
	for _, w := range all {
		if w.Name == name {
			list = append(list, w)
		}
	}
	return list
}

func testLanes(f *fixture) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	receive := func() message.ID {
		at = at.Add(time.Minute)
		id, err := f.s.Receive(f.ctx(), message.Incoming{Inbound: "adt", Body: []byte("x"), Received: at})
		f.must(err)
		return id
	}
	first, second := receive(), receive()
	f.route(first, plan("h", "a"), plan("other", "a"))
	f.route(second, plan("h", "a"))
	f.end(first, "other", sent([2]string{"a", "y"}))
	receive()
	list, err := f.s.Lanes(f.ctx())
	f.must(err)
	got := ""
	for _, l := range list {
		got += fmt.Sprint(l.Target, " ", l.Waiting, " ", l.Oldest.Format("15:04"))
		if l.Head != nil {
			got += fmt.Sprint(" ", l.Head.Name(), " ", l.Head.State, " ", l.Head.Body == nil)
		}
		got += "; "
	}
	equal(f, "lanes", got, fmt.Sprintf("inbound adt 1 03:07; handler h 2 03:05; outbound a, lane of adt 3 03:05 %s RESERVED true; ",
		message.Delivery{Message: first, Number: 1}.Name()))
}
