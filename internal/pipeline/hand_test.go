package pipeline

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/room"
)

// handsFull is a rig with many handlers and outbounds at work on large bodies at the same time.
func handsFull(r *rig, many, size int) (body string) {
	body = strings.Repeat("x", size)
	var names []string
	for n := range many {
		h, out := fmt.Sprint("h", n), fmt.Sprint("out", n)
		names = append(names, h)
		r.outbound(out, func(ctx context.Context, d message.Delivery) error {
			select {
			case <-time.After(time.Second): // of the bubble
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		r.handler(h, function(func(ctx context.Context, m *message.Message, _ int) (Answer, error) {
			select {
			case <-time.After(time.Second):
				return Answer{Sends: []message.Send{{To: out, Body: m.Body[:size/2]}}}, nil
			case <-ctx.Done():
				return Answer{}, ctx.Err()
			}
		}), out)
	}
	r.inbound("adt", nil, names...)
	return body
}

// What is in hand for dispatches and sends has a bound, under which everything comes to its end, and nothing stays taken. Red
// with reach always nil (more is in hand than there is room for), and without have.has(0) or h.has(0) in any of the three; with
// small ones, when read does not look at ample.
func TestHandsShareTheRoom(t *testing.T) {
	const many = 12
	for _, tt := range []struct{ size, most int }{
		// What handlers answer is there before it is counted: half of each message that may be in hand.
		{1 << 20, 4<<20 + 2<<20},
		// Work on small bodies never waits, but is on one at a time.
		{8 << 10, many * (8<<10 + 4<<10)},
	} {
		t.Run(fmt.Sprint(tt.size), func(t *testing.T) { testHandsShareTheRoom(t, many, tt.size, int64(tt.most)) })
	}
}

func testHandsShareTheRoom(t *testing.T, many, size int, most int64) {
	inTime(t, func(r *rig) {
		memory := room.New(int64(8*size), int64(size), nil)
		r.cfg.Room = memory
		body := handsFull(r, many, size)
		r.start()
		for range 4 {
			r.receive("adt", body)
		}
		for range 1000 {
			if u := memory.Used(); u.Work > most {
				t.Fatalf("%d bytes are in hand", u.Work)
			}
			r.pass(100 * time.Millisecond)
		}
		for n := range many {
			for id := range 4 {
				if name := (message.Delivery{Message: message.ID(id + 1), Number: n + 1}).Name(); r.saw("sent "+name) != 1 {
					t.Errorf("delivery %s is not sent once", name)
				}
			}
		}
		if u := memory.Used(); u != (room.Used{}) {
			t.Errorf("%+v is taken in the end", u)
		}
	})
}

// A stop ends those who wait for room at once, and what was in hand is given back. Red with Take's context that does not end.
func TestStopWhileHandsWait(t *testing.T) {
	inTime(t, func(r *rig) {
		memory := room.New(8<<20, 1<<20, nil)
		memory.Count(64 << 20) // of somebody who never gives it back
		r.cfg.Room = memory
		body := handsFull(r, 3, 1<<20)
		r.start()
		r.receive("adt", body)
		synctest.Wait()
		if u := memory.Used(); u.Work != 64<<20 {
			t.Errorf("%d bytes are in hand, want none beside the others'", u.Work-64<<20)
		}
		if took := r.stop(); took != 0 {
			t.Errorf("the stop took %v", took)
		}
		if u := memory.Used(); u.Work != 64<<20 {
			t.Errorf("%d bytes are taken in the end", u.Work-64<<20)
		}
	})
}
