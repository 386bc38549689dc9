package connecttest

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/connect/secure"
	"coppice.dev/coppice/internal/message"
)

// Hostile is an outbound over TCP as the suite for such outbounds sees it: by what its receivers do to it.
type Hostile struct {
	// New makes an outbound named "out" for a receiver, which it gives this much time for an answer.
	New func(t *testing.T, addr string, timeout time.Duration) connect.Outbound
	// TLS is how receivers greet it; nil: not at all.
	TLS *secure.Server
	// Read reads one delivery.
	Read func(r *bufio.Reader) (body []byte, err error)
	// Taken is the answer that acknowledges a body.
	Taken func(body []byte) []byte
}

// Run runs the suite.
func (h Hostile) Run(t *testing.T) {
	t.Run("no clear answer", h.unclear)
	t.Run("late answer", h.late)
	t.Run("does not read", h.deaf)
	t.Run("unreachable", h.unreachable)
}

// receive starts a receiver that hands each connection, with its number from 1, to serve, and closes it then. It ends with the
// test, and cuts what is left.
func (h Hostile) receive(t *testing.T, serve func(n int, conn net.Conn)) (addr string, connections *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var config *tls.Config
	if h.TLS != nil {
		if config, err = h.TLS.Config(); err != nil {
			t.Fatal(err)
		}
	}
	var all sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); all.Wait() })
	connections = new(atomic.Int64)
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			n := int(connections.Add(1))
			_ = conn.SetDeadline(time.Now().Add(Patience))
			all.Go(func() {
				defer conn.Close()
				if config != nil {
					conn = tls.Server(conn, config)
				}
				serve(n, conn)
			})
		}
	})
	return l.Addr().String(), connections
}

// untilGone waits until the other side has hung up.
func untilGone(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

// unclear: after anything but a clear answer the error is plain, the connection gone, and the next send dials anew.
func (h Hostile) unclear(t *testing.T) {
	for name, bad := range map[string]func(conn net.Conn, good []byte){
		"hangs up": func(net.Conn, []byte) {},
		"garbage": func(c net.Conn, _ []byte) {
			_, _ = c.Write([]byte(strings.Repeat("what?", 1000) + "\r\n\r\n"))
			untilGone(c)
		},
		"half":                   func(c net.Conn, good []byte) { _, _ = c.Write(good[:len(good)/2]) },
		"half, then silence":     func(c net.Conn, good []byte) { _, _ = c.Write(good[:len(good)/2]); untilGone(c) },
		"all but the last byte":  func(c net.Conn, good []byte) { _, _ = c.Write(good[:len(good)-1]) },
		"silence":                func(c net.Conn, _ []byte) { untilGone(c) },
		"endless without an end": func(c net.Conn, good []byte) { flood(c, good[:len(good)/3]) },
		"reset": func(c net.Conn, _ []byte) {
			if stream, ok := c.(*tls.Conn); ok {
				c = stream.NetConn()
			}
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, connections := h.receive(t, func(n int, conn net.Conn) {
				body, err := h.Read(bufio.NewReader(conn))
				if err != nil {
					return
				}
				if n == 1 {
					bad(conn, h.Taken(body))
					return
				}
				_, _ = conn.Write(h.Taken(body))
				untilGone(conn)
			})
			out := h.New(t, addr, time.Second)
			_, err := out.Send(t.Context(), Delivery(1, numbered(1)))
			if rejection := (*message.Rejection)(nil); err == nil || errors.As(err, &rejection) {
				t.Fatalf("first Send = %v, want a plain error", err)
			}
			if n := len(err.Error()); n > 2000 { // the store keeps it
				t.Errorf("an error of %d bytes", n)
			}
			if _, err := out.Send(t.Context(), Delivery(1, numbered(1))); err != nil {
				t.Errorf("second Send = %v", err)
			}
			if n := connections.Load(); n != 2 {
				t.Errorf("%d connections, want 2", n)
			}
		})
	}
}

// flood writes until nobody reads.
func flood(conn net.Conn, begin []byte) {
	_, err := conn.Write(begin)
	more := make([]byte, 64<<10)
	for i := range more {
		more[i] = 'x'
	}
	for err == nil {
		_, err = conn.Write(more)
	}
}

// late: an answer that comes after its time is not taken for that of the next message.
func (h Hostile) late(t *testing.T) {
	second := make(chan struct{})
	addr, connections := h.receive(t, func(n int, conn net.Conn) {
		in := bufio.NewReader(conn)
		body, err := h.Read(in)
		if err != nil {
			return
		}
		if n == 1 {
			<-second // so that it is late; what has been written by then waits for whoever reads first
			_, _ = conn.Write(h.Taken(body))
			_, _ = h.Read(in)
		}
		untilGone(conn)
	})
	out := h.New(t, addr, 150*time.Millisecond)
	if _, err := out.Send(t.Context(), Delivery(1, numbered(1))); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("first Send = %v, want its deadline", err)
	}
	close(second)
	if _, err := out.Send(t.Context(), Delivery(2, numbered(1))); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("second Send = %v, want its deadline", err)
	}
	if n := connections.Load(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
}

// deaf: a receiver that does not read cannot hold a send beyond its time, nor its cancel, nor Close. Red without the AfterFunc
// in roundTrip of mllp, and without UntilClosed in Send of http.
func (h Hostile) deaf(t *testing.T) {
	for name, tc := range map[string]struct {
		timeout time.Duration
		end     func(connect.Outbound, context.CancelFunc)
		want    error
	}{
		"timeout": {300 * time.Millisecond, func(connect.Outbound, context.CancelFunc) {}, context.DeadlineExceeded},
		"cancel":  {time.Minute, func(_ connect.Outbound, cancel context.CancelFunc) { cancel() }, context.Canceled},
		"close":   {time.Minute, func(o connect.Outbound, _ context.CancelFunc) { _ = o.Close() }, connect.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			begun, over := make(chan struct{}), make(chan struct{})
			addr, _ := h.receive(t, func(_ int, conn net.Conn) {
				if stream, ok := conn.(*tls.Conn); ok {
					_ = stream.Handshake()
				}
				close(begun)
				<-over
			})
			defer close(over)
			out := h.New(t, addr, tc.timeout)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			sent := make(chan error, 1)
			go func() {
				_, err := out.Send(ctx, Delivery(1, append(numbered(1), make([]byte, 12<<20)...)))
				sent <- err
			}()
			<-begun
			go tc.end(out, cancel) // Close waits for what it ends
			select {
			case err := <-sent:
				if !errors.Is(err, tc.want) {
					t.Errorf("Send = %v, want %v", err, tc.want)
				}
			case <-time.After(Patience):
				t.Fatal("Send does not return")
			}
		})
	}
}

func (h Hostile) unreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	_, err = h.New(t, l.Addr().String(), Patience).Send(t.Context(), Delivery(1, numbered(1)))
	if rejection := (*message.Rejection)(nil); err == nil || errors.As(err, &rejection) {
		t.Errorf("Send = %v, want a plain error", err)
	}
}
