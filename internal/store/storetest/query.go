package storetest

import (
	"fmt"
	"maps"
	"time"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

func testTimeline(f *fixture) {
	id := f.routed("adt", "raw", plan("h", "a", "b"))
	other := f.routed("adt", "other", plan("h", "a"))
	out := sent([2]string{"a", "raw"}, [2]string{"a", "more"})
	out.Attempts, out.Code, out.Took = 2, "abcdef", 3*time.Millisecond+7
	out.Tags = map[string]string{"mrn": "1"}
	f.end(id, "h", out)
	f.delivered(f.head("a"))

	tl := f.timeline(id)
	equal(f, "body", string(tl.Message.Body), "raw")
	equal(f, "deliveries", show(tl.Deliveries), show([]message.Delivery{
		{Message: id, Number: 1, State: message.Delivered, Body: []byte("raw")},
		{Message: id, Number: 2, State: message.Closed},
		{Message: id, Number: 3, State: message.Ready, Body: []byte("more")},
	}))
	r := f.run(id, "h")
	equal(f, "run", fmt.Sprint(r.Message, r.State, r.Outcome.State, r.Outcome.Attempts, r.Outcome.Code, r.Outcome.Took, r.Outcome.Fault),
		fmt.Sprint(id, message.RunSent, message.RunSent, 2, "abcdef", out.Took, (*message.Fault)(nil)))
	if since := time.Since(r.Ended); since < -time.Second || since > time.Minute {
		f.Errorf("the run ended at %v", r.Ended)
	}
	brief, err := f.s.Outline(f.ctx(), id)
	f.must(err)
	tl.Message.Body = nil
	for i := range tl.Deliveries {
		tl.Deliveries[i].Body = nil
	}
	equal(f, "outline", fmt.Sprintf("%+v", brief), fmt.Sprintf("%+v", tl))
	equal(f, "runs of the other message", len(f.timeline(other).Runs), 1)
	equal(f, "tags of the other message", len(f.timeline(other).Tags), 0)
}

// A tag has one value: the last run that sets it wins, and what others set stays.
func testTags(f *fixture) {
	id := f.routed("adt", "x", plan("h1"), plan("h2"))
	one, two := sent(), failed("no")
	one.Tags = map[string]string{"mrn": "1", "visit": "", "name": "Łukasz"}
	two.Tags = map[string]string{"mrn": "2"}
	f.end(id, "h1", one)
	f.end(id, "h2", two)
	want := map[string]string{"mrn": "2", "visit": "", "name": "Łukasz"}
	if got := f.timeline(id).Tags; !maps.Equal(got, want) {
		f.Errorf("got tags %v, want %v", got, want)
	}
}

// testFilters asks every combination of filters and compares with a filter in Go.
func testFilters(f *fixture) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	inbounds := []string{"adt", "orm", "ad"}
	types := []string{"ADT^A01", "ADT^A08", "ORM^O01", "", "ADT\xff", "\xff\xff"}
	all := []message.Message{} // newest first
	for i := range 60 {
		in := message.Incoming{Inbound: inbounds[i%3], Type: types[i%len(types)], ControlID: fmt.Sprint("C", i%20),
			Received: start.Add(time.Duration(i) * time.Hour)}
		id, err := f.s.Receive(f.ctx(), in)
		f.must(err)
		switch i % 5 {
		case 0:
			f.route(id)
		case 1:
			f.must(f.s.FailRoute(f.ctx(), id, failed("x")))
		case 2:
			f.route(id, plan("h", "a"))
		case 3:
			f.route(id, plan("h", "b"))
			f.end(id, "h", sent([2]string{"b", "x"}))
			f.delivered(f.heads("b", 1)[0])
		}
		m := f.timeline(id).Message
		m.Body = nil
		all = append([]message.Message{m}, all...)
	}
	for _, inbound := range append(inbounds, "", "none") {
		for _, d := range append(message.Dispositions(), "") {
			for _, typ := range []string{"", "A", "ADT", "ADT^A0", "ADT^A08", "ADT^A080", "ADT\xff", "\xff", "Z"} {
				for _, control := range []string{"", "C1", "C19", "c"} {
					q := store.Query{Inbound: inbound, Disposition: d, Type: typ, ControlID: control}
					checkQuery(f, all, q)
					q.Since, q.Before, q.Limit = start.Add(9*time.Hour), all[5].ID, 7
					checkQuery(f, all, q)
				}
			}
		}
	}
	list, err := f.s.Messages(f.ctx(), store.Query{Limit: 1})
	f.must(err)
	equal(f, "a listed message", fmt.Sprintf("%+v", list[0]), fmt.Sprintf("%+v", all[0]))
}

// testTagFilters looks for messages by what their handlers tagged them with.
func testTagFilters(f *fixture) {
	var all []message.ID
	for _, tags := range []map[string]string{{"mrn": "12"}, {"mrn": "123", "visit": "12"}, {}, {"mrn": "2"}, {"mrn": "12"}} {
		out := sent()
		out.Tags = tags
		id := f.routed("adt", "x", plan("h"))
		f.end(id, "h", out)
		all = append(all, id)
	}
	for _, c := range []struct {
		q    store.Query
		want []int
	}{
		{store.Query{Tag: "mrn", TagValue: "12"}, []int{4, 0}},
		{store.Query{Tag: "mrn", TagValue: "12", TagPrefix: true}, []int{4, 1, 0}},
		{store.Query{Tag: "mrn", TagPrefix: true}, []int{4, 3, 1, 0}},
		{store.Query{Tag: "mrn", TagValue: "12", Limit: 1}, []int{4}},
		{store.Query{Tag: "mrn", TagValue: "12", Before: all[4]}, []int{0}},
		{store.Query{Tag: "visit", TagValue: "12", Inbound: "adt", Disposition: message.Filtered}, []int{1}},
		{store.Query{Tag: "visit", TagValue: "12", Inbound: "lab"}, nil},
		{store.Query{Tag: "mr", TagValue: "12"}, nil},
	} {
		got, err := f.s.Messages(f.ctx(), c.q)
		f.must(err)
		want := ""
		for _, i := range c.want {
			want += fmt.Sprintf(" %d", all[i])
		}
		equal(f, fmt.Sprintf("%+v", c.q), ids(got), want)
	}
}

// testTimes looks for messages by when they came, with a clock that was set back for some hours.
func testTimes(f *fixture) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	all := []message.Message{} // newest first
	for i := range 200 {
		at := start.Add(time.Duration(i) * time.Hour)
		if i >= 100 && i < 120 {
			at = at.Add(-20 * time.Hour)
		}
		id, err := f.s.Receive(f.ctx(), message.Incoming{Inbound: "adt", Body: []byte("x"), Received: at})
		f.must(err)
		all = append([]message.Message{{ID: id, Inbound: "adt", Received: at, Disposition: message.Received}}, all...)
	}
	for _, hours := range []int{-30, 0, 1, 79, 80, 99, 100, 105, 120, 199, 200, 300} {
		at := start.Add(time.Duration(hours) * time.Hour)
		for _, q := range []store.Query{{Since: at}, {Until: at}, {Since: at.Add(-30 * time.Hour), Until: at}, {Since: at, Inbound: "adt"}} {
			q.Limit = 1000
			checkQuery(f, all, q)
		}
	}
}

func checkQuery(f *fixture, all []message.Message, q store.Query) {
	f.Helper()
	got, err := f.s.Messages(f.ctx(), q)
	f.must(err)
	limit := q.Limit
	if limit == 0 {
		limit = 50
	}
	var want []message.Message
	for _, m := range all {
		if len(want) < limit && matches(m, q) {
			want = append(want, m)
		}
	}
	if ids(got) != ids(want) {
		f.Errorf("%+v: got %s, want %s", q, ids(got), ids(want))
	}
}

func matches(m message.Message, q store.Query) bool {
	prefix := func(s, p string) bool { return len(s) >= len(p) && s[:len(p)] == p }
	return (q.Inbound == "" || m.Inbound == q.Inbound) &&
		(q.Disposition == "" || m.Disposition == q.Disposition) &&
		prefix(m.Type, q.Type) && prefix(m.ControlID, q.ControlID) &&
		!m.Received.Before(q.Since) && (q.Until.IsZero() || m.Received.Before(q.Until)) &&
		(q.Before == 0 || m.ID < q.Before)
}

func testPaging(f *fixture) {
	var want []message.ID
	for range 23 {
		want = append([]message.ID{f.receive("adt", "x")}, want...)
	}
	var got []message.ID
	q := store.Query{Inbound: "adt", Limit: 5}
	for {
		page, err := f.s.Messages(f.ctx(), q)
		f.must(err)
		if len(page) == 0 {
			break
		}
		for _, m := range page {
			got = append(got, m.ID)
		}
		q.Before = page[len(page)-1].ID
	}
	equal(f, "pages", fmt.Sprint(got), fmt.Sprint(want))
}
