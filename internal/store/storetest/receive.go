package storetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

func testReceive(f *fixture) {
	at := time.Date(2026, 3, 4, 5, 6, 7, 891000, time.UTC)
	in := message.Incoming{Inbound: "adt", Body: []byte("MSH|"), Peer: "10.0.0.1:999", Type: "ADT^A01", ControlID: "42",
		Received: at}
	id, err := f.s.Receive(f.ctx(), in)
	f.must(err)
	m := f.timeline(id).Message
	want := message.Message{ID: id, Inbound: "adt", Peer: "10.0.0.1:999", Type: "ADT^A01", ControlID: "42", Received: at,
		Size: 4, SHA256: fmt.Sprintf("%x", sha256.Sum256(in.Body)), Disposition: message.Received, Body: in.Body}
	equal(f, "message", fmt.Sprintf("%+v", m), fmt.Sprintf("%+v", want))
	equal(f, "zone", m.Received.Location(), time.UTC)

	for range 10 {
		next := f.receive("adt", "x")
		if next <= id {
			f.Fatalf("id %d came after id %d", next, id)
		}
		id = next
	}
	n, err := f.s.Unfinished(f.ctx())
	f.must(err)
	equal(f, "unfinished", n, 11)
}

// Every byte, none at all, and more than a page of them. Nil and empty are the same body, and never nil when asked for.
func testReceiveKeepsBytes(f *fixture) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for _, body := range [][]byte{nil, {}, {0}, all, []byte("\ufeffMSH|^~\\&\r\n"), bytes.Repeat(all, 5000)} {
		id, err := f.s.Receive(f.ctx(), message.Incoming{Inbound: "raw", Body: body})
		f.must(err)
		got := f.timeline(id).Message
		if !bytes.Equal(got.Body, body) || got.Body == nil {
			f.Errorf("a body of %d bytes came back as %d bytes (nil: %v)", len(body), len(got.Body), got.Body == nil)
		}
		equal(f, "size", got.Size, int64(len(body)))
	}
}

func testNextReceived(f *fixture) {
	next := func(inbound string) string {
		m, err := f.s.NextReceived(f.ctx(), inbound)
		f.must(err)
		if m == nil {
			return "none"
		}
		return fmt.Sprintf("%d %s %s", m.ID, m.Disposition, m.Body)
	}
	equal(f, "in an empty store", next("a"), "none")
	a1, b1, a2 := f.receive("a", "one"), f.receive("b", "two"), f.receive("a", "three")
	equal(f, "next of a", next("a"), fmt.Sprintf("%d RECEIVED one", a1))
	equal(f, "next of b", next("b"), fmt.Sprintf("%d RECEIVED two", b1))
	f.route(a1, plan("h"))
	equal(f, "next of a", next("a"), fmt.Sprintf("%d RECEIVED three", a2))
	f.route(a2)
	equal(f, "next of a", next("a"), "none")
	equal(f, "next of nobody", next("c"), "none")
}

func testSeen(f *fixture) {
	src := message.Source{Path: "/in/a.hl7", Size: 3, ModTime: time.Date(2026, 1, 2, 3, 4, 5, 6789, time.UTC), SHA256: "ab"}
	seen := func(s message.Source) string {
		id, ok, err := f.s.Seen(f.ctx(), s)
		f.must(err)
		return fmt.Sprint(id, ok)
	}
	equal(f, "before", seen(src), "0 false")
	id, err := f.s.Receive(f.ctx(), message.Incoming{Inbound: "file", Body: []byte("abc"), File: &src})
	f.must(err)
	equal(f, "after", seen(src), fmt.Sprint(id, true))

	for _, change := range []func(*message.Source){
		func(s *message.Source) { s.Path += "x" },
		func(s *message.Source) { s.Size++ },
		func(s *message.Source) { s.ModTime = s.ModTime.Add(time.Second) },
		func(s *message.Source) { s.SHA256 = "cd" },
	} {
		other := src
		change(&other)
		equal(f, fmt.Sprintf("another file, %+v", other), seen(other), "0 false")
	}

	// The same file once more is a message of its own; the file stays with the first.
	_, err = f.s.Receive(f.ctx(), message.Incoming{Inbound: "file", Body: []byte("abc"), File: &src})
	f.must(err)
	equal(f, "after the second", seen(src), fmt.Sprint(id, true))
}

func testRefusals(f *fixture) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for i := range 5 {
		f.must(f.s.Refuse(f.ctx(), message.Refusal{Inbound: "adt", Peer: "p", Reason: fmt.Sprintf("no header %d\nat all", i),
			Size: int64(i), At: at}))
	}
	list, err := f.s.Refusals(f.ctx(), 2)
	f.must(err)
	want := []message.Refusal{
		{Inbound: "adt", Peer: "p", Reason: "no header 4 at all", Size: 4, At: at},
		{Inbound: "adt", Peer: "p", Reason: "no header 3 at all", Size: 3, At: at},
	}
	equal(f, "the newest two", fmt.Sprint(list), fmt.Sprint(want))
	counts, err := f.s.Counts(f.ctx())
	f.must(err)
	equal(f, "messages", counts[message.Received], 0)
}

// Ids are unique, and a message that was received after another was acknowledged has the higher one.
func testProducers(f *fixture) {
	const producers, each = 8, 40
	var acknowledged atomic.Int64 // the highest id so far
	var mu sync.Mutex
	all := map[message.ID]bool{}
	var wg sync.WaitGroup
	for p := range producers {
		wg.Go(func() {
			for i := range each {
				before := acknowledged.Load()
				id, err := f.s.Receive(f.ctx(), message.Incoming{Inbound: fmt.Sprint(p), Body: fmt.Append(nil, i)})
				if err != nil || int64(id) <= before {
					f.Errorf("producer %d: got id %d, %v after %d was acknowledged", p, id, err, before)
					return
				}
				for old := before; old < int64(id) && !acknowledged.CompareAndSwap(old, int64(id)); {
					old = acknowledged.Load()
				}
				mu.Lock()
				all[id] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	equal(f, "ids", len(all), producers*each)
	for p := range producers {
		for i := range each {
			m, err := f.s.NextReceived(f.ctx(), fmt.Sprint(p))
			f.must(err)
			if m == nil {
				f.Fatalf("producer %d: message %d is missing", p, i)
			}
			equal(f, fmt.Sprintf("message %d of producer %d", i, p), string(m.Body), fmt.Sprint(i))
			f.route(m.ID)
		}
	}
}

func testCanceledContext(f *fixture) {
	ctx, cancel := context.WithCancel(f.ctx())
	cancel()
	_, err := f.s.Receive(ctx, message.Incoming{Inbound: "a"})
	f.wantErr(err, context.Canceled)
	if errors.Is(err, store.ErrUnknown) {
		f.Errorf("a call that never began has an unknown outcome: %v", err)
	}
	n, err := f.s.Unfinished(f.ctx())
	f.must(err)
	equal(f, "messages", n, 0)
}

// A message that comes again within its time, with the same control id and the same bytes by the same inbound, is not received
// again; whatever differs in one of these is another one.
func testDuplicates(f *fixture) {
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	in := message.Incoming{Inbound: "adt", Body: []byte("MSH|"), ControlID: "42", Received: at, Once: time.Hour}
	first, err := f.s.Receive(f.ctx(), in)
	f.must(err)
	again := in
	again.Received = at.Add(time.Hour)
	again.File = &message.Source{Path: "/in/a.hl7", Size: 4, SHA256: "x"}
	for range 2 {
		id, err := f.s.Receive(f.ctx(), again)
		f.wantErr(err, message.ErrDuplicate)
		equal(f, "the message that it repeats", id, first)
	}
	equal(f, "how often it came again", f.timeline(first).Message.Duplicates, 2)
	id, seen, err := f.s.Seen(f.ctx(), *again.File)
	f.must(err)
	equal(f, "the file of a duplicate", fmt.Sprint(id, seen), fmt.Sprint(first, true))

	renamed := in
	renamed.Inbound, renamed.Was = "admissions", []string{"patients", "adt"}
	_, err = f.s.Receive(f.ctx(), renamed)
	f.wantErr(err, message.ErrDuplicate)
	early := in // while the clock was wrong
	early.Inbound, early.Received = "lab", at.Add(-24*time.Hour)
	_, err = f.s.Receive(f.ctx(), early)
	f.must(err)
	_, err = f.s.Receive(f.ctx(), in)
	f.wantErr(err, message.ErrDuplicate)

	for what, change := range map[string]func(*message.Incoming){
		"bytes":      func(in *message.Incoming) { in.Body = []byte("MSH^") },
		"control id": func(in *message.Incoming) { in.ControlID = "43" },
		"no id":      func(in *message.Incoming) { in.ControlID = "" },
		"inbound":    func(in *message.Incoming) { in.Inbound = "lab" },
		"later":      func(in *message.Incoming) { in.Received = at.Add(time.Hour + time.Microsecond) },
		"not asked":  func(in *message.Incoming) { in.Once = 0 },
	} {
		other := in
		change(&other)
		id, err := f.s.Receive(f.ctx(), other)
		if err != nil || id == first {
			f.Errorf("another one, by its %s: received as %d, %v", what, id, err)
		}
	}
}

// testReceiveRouted: a message that needs no router is routed when it is received, unless its inbound is held or another one
// waits there. Red with mayRoute's question left out, and with either part of it.
func testReceiveRouted(f *fixture) {
	receive := func(inbound string, want bool, plans ...store.Plan) message.ID {
		f.Helper()
		id, runs, err := f.s.ReceiveRouted(f.ctx(), message.Incoming{Inbound: inbound, Body: []byte("x")}, plans)
		f.must(err)
		equal(f, "routed", len(runs) > 0, want)
		return id
	}
	id := receive("adt", true, plan("h1", "a", "b"), plan("h2", "b"))
	f.wantDisposition(id, message.Routed, "")
	equal(f, "runs", len(f.timeline(id).Runs), 2)
	f.wantHead("b", id, 2, message.Reserved, "")

	waits := receive("adt", false)
	f.wantDisposition(waits, message.Received, "")
	behind := receive("adt", false, plan("h1", "a"))
	receive("lab", true, plan("h1", "a"))
	f.route(waits)
	f.route(behind, plan("h1", "a"))
	receive("adt", true, plan("h1", "a"))

	f.must(f.s.Hold(f.ctx(), message.Hold{Target: message.Target{Kind: message.KindInbound, Name: "adt"}, Reason: "by hand"}))
	held := receive("adt", false, plan("h1", "a"))
	f.wantDisposition(held, message.Received, "")

	// Each run is said to come behind the one that was made before it, whoever made that.
	last := map[string]int64{}
	for range 3 {
		_, runs, err := f.s.ReceiveRouted(f.ctx(), message.Incoming{Inbound: "lab", Body: []byte("x")}, []store.Plan{plan("h3", "a"), plan("h4")})
		f.must(err)
		equal(f, "runs", len(runs), 2)
		for _, p := range runs {
			equal(f, "before "+p.Run.Handler, p.Before, last[p.Run.Handler])
			last[p.Run.Handler] = p.Run.ID
		}
		last["h4"] = f.run(f.routed("orm", "y", plan("h4")), "h4").ID
	}

	_, _, err := f.s.ReceiveRouted(f.ctx(), message.Incoming{Inbound: "lab"}, []store.Plan{plan("h", "a"), plan("h", "b")})
	f.wantRefused("a handler planned twice", err)
	again := message.Incoming{Inbound: "once", Body: []byte("x"), ControlID: "1", Once: time.Hour}
	for _, want := range []error{nil, message.ErrDuplicate} {
		_, runs, err := f.s.ReceiveRouted(f.ctx(), again, []store.Plan{plan("h1", "a")})
		f.wantErr(err, want)
		equal(f, "routed", len(runs) > 0, want == nil)
	}
}

// Several messages are received together in their order; each is a message of its own, large or not, and the file that they came
// in is known as the first of them. Duplicates are told in their places, also of one another.
func testReceiveAll(f *fixture) {
	before := f.receive("adt", "x")
	src := message.Source{Path: "/in/batch.hl7", Size: 9, ModTime: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), SHA256: "ab"}
	bodies := [][]byte{[]byte("one"), large(300 << 10), {}, large(700 << 10), []byte("five")}
	var all []message.Incoming
	for i, body := range bodies {
		all = append(all, message.Incoming{Inbound: "lab", Body: body, Peer: "p", Type: "ORU^R01", ControlID: fmt.Sprint(i), Once: time.Hour,
			Received: time.Date(2026, 3, 4, 5, 6, i, 0, time.UTC)})
	}
	all[0].File = &src
	taken, err := f.s.ReceiveAll(f.ctx(), all)
	f.must(err)
	equal(f, "messages", len(taken), len(all))
	last := before
	for i, t := range taken {
		m := f.timeline(t.ID).Message
		if t.ID <= last || t.Duplicate || m.ControlID != all[i].ControlID || !m.Received.Equal(all[i].Received) {
			f.Errorf("message %d of them is %+v, %+v, behind %d", i, t, m, last)
		}
		f.wantBody("one of them", m.Body, bodies[i])
		last = t.ID
	}
	id, seen, err := f.s.Seen(f.ctx(), src)
	f.must(err)
	equal(f, "the file", fmt.Sprint(id, seen), fmt.Sprint(taken[0].ID, true))

	fresh := all[0]
	fresh.ControlID, fresh.File = "new", nil
	again, err := f.s.ReceiveAll(f.ctx(), []message.Incoming{all[3], fresh, fresh})
	f.must(err)
	next := last + 1
	equal(f, "again", fmt.Sprint(again), fmt.Sprint([]message.Taken{{ID: taken[3].ID, Duplicate: true}, {ID: next}, {ID: next, Duplicate: true}}))
	none, err := f.s.ReceiveAll(f.ctx(), nil)
	f.must(err)
	equal(f, "none", len(none), 0)
}

// Where one of them cannot be received, none is, and nothing is left of them.
func testReceiveAllOrNone(f *fixture) {
	src := message.Source{Path: "/in/batch.hl7", SHA256: "ab"}
	all := []message.Incoming{
		{Inbound: "lab", Body: []byte("one"), File: &src}, {Inbound: "lab", Body: large(300 << 10)}, {Inbound: "lab", Body: []byte("three"), Resubmits: 99},
	}
	_, err := f.s.ReceiveAll(f.ctx(), all)
	f.wantErr(err, store.ErrNotFound)
	canceled, cancel := context.WithCancel(f.ctx())
	cancel()
	_, err = f.s.ReceiveAll(canceled, all[:2])
	f.wantErr(err, context.Canceled)
	n, err := f.s.Unfinished(f.ctx())
	f.must(err)
	equal(f, "messages", n, 0)
	_, seen, err := f.s.Seen(f.ctx(), src)
	f.must(err)
	equal(f, "the file is known", seen, false)
}
