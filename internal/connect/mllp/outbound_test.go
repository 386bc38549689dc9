package mllp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"coppice.dev/coppice/internal/connect/connecttest"
	"coppice.dev/coppice/internal/hl7"
	"coppice.dev/coppice/internal/message"
)

func TestOutboundConfig(t *testing.T) {
	if _, err := NewOutbound(OutboundConfig{Connect: "nowhere"}); err == nil {
		t.Error("no error for an address without a port")
	}
}

func TestAnswers(t *testing.T) {
	for _, tc := range []struct {
		code  string
		taken bool
		final bool
	}{
		{hl7.AA, true, false}, {hl7.CA, true, false},
		{hl7.AE, false, false}, {hl7.CE, false, false},
		{hl7.AR, false, true}, {hl7.CR, false, true},
	} {
		r := receiver(t, func([]byte) string { return tc.code })
		receipt, err := outbound(t, OutboundConfig{Connect: r.Addr()}).Send(t.Context(), connecttest.Delivery(1, adt("1")))
		var rejection *message.Rejection
		switch {
		case tc.taken && (err != nil || receipt.Text != tc.code):
			t.Errorf("%s: %+v, %v", tc.code, receipt, err)
		case !tc.taken && (!errors.As(err, &rejection) || rejection.Code != tc.code || rejection.Final != tc.final):
			t.Errorf("%s: %v", tc.code, err)
		}
	}
}

func TestUnframable(t *testing.T) {
	r := receiver(t, func([]byte) string { t.Error("something arrived"); return hl7.AA })
	body := append(adt("1"), "OBX|\x1c\r"...)
	_, err := outbound(t, OutboundConfig{Connect: r.Addr()}).Send(t.Context(), connecttest.Delivery(1, body))
	var rejection *message.Rejection
	if !errors.As(err, &rejection) || rejection.Code != "UNFRAMABLE" || !rejection.Final {
		t.Errorf("Send = %v", err)
	}
}

// scripted is a receiver that answers the first block of connection n with the bytes that script returns for it, and
// hangs up where they are nil.
func scripted(t *testing.T, script func(n int) []byte) (addr string, connections *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-ended })
	connections = new(atomic.Int64)
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			n := int(connections.Add(1))
			blocks := newFrameReader(conn, DefaultMaxMessage)
			if blocks.begin() == nil {
				_, _ = blocks.body()
				if answer := script(n); answer != nil {
					_, _ = conn.Write(answer)
					_, _ = conn.Read(make([]byte, 1)) // until the client hangs up
				}
			}
			_ = conn.Close()
		}
	}()
	return l.Addr().String(), connections
}

func answer(code, id, rest string) []byte {
	return frame([]byte("MSH|^~\\&|||||||ACK|9|P|2.5\rMSA|" + code + "|" + id + rest + "\r"))
}

// After anything but a clear answer the error is plain, the connection gone, and the next send dials anew. Red with drop
// left out of Send and fail out of Exchange: either of them is enough.
func TestDropsTheConnection(t *testing.T) {
	for name, tc := range map[string]struct {
		bad  []byte
		want error
	}{
		"foreign":  {answer("AA", "2", ""), ErrForeign}, // red without the comparison of MSA-2
		"no MSA":   {frame(adt("1")), hl7.ErrNoAck},
		"unframed": {[]byte("MSH|"), errUnframed},
		"huge":     {frame([]byte(strings.Repeat("x", 200_000))), errTooLarge},
		"no frame": {[]byte{0}, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			addr, connections := scripted(t, func(n int) []byte {
				if n == 1 {
					return tc.bad
				}
				return answer("AA", "1", "")
			})
			o := outbound(t, OutboundConfig{Connect: addr, AckTimeout: 200 * time.Millisecond, MaxReply: 100_000})
			_, err := o.Send(t.Context(), connecttest.Delivery(1, adt("1")))
			if rejection := (*message.Rejection)(nil); err == nil || errors.As(err, &rejection) {
				t.Fatalf("first Send = %v, want a plain error", err)
			}
			if tc.want != nil && !errors.Is(err, tc.want) {
				t.Errorf("first Send = %v, want %v", err, tc.want)
			}
			if _, err := o.Send(t.Context(), connecttest.Delivery(1, adt("1"))); err != nil {
				t.Errorf("second Send = %v", err)
			}
			if n := connections.Load(); n != 2 {
				t.Errorf("%d connections, want 2", n)
			}
		})
	}
}

// awaitEnd waits until the client has seen that its connection is over.
func awaitEnd(t *testing.T, c *Client) {
	t.Helper()
	select {
	case <-c.dead:
	case <-time.After(connecttest.Patience):
		t.Fatal("the connection does not end")
	}
}

// An answer that nobody asked for ends the connection before the next send, so that it can answer nothing, though it
// names the next message or the next message has no name. Red with the reader's first wanted left out.
func TestUnsolicited(t *testing.T) {
	for _, id := range []string{"1", ""} {
		addr, connections := scripted(t, func(n int) []byte {
			if n == 1 {
				return append(answer("AA", "1", ""), answer("AR", "1", "")...)
			}
			return answer("AA", id, "")
		})
		o := outbound(t, OutboundConfig{Connect: addr})
		if _, err := o.Send(t.Context(), connecttest.Delivery(1, adt("1"))); err != nil {
			t.Fatal(err)
		}
		awaitEnd(t, o.idle[0])
		if err := o.idle[0].cause(); !errors.Is(err, ErrUnsolicited) {
			t.Errorf("connection ended with %v, want ErrUnsolicited", err)
		}
		if _, err := o.Send(t.Context(), connecttest.Delivery(2, adt(id))); err != nil {
			t.Errorf("second Send = %v", err)
		}
		if n := connections.Load(); n != 2 {
			t.Errorf("%d connections, want 2", n)
		}
	}
}

// A receiver that hung up while nothing was sent costs no failed send: the next one dials first.
func TestRedialsAfterIdleHangUp(t *testing.T) {
	var conns atomic.Int64
	r := receiver(t, func([]byte) string { conns.Add(1); return hl7.AA })
	o := outbound(t, OutboundConfig{Connect: r.Addr()})
	if _, err := o.Send(t.Context(), connecttest.Delivery(1, adt("1"))); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	for conn := range r.conns {
		_ = conn.Close()
	}
	r.mu.Unlock()
	awaitEnd(t, o.idle[0])
	if _, err := o.Send(t.Context(), connecttest.Delivery(2, adt("2"))); err != nil {
		t.Errorf("Send after the hang-up = %v", err)
	}
}

func TestRejectionTextIsOneLine(t *testing.T) {
	addr, _ := scripted(t, func(int) []byte { return answer("AE", "1", "|no\x1b[2J bed"+strings.Repeat("x", 5000)) })
	_, err := outbound(t, OutboundConfig{Connect: addr}).Send(t.Context(), connecttest.Delivery(1, adt("1")))
	var rejection *message.Rejection
	if !errors.As(err, &rejection) || !strings.HasPrefix(rejection.Text, `no\x1b[2J bed`) || len(rejection.Text) > maxText+3 {
		t.Errorf("Send = %.100v", err)
	}
}

// Without a deadline of its caller, an exchange has one of its own. Red without it: the bubble deadlocks.
func TestExchangeHasADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		go func() { // takes all, says nothing
			buf := make([]byte, 1024)
			for _, err := far.Read(buf); err == nil; _, err = far.Read(buf) {
			}
		}()
		c := newClient(near, DefaultMaxReply)
		defer c.Close()
		begin := time.Now()
		_, err := c.Exchange(context.Background(), adt("1"))
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != DefaultAckTimeout {
			t.Errorf("Exchange = %v after %v", err, time.Since(begin))
		}
	})
}

// Example shows a message sent and acknowledged.
func ExampleDial() {
	r, err := NewReceiver("127.0.0.1:0", func([]byte) string { return hl7.AA })
	if err != nil {
		panic(err)
	}
	defer r.Close()
	client, err := Dial(context.Background(), r.Addr())
	if err != nil {
		panic(err)
	}
	defer client.Close()
	ack, err := client.Exchange(context.Background(), []byte("MSH|^~\\&|||||||ADT^A01|42|P|2.5\r"))
	fmt.Println(ack.Code, ack.ControlID, err)
	// Output: AA 42 <nil>
}

// TestRefusedInTheMiddle: a peer answers AR to a message that is too large before it has all of it, and closes. The client
// tells of the answer, and not of the write that failed. Red with the write's error returned at once.
func TestRefusedInTheMiddle(t *testing.T) {
	in, err := NewInbound(InboundConfig{Name: "small", Listen: "127.0.0.1:0", MaxMessage: 1 << 20}, connecttest.NewSink())
	if err != nil {
		t.Fatal(err)
	}
	connecttest.Serve(t, in)
	body := append([]byte("MSH|^~\\&|A|B|C|D|20260101||ADT^A01|BIG|P|2.5\rNTE|"), bytes.Repeat([]byte("x"), 24<<20)...)
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), connecttest.Patience)
		c, err := Dial(ctx, in.Addr())
		if err != nil {
			t.Fatal(err)
		}
		ack, err := c.Exchange(ctx, body)
		if err != nil || ack.Code != hl7.AR || ack.ControlID != "BIG" {
			t.Errorf("%+v, %v", ack, err)
		}
		c.Close()
		cancel()
	}
}

// TestPerMessage: each message has a connection of its own, which is closed once it is answered. Red with PerMessage ignored.
func TestPerMessage(t *testing.T) {
	for perMessage, want := range map[bool]int64{false: 1, true: 3} {
		var connections atomic.Int64
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		all.Go(func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				connections.Add(1)
				all.Go(func() {
					defer conn.Close()
					blocks := newFrameReader(conn, DefaultMaxMessage)
					for blocks.begin() == nil {
						if _, err := blocks.body(); err != nil {
							return
						}
						_, _ = conn.Write(answer("AA", "1", ""))
					}
				})
			}
		})
		o := outbound(t, OutboundConfig{Connect: l.Addr().String(), PerMessage: perMessage})
		for n := range 3 {
			if _, err := o.Send(t.Context(), connecttest.Delivery(n+1, adt("1"))); err != nil {
				t.Fatal(err)
			}
		}
		if perMessage && len(o.idle) > 0 {
			t.Error("a connection is kept")
		}
		if n := connections.Load(); n != want {
			t.Errorf("%d connections, want %d", n, want)
		}
		_ = o.Close()
		_ = l.Close()
		all.Wait()
	}
}
