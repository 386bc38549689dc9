package storetest

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

func testRetry(f *fixture) {
	id, err := f.s.Receive(f.ctx(), message.Incoming{Inbound: "adt", Body: []byte("x"), Type: "ADT^A08", ControlID: "17"})
	f.must(err)
	f.route(id, plan("h", "a"))
	f.end(id, "h", sent([2]string{"a", "x"}))
	behind := f.routed("adt", "y", plan("h", "a"))
	f.end(behind, "h", sent([2]string{"a", "y"}))

	d := f.head("a")
	show := func(d message.Delivery) string {
		return fmt.Sprint(d.Name(), " ", d.State, " attempts ", d.Attempts, " rejected ", d.Rejected, " next ", d.NextTry, " ",
			d.Reason, "|", d.Receipt, " ", d.Type, " ", d.Control, " ", d.Handler)
	}
	equal(f, "fresh", show(d), fmt.Sprintf("%s READY attempts 0 rejected 0 next %v | ADT^A08 17 h", d.Name(), time.Time{}))
	next := time.Date(2026, 1, 2, 3, 4, 5, 678000, time.UTC)
	f.must(f.s.Retry(f.ctx(), d.ID, "connection\nrefused", false, next))
	f.must(f.s.Retry(f.ctx(), d.ID, "AE", true, next))
	equal(f, "after two tries", show(f.head("a")),
		fmt.Sprintf("%s READY attempts 2 rejected 1 next %v AE| ADT^A08 17 h", d.Name(), next))
	f.wantDisposition(id, message.Routed, "")
	f.must(f.s.Retry(f.ctx(), d.ID, "busy", false, time.Time{}))
	f.must(f.s.Delivered(f.ctx(), d.ID, message.Receipt{Text: "AA\r\n"}))
	d = f.timeline(id).Deliveries[0]
	equal(f, "delivered", show(d), fmt.Sprintf("%s DONE attempts 4 rejected 1 next %v busy|AA ADT^A08 17 h", d.Name(), time.Time{}))
	equal(f, "it has an end", d.Ended.IsZero(), false)

	f.wantHead("a", behind, 1, message.Ready, "y")
	f.must(f.s.Bury(f.ctx(), f.head("a").ID, "AR: no such patient"))
	d = f.timeline(behind).Deliveries[0]
	equal(f, "buried", show(d), fmt.Sprintf("%s DEAD attempts 1 rejected 1 next %v AR: no such patient|   h", d.Name(), time.Time{}))
	equal(f, "it has an end", d.Ended.IsZero(), false)
	equal(f, "heads of a", len(f.heads("a", 1)), 0)
}

// part is how one handler's part of a message ends.
type part string

const (
	partFiltered part = "filtered"
	partNothing  part = "sent nothing"
	partFailed   part = "failed"
	partDone     part = "delivered"
	partDead     part = "buried"
)

// testDispositions ends messages in every combination of up to three parts: the message stands at ROUTED until the last
// part has ended, and then where the rule says.
func testDispositions(f *fixture) {
	kinds := []part{partFiltered, partNothing, partFailed, partDone, partDead}
	f.wantDisposition(f.routed("adt", "x"), message.Unrouted, "")
	for _, a := range kinds {
		endParts(f, a)
		for _, b := range kinds {
			endParts(f, a, b)
			endParts(f, a, b, partDone)
		}
	}
}

func endParts(f *fixture, parts ...part) {
	f.Helper()
	var plans []store.Plan
	has := map[part]bool{}
	for i, p := range parts {
		plans = append(plans, plan(fmt.Sprint("h", i), fmt.Sprint("out", i)))
		has[p] = true
	}
	id := f.routed("adt", "x", plans...)
	for i, p := range parts {
		handler, out := plans[i].Handler, plans[i].To[0]
		f.wantDisposition(id, message.Routed, "")
		switch p {
		case partFiltered:
			f.end(id, handler, filtered(""))
		case partNothing:
			f.end(id, handler, sent())
		case partFailed:
			f.end(id, handler, failed(""))
		case partDone, partDead:
			f.end(id, handler, sent([2]string{out, "y"}))
			f.wantDisposition(id, message.Routed, "")
			if p == partDone {
				f.delivered(f.head(out))
			} else {
				f.must(f.s.Bury(f.ctx(), f.head(out).ID, ""))
			}
		}
	}
	want := message.Filtered
	switch {
	case has[partFailed] || has[partDead]:
		want = message.Error
	case has[partDone]:
		want = message.Processed
	}
	m := f.timeline(id).Message
	equal(f, fmt.Sprint(parts), m.Disposition, want)
	equal(f, fmt.Sprint(parts, " has an end"), m.Ended.IsZero(), false)
}

// The reason is one line of the first part that failed, runs before deliveries, else of the first that filtered.
func testReasons(f *fixture) {
	id := f.routed("adt", "x", plan("h1"), plan("h2"), plan("h3"))
	f.end(id, "h3", filtered("third"))
	f.end(id, "h1", sent())
	f.end(id, "h2", filtered("second"))
	f.wantDisposition(id, message.Filtered, "second")

	id = f.routed("adt", "x", plan("h1", "a", "b"), plan("h2"), plan("h3"))
	f.end(id, "h1", sent([2]string{"a", "1"}, [2]string{"b", "1"}))
	f.must(f.s.Bury(f.ctx(), f.head("b").ID, "dead at b"))
	f.must(f.s.Bury(f.ctx(), f.head("a").ID, "dead at a"))
	f.end(id, "h2", filtered("no"))
	f.end(id, "h3", filtered("no"))
	f.wantDisposition(id, message.Error, "dead at a")

	id = f.routed("adt", "x", plan("h1", "a"), plan("h2"))
	f.end(id, "h1", sent([2]string{"a", "1"}))
	f.must(f.s.Bury(f.ctx(), f.head("a").ID, "dead at a"))
	f.end(id, "h2", failed("line 1\r\nline\t2\x00\x1b[31m"+strings.Repeat("é", 1000)+"\xff"))
	m := f.timeline(id).Message
	if !strings.HasPrefix(m.Reason, "line 1  line 2  [31mé") || len(m.Reason) > 300 || len(m.Reason) < 290 ||
		!utf8.ValidString(m.Reason) {
		f.Errorf("the reason is %d bytes, %q", len(m.Reason), m.Reason)
	}
	// The fault itself is kept whole.
	if text := f.run(id, "h2").Outcome.Fault.Text; !strings.HasSuffix(text, "\xff") {
		f.Errorf("the fault's text ends in %q", text[len(text)-5:])
	}
}

func testStale(f *fixture) {
	id := f.routed("adt", "x", plan("h", "a", "b"))
	f.wantErr(f.s.Route(f.ctx(), id, nil, message.Outcome{State: message.RunSent}), store.ErrStale)
	f.wantErr(f.s.FailRoute(f.ctx(), id, failed("")), store.ErrStale)
	run := f.run(id, "h").ID
	f.end(id, "h", sent([2]string{"a", "x"}, [2]string{"b", "x"}))
	f.wantErr(f.s.EndRun(f.ctx(), run, filtered("")), store.ErrStale)
	a, b := f.head("a"), f.head("b")
	f.delivered(a)
	f.must(f.s.Bury(f.ctx(), b.ID, "no"))
	for _, d := range []message.Delivery{a, b} {
		f.wantErr(f.s.Delivered(f.ctx(), d.ID, message.Receipt{}), store.ErrStale)
		f.wantErr(f.s.Retry(f.ctx(), d.ID, "", true, time.Time{}), store.ErrStale)
		f.wantErr(f.s.Bury(f.ctx(), d.ID, "again"), store.ErrStale)
	}
	f.wantDisposition(id, message.Error, "no")

	closed := f.routed("adt", "x", plan("h", "a"))
	f.end(closed, "h", filtered(""))
	f.wantErr(f.s.Delivered(f.ctx(), f.timeline(closed).Deliveries[0].ID, message.Receipt{}), store.ErrStale)

	router := f.receive("adt", "x")
	f.must(f.s.FailRoute(f.ctx(), router, failed("")))
	f.wantErr(f.s.EndRun(f.ctx(), f.run(router, "").ID, filtered("")), store.ErrStale)
}

func testNotFound(f *fixture) {
	const none = 12345
	_, err := f.s.Timeline(f.ctx(), none)
	f.wantErr(err, store.ErrNotFound)
	_, err = f.s.Outline(f.ctx(), none)
	f.wantErr(err, store.ErrNotFound)
	_, err = f.s.DeliveryBody(f.ctx(), none)
	f.wantErr(err, store.ErrNotFound)
	_, err = f.s.DeliverySize(f.ctx(), none)
	f.wantErr(err, store.ErrNotFound)
	f.wantErr(f.s.Route(f.ctx(), none, nil, message.Outcome{State: message.RunSent}), store.ErrNotFound)
	f.wantErr(f.s.FailRoute(f.ctx(), none, failed("")), store.ErrNotFound)
	f.wantErr(f.s.EndRun(f.ctx(), none, filtered("")), store.ErrNotFound)
	f.wantErr(f.s.Delivered(f.ctx(), none, message.Receipt{}), store.ErrNotFound)
	f.wantErr(f.s.Retry(f.ctx(), none, "", false, time.Time{}), store.ErrNotFound)
	f.wantErr(f.s.Bury(f.ctx(), none, ""), store.ErrNotFound)
	equal(f, "heads of nothing", len(f.heads("nothing", 1)), 0)
}

func testClosed(f *fixture) {
	id := f.routed("adt", "x", plan("h", "a"))
	f.must(f.s.Close())
	ctx := f.ctx()
	errs := map[string]error{
		"Refuse":    f.s.Refuse(ctx, message.Refusal{}),
		"Route":     f.s.Route(ctx, id, nil, message.Outcome{State: message.RunSent}),
		"FailRoute": f.s.FailRoute(ctx, id, failed("")),
		"EndRun":    f.s.EndRun(ctx, 1, filtered("")),
		"Delivered": f.s.Delivered(ctx, 1, message.Receipt{}),
		"Retry":     f.s.Retry(ctx, 1, "", false, time.Time{}),
		"Bury":      f.s.Bury(ctx, 1, ""),
		"Close":     f.s.Close(),
	}
	_, errs["Receive"] = f.s.Receive(ctx, message.Incoming{})
	_, errs["ReceiveAll"] = f.s.ReceiveAll(ctx, []message.Incoming{{}})
	_, _, errs["Seen"] = f.s.Seen(ctx, message.Source{})
	_, errs["NextReceived"] = f.s.NextReceived(ctx, "adt")
	_, errs["NextRuns"] = f.s.NextRuns(ctx, "h", 1, 0)
	errs["KeepOrder"] = f.s.KeepOrder(ctx, "a", false)
	_, errs["Ready"] = f.s.Ready(ctx, "a", 1)
	_, _, errs["StillReady"] = f.s.StillReady(ctx, 1)
	_, errs["Heads"] = f.s.Heads(ctx, "a", 1)
	_, errs["DeliveryBody"] = f.s.DeliveryBody(ctx, 1)
	_, errs["NextSize"] = f.s.NextSize(ctx, handlerTarget("h"))
	_, errs["DeliverySize"] = f.s.DeliverySize(ctx, 1)
	_, errs["Purgeable"] = f.s.Purgeable(ctx, store.PurgeRequest{})
	_, errs["Purge"] = f.s.Purge(ctx, store.PurgeRequest{})
	_, errs["Outline"] = f.s.Outline(ctx, id)
	_, errs["Unfinished"] = f.s.Unfinished(ctx)
	_, errs["Waiting"] = f.s.Waiting(ctx)
	_, errs["Messages"] = f.s.Messages(ctx, store.Query{})
	_, errs["Timeline"] = f.s.Timeline(ctx, id)
	_, errs["Counts"] = f.s.Counts(ctx)
	_, errs["Refusals"] = f.s.Refusals(ctx, 1)
	errs["Extend"] = f.s.Extend(ctx, store.Plan{Handler: "h"})
	equal(f, "methods", len(errs), 30)
	for method, err := range errs {
		if err == nil {
			f.Errorf("%s works after Close", method)
			continue
		}
		f.wantErr(err, store.ErrClosed)
	}
}
