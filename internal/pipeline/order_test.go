package pipeline

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"coppice.dev/coppice/internal/message"
)

// byType routes A01 to slow and everything else to fast.
func byType(_ context.Context, m *message.Message, _ int) (Answer, error) {
	if m.Type == "A01" {
		return Answer{Handlers: []string{"slow"}}, nil
	}
	return Answer{Handlers: []string{"fast"}}, nil
}

// TestNoOvertaking: a discharge that a fast handler has ready waits for the admission that a slow one is still at. Guards
// seen red: without the look at the state in pick, the reserved head goes out, empty; without the kick of the outbounds in
// handle, the lane stays where it is.
func TestNoOvertaking(t *testing.T) {
	for name, end := range map[string]struct {
		slow function
		took []string
	}{
		"sends":  {sendTo("emr"), []string{"A01", "A03"}},
		"drops":  {sendTo(), []string{"A03"}},
		"raises": {failing(fails(TheMessage, "handler", "E", "x")), []string{"A03"}},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(r *rig) {
				emr := r.outbound("emr", nil)
				r.handler("slow", end.slow.after(3*time.Second), "emr")
				r.handler("fast", sendTo("emr"), "emr")
				r.inbound("adt", function(byType))
				r.start()
				r.receive("adt", "A01", "A03")
				r.pass(2 * time.Second)
				emr.got(t)
				if d := r.delivery(2); d.State != message.Ready {
					t.Errorf("the delivery behind is %s", d.State)
				}
				r.pass(time.Second) // and not later: whatever ends the handler's work sets the lane free
				emr.got(t, end.took...)
			})
		})
	}
}

// TestStuckHandler: a handler that hangs delays the lanes that it may send to; all others keep their rate.
func TestStuckHandler(t *testing.T) {
	inTime(t, func(r *rig) {
		emr, archive := r.outbound("emr", nil), r.outbound("archive", nil)
		r.handler("slow", sendTo("emr").after(time.Hour), "emr")
		r.handler("fast", sendTo("emr"), "emr")
		r.handler("keep", sendTo("archive"), "archive")
		r.inbound("adt", function(func(ctx context.Context, m *message.Message, n int) (Answer, error) {
			a, err := byType(ctx, m, n)
			a.Handlers = append(a.Handlers, "keep")
			return a, err
		}))
		r.inbound("lab", nil, "fast")
		r.start()
		r.receive("adt", "A01", "A03", "A08")
		r.receive("lab", "R01", "R02")
		archive.got(t, "A01", "A03", "A08") // no time has passed
		emr.got(t, "R01", "R02")            // another inbound is another lane, through the same handler, too
		r.pass(time.Hour)
		emr.got(t, "R01", "R02", "A01", "A03", "A08")
	})
}

// TestLanesFailApart: a delivery that waits for its retry delays its own lane alone. Guard seen red: with pick looking at
// the first head alone, R01 waits for A01.
func TestLanesFailApart(t *testing.T) {
	inTime(t, func(r *rig) {
		var up atomic.Bool
		emr := r.outbound("emr", func(_ context.Context, d message.Delivery) error {
			if d.Inbound == "adt" && !up.Load() {
				return context.DeadlineExceeded
			}
			return nil
		})
		r.handler("pass", sendTo("emr"), "emr")
		r.inbound("adt", nil, "pass")
		r.inbound("lab", nil, "pass")
		r.start()
		r.receive("adt", "A01", "A03")
		r.receive("lab", "R01", "R02")
		emr.got(t, "R01", "R02")
		up.Store(true)
		r.pass(time.Second)
		emr.got(t, "R01", "R02", "A01", "A03")
	})
}

// TestSecondSendKeepsItsPlace: all that a handler sends to one outbound goes out before the next message's.
func TestSecondSendKeepsItsPlace(t *testing.T) {
	inTime(t, func(r *rig) {
		emr := r.outbound("emr", nil)
		r.handler("slow", sendTo("emr", "emr", "emr").after(time.Second), "emr")
		r.handler("fast", sendTo("emr", "emr"), "emr")
		r.inbound("adt", function(byType))
		r.start()
		r.receive("adt", "A01", "A03")
		r.pass(time.Second)
		emr.got(t, "A01", "A01", "A01", "A03", "A03")
	})
}

// TestOneOfTenLoops: a handler that loops on every message until its deadline takes nothing from nine others with outbounds of their
// own: they have delivered all of a hundred messages before it is through with the first. Red with all handlers run by one loop.
func TestOneOfTenLoops(t *testing.T) {
	inTime(t, func(r *rig) {
		var peers []*peer
		var names, want []string
		for n := range 10 {
			name := fmt.Sprint("h", n)
			names = append(names, name)
			peers = append(peers, r.outbound("to-"+name, nil))
			run := sendTo("to-" + name)
			if n == 4 {
				run = failing(fails(TheWorker, "deadline", "", "no answer by the deadline")).after(5 * time.Second)
			}
			r.handler(name, run, "to-"+name)
		}
		r.inbound("adt", nil, names...)
		r.start()
		for n := range 100 {
			want = append(want, fmt.Sprint(n))
			r.receive("adt", fmt.Sprint(n))
		}
		r.pass(time.Second)
		for n, p := range peers {
			if n == 4 {
				p.got(t)
			} else {
				p.got(t, want...)
			}
		}
		r.pass(time.Hour)
		r.is(100, message.Error, "poison: no answer by the deadline (2 attempts)")
	})
}
