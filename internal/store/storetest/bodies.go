package storetest

import (
	"bytes"
	"context"
	"math/rand/v2"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// large makes a body of a size, no two parts of which are alike.
func large(size int) []byte {
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(size), byte(size >> 8)}).Read(b) // which never fails
	return b
}

// testLargeBodies: a store may take a large body apart, and has to put it together again whoever asks.
func testLargeBodies(f *fixture) {
	for _, size := range []int{256<<10 - 1, 256 << 10, 256<<10 + 1, 2 * 256 << 10, 3*256<<10 + 4567} {
		body := large(size)
		id, err := f.s.Receive(f.ctx(), message.Incoming{Inbound: "in", Body: body})
		f.must(err)
		f.wantBody("timeline", f.timeline(id).Message.Body, body)
		m, err := f.s.NextReceived(f.ctx(), "in")
		f.must(err)
		f.wantBody("next received", m.Body, body)
		f.route(id, plan("h", "out"))
		r, m := f.nextRun("h")
		f.wantBody("next run", m.Body, body)
		f.must(f.s.EndRun(f.ctx(), r.ID, message.Outcome{State: message.RunSent, Sends: []message.Send{{To: "out", Body: body}}}))
		f.wantBody("head", f.head("out").Body, body)
		f.delivered(f.head("out"))
		f.wantBody("delivery", f.timeline(id).Deliveries[0].Body, body)
	}
}

// testSizes: how large a body is, is known before it is read.
func testSizes(f *fixture) {
	inbound, handler := message.Target{Kind: message.KindInbound, Name: "in"}, handlerTarget("h")
	next := func(what string, of message.Target, want int) {
		f.Helper()
		n, err := f.s.NextSize(f.ctx(), of)
		f.must(err)
		equal(f, what, n, int64(want))
	}
	next("of an empty inbound", inbound, 0)
	next("of an idle handler", handler, 0)
	for _, size := range []int{1, 256 << 10, 256<<10 + 1, 600 << 10} {
		id, err := f.s.Receive(f.ctx(), message.Incoming{Inbound: "in", Body: large(size)})
		f.must(err)
		f.receive("in", "behind it")
		next("next received", inbound, size)
		f.route(id, plan("h", "out"))
		behind, err := f.s.NextReceived(f.ctx(), "in")
		f.must(err)
		f.route(behind.ID, plan("h", "out"))
		next("next run", handler, size)
		closed := f.head("out")
		n, err := f.s.DeliverySize(f.ctx(), closed.ID)
		f.must(err)
		equal(f, "of a place that is not filled", n, 0)
		f.end(id, "h", sent([2]string{"out", string(large(size + 7))}))
		head := f.head("out")
		n, err = f.s.DeliverySize(f.ctx(), head.ID)
		f.must(err)
		equal(f, "of a delivery", n, int64(size+7))
		f.delivered(head)
		f.end(behind.ID, "h", filtered(""))
	}
}

func (f *fixture) wantBody(what string, got, want []byte) {
	f.Helper()
	if !bytes.Equal(got, want) {
		f.Errorf("%s: a body of %d bytes came back as other %d bytes", what, len(want), len(got))
	}
}

// testLargeSends: what a run sends is committed all or none, however large. What could not be committed leaves nothing.
func testLargeSends(f *fixture) {
	own, other, small := large(600<<10), large(700<<10), []byte("small")
	id, err := f.s.Receive(f.ctx(), message.Incoming{Inbound: "in", Body: own})
	f.must(err)
	f.route(id, plan("h", "a", "b"))
	run := f.run(id, "h").ID
	stray := sent()
	stray.Sends = []message.Send{{To: "a", Body: other}, {To: "nowhere", Body: other}}
	f.wantRefused("a send outside of the plan", f.s.EndRun(f.ctx(), run, stray))
	canceled, cancel := context.WithCancel(f.ctx())
	cancel()
	good := sent()
	good.Sends = []message.Send{{To: "a", Body: other}, {To: "b", Body: own}, {To: "a", Body: small}, {To: "b", Body: other}}
	f.wantErr(f.s.EndRun(canceled, run, good), context.Canceled)
	f.must(f.s.EndRun(f.ctx(), run, good))
	f.wantErr(f.s.EndRun(f.ctx(), run, good), store.ErrStale)
	f.wantErr(f.s.EndRun(f.ctx(), run+1000, good), store.ErrNotFound)
	want := [][]byte{other, own, small, other}
	for i, d := range f.timeline(id).Deliveries {
		f.wantBody(d.Outbound, d.Body, want[i])
	}
}
