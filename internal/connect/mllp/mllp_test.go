package mllp

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/connect/connecttest"
	"coppice.dev/coppice/internal/connect/secure"
	"coppice.dev/coppice/internal/hl7"
	"coppice.dev/coppice/internal/message"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestInboundSuite(t *testing.T) {
	connecttest.Secured(t, func(t *testing.T, server *secure.Server, client *secure.Client) {
		connecttest.Inbound{New: func(t *testing.T, sink connect.Sink) (connect.Inbound, func(context.Context, []byte) error) {
			in, err := NewInbound(InboundConfig{Name: "in", Listen: "127.0.0.1:0", TLS: server}, sink)
			if err != nil {
				t.Fatal(err)
			}
			return in, sender(t, in, client)
		}}.Run(t)
		connecttest.Stream{
			New: func(t *testing.T, sink connect.Sink, b connecttest.Bounds) connect.Inbound {
				in, err := NewInbound(InboundConfig{Name: "in", Listen: "127.0.0.1:0", TLS: server, MaxMessage: b.MaxMessage,
					FrameTimeout: b.Whole, IdleTimeout: b.Idle, MaxConnections: b.MaxConnections, Peers: b.Peers}, sink)
				if err != nil {
					t.Fatal(err)
				}
				return in
			},
			TLS:   client,
			Frame: frame,
			Answer: func(r *bufio.Reader) (bool, error) {
				body, err := readBlock(r)
				if err != nil {
					return false, err
				}
				ack, err := hl7.ParseAck(body)
				return ack.Code == hl7.AA, err
			},
		}.Run(t)
	})
}

// sender delivers to an inbound until it is acknowledged.
func sender(t *testing.T, in *Inbound, secured *secure.Client) func(context.Context, []byte) error {
	var config func(string) *tls.Config
	if secured != nil {
		var err error
		if config, err = secured.Config(); err != nil {
			t.Fatal(err)
		}
	}
	var client *Client
	t.Cleanup(func() {
		if client != nil {
			_ = client.Close()
		}
	})
	return func(ctx context.Context, body []byte) error {
		for ctx.Err() == nil {
			var err error
			if client == nil || client.cause() != nil {
				if client, err = dial(ctx, in.Addr(), config, DefaultMaxReply); err != nil {
					return err
				}
			}
			ack, err := client.Exchange(ctx, body)
			if err == nil {
				if ack.Code != hl7.AA {
					t.Errorf("answer %+v, want AA", ack)
				}
				return nil
			}
			if rejection := (*message.Rejection)(nil); errors.As(err, &rejection) {
				return err
			}
		}
		return ctx.Err()
	}
}

// readBlock takes one block, and nothing of the next.
func readBlock(r *bufio.Reader) ([]byte, error) {
	blocks := frameReader{in: r, max: DefaultMaxMessage}
	if err := blocks.begin(); err != nil {
		return nil, err
	}
	return blocks.body()
}

func TestOutboundSuite(t *testing.T) {
	connecttest.Outbound{New: func(t *testing.T) (connect.Outbound, func() [][]byte) {
		var mu sync.Mutex
		var got [][]byte
		r := receiver(t, func(body []byte) string {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, body)
			return hl7.AA
		})
		return outbound(t, OutboundConfig{Connect: r.Addr()}), func() [][]byte {
			mu.Lock()
			defer mu.Unlock()
			return got
		}
	}}.Run(t)
	connecttest.Secured(t, func(t *testing.T, server *secure.Server, client *secure.Client) {
		connecttest.Hostile{
			New: func(t *testing.T, addr string, timeout time.Duration) connect.Outbound {
				return outbound(t, OutboundConfig{Connect: addr, AckTimeout: timeout, TLS: client})
			},
			TLS:  server,
			Read: readBlock,
			Taken: func(body []byte) []byte {
				h, err := hl7.ParseHeader(body)
				if err != nil {
					t.Error(err)
				}
				return frame(hl7.Ack(h, hl7.AA, "", "9", time.Now()))
			},
		}.Run(t)
	})
}

// receiver is a Receiver that ends with the test.
func receiver(t *testing.T, answer func(body []byte) string) *Receiver {
	t.Helper()
	r, err := NewReceiver("127.0.0.1:0", answer)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func outbound(t *testing.T, cfg OutboundConfig) *Outbound {
	t.Helper()
	cfg.Name = "out"
	o, err := NewOutbound(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Close() })
	return o
}

// serve starts an inbound that keeps what it gets in the sink.
func serve(t *testing.T, cfg InboundConfig, sink connect.Sink) (*Inbound, connecttest.Served) {
	t.Helper()
	cfg.Name, cfg.Listen = "in", "127.0.0.1:0"
	in, err := NewInbound(cfg, sink)
	if err != nil {
		t.Fatal(err)
	}
	return in, connecttest.Serve(t, in)
}

// raw is a peer that sends what it likes.
type raw struct {
	t *testing.T
	net.Conn
	blocks *frameReader
}

func connectRaw(t *testing.T, addr string) raw {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(connecttest.Patience)); err != nil {
		t.Fatal(err)
	}
	return raw{t, conn, newFrameReader(conn, DefaultMaxReply)}
}

func (r raw) send(b []byte) {
	r.t.Helper()
	if _, err := r.Write(b); err != nil {
		r.t.Fatal(err)
	}
}

// wantAck reads one answer.
func (r raw) wantAck(code, id string) hl7.Acknowledgement {
	r.t.Helper()
	if err := r.blocks.begin(); err != nil {
		r.t.Fatalf("await %s for %q: %v", code, id, err)
	}
	body, err := r.blocks.body()
	if err != nil {
		r.t.Fatal(err)
	}
	ack, err := hl7.ParseAck(body)
	if err != nil || ack.Code != code || ack.ControlID != id {
		r.t.Fatalf("answer %+v, %v; want %s for %q", ack, err, code, id)
	}
	return ack
}

// wantClosed reads the end of the connection, and no answer before it.
func (r raw) wantClosed() {
	r.t.Helper()
	b, err := io.ReadAll(r.blocks.in)
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
		r.t.Fatal("connection is still open")
	}
	if len(b) > 0 {
		r.t.Fatalf("answer %q, want none", b)
	}
}

// adt is a small message with this control id.
func adt(id string) []byte {
	return []byte("MSH|^~\\&|APP|FAC|||20260101||ADT^A01|" + id + "|P|2.5\rPID|1||" + id + "\r")
}

func wantBodies(t *testing.T, sink *connecttest.Sink, want ...[]byte) {
	t.Helper()
	got := sink.AwaitMessages(t, len(want))
	if len(got) != len(want) {
		t.Fatalf("%d messages, want %d", len(got), len(want))
	}
	for i := range want {
		if !bytes.Equal(got[i].Body, want[i]) {
			t.Fatalf("message %d is %.80q, want %.80q", i, got[i].Body, want[i])
		}
	}
}
