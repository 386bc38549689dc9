package mllp

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/connect/connecttest"
	"coppice.dev/coppice/internal/hl7"
)

// desk is a receiver that answers when it is told to, and knows by which connection each message came.
type desk struct {
	addr   string
	came   chan string            // control ids
	answer map[string]chan string // by control id: a code, or HangUp

	mu          sync.Mutex
	connections int
	by          map[string]int // by control id: the connection's number, from 1
	busy        map[int]bool   // connections on which a message waits for its answer
	twice       bool           // a message came on a connection that was busy
}

func newDesk(t *testing.T, ids ...string) *desk {
	t.Helper()
	d := &desk{came: make(chan string, 100), answer: map[string]chan string{}, by: map[string]int{}, busy: map[int]bool{}}
	for _, id := range ids {
		d.answer[id] = make(chan string, 1)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d.addr = l.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		for n := 1; ; n++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			d.mu.Lock()
			d.connections = n
			d.mu.Unlock()
			all.Go(func() {
				defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
				defer conn.Close()
				d.serve(ctx, conn, n)
			})
		}
	})
	t.Cleanup(func() { stop(); _ = l.Close(); all.Wait() })
	return d
}

// serve reads while it answers, so that it sees what comes too early.
func (d *desk) serve(ctx context.Context, conn net.Conn, n int) {
	blocks := newFrameReader(conn, DefaultMaxMessage)
	var answers sync.WaitGroup
	defer answers.Wait()
	for blocks.begin() == nil {
		body, err := blocks.body()
		if err != nil {
			return
		}
		h, _ := hl7.ParseHeader(body)
		d.mu.Lock()
		d.twice = d.twice || d.busy[n]
		d.busy[n], d.by[h.ControlID] = true, n
		d.mu.Unlock()
		d.came <- h.ControlID
		answers.Go(func() {
			select {
			case code := <-d.answer[h.ControlID]:
				d.mu.Lock()
				d.busy[n] = false
				d.mu.Unlock()
				if code == HangUp {
					_ = conn.Close()
				} else {
					_, _ = conn.Write(answer(code, h.ControlID, ""))
				}
			case <-ctx.Done():
			}
		})
	}
}

func (d *desk) await(t *testing.T, n int) (ids []string) {
	t.Helper()
	for range n {
		select {
		case id := <-d.came:
			ids = append(ids, id)
		case <-time.After(connecttest.Patience):
			t.Fatalf("only %v came", ids)
		}
	}
	return ids
}

// TestParallel: as many messages are out as there may be connections, each on its own, and the next one waits for one of them; a
// connection on which an answer fails is dropped, and no other; what comes one by one goes over one connection. Red with a larger turns,
// with take leaving the client in idle, with idle kept after an error, and with the first of idle taken in place of the last.
func TestParallel(t *testing.T) {
	ids := strings.Fields("a b c d e f g h")
	d := newDesk(t, ids...)
	o := outbound(t, OutboundConfig{Connect: d.addr, Parallel: 3})
	results := make(chan error, len(ids))
	send := func(id string) {
		_, err := o.Send(t.Context(), connecttest.Delivery(1, adt(id)))
		results <- err
	}
	for _, id := range ids[:3] {
		go send(id)
	}
	first := d.await(t, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := o.Send(ctx, connecttest.Delivery(1, adt("h"))); !errors.Is(err, context.DeadlineExceeded) || len(d.came) > 0 {
		t.Fatalf("a fourth one: %v, %d came", err, len(d.came))
	}
	go send(ids[3])
	d.answer[first[0]] <- HangUp
	if err := <-results; err == nil {
		t.Error("no error of a connection that was hung up on")
	}
	last := d.await(t, 1)
	for _, id := range append(last, first[1:]...) {
		d.answer[id] <- hl7.AA
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if len(o.idle) != 3 {
		t.Errorf("%d are idle, want 3", len(o.idle))
	}
	for _, id := range ids[4:7] {
		d.answer[id] <- hl7.AA
		go send(id)
		d.await(t, 1)
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.connections != 4 || d.by["e"] != d.by["f"] || d.by["f"] != d.by["g"] {
		t.Errorf("one by one they went over connections %v", d.by)
	}
	if d.twice {
		t.Error("two were out on one connection")
	}
}

// TestParallelTimeout: a timeout drops its own connection, and the others go on; a close ends them all. Red with Close taking one turn.
func TestParallelTimeout(t *testing.T) {
	ids := strings.Fields("late a b")
	d := newDesk(t, ids...)
	o := outbound(t, OutboundConfig{Connect: d.addr, Parallel: 2, AckTimeout: 300 * time.Millisecond})
	late := make(chan error, 1)
	go func() {
		_, err := o.Send(t.Context(), connecttest.Delivery(1, adt("late")))
		late <- err
	}()
	d.await(t, 1)
	d.answer["a"] <- hl7.AA
	if _, err := o.Send(t.Context(), connecttest.Delivery(2, adt("a"))); err != nil {
		t.Error(err)
	}
	if err := <-late; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the late one: %v", err)
	}
	if len(o.idle) != 1 {
		t.Errorf("%d connections are kept, want the one that was answered on", len(o.idle))
	}
	d.answer["late"] <- hl7.AA // to whom nobody listens
	closed := make(chan error, 1)
	go func() {
		_, err := o.Send(t.Context(), connecttest.Delivery(3, adt("b")))
		closed <- err
	}()
	d.await(t, 1)
	_ = o.Close()
	if err := <-closed; !errors.Is(err, connect.ErrClosed) {
		t.Errorf("the one that was out at the close: %v", err)
	}
	if len(o.idle) != 0 || len(o.turns) != 0 {
		t.Errorf("%d connections are left, and %d sends may begin", len(o.idle), len(o.turns))
	}
}
