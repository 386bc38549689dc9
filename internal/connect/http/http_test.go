package http

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	nethttp "net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/connect/connecttest"
	"coppice.dev/coppice/internal/connect/secure"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestInboundSuite(t *testing.T) {
	connecttest.Secured(t, func(t *testing.T, server *secure.Server, client *secure.Client) {
		connecttest.Inbound{New: func(t *testing.T, sink connect.Sink) (connect.Inbound, func(context.Context, []byte) error) {
			in := inbound(t, InboundConfig{TLS: server}, sink)
			return in, sender(t, in, client)
		}}.Run(t)
		connecttest.Stream{
			New: func(t *testing.T, sink connect.Sink, b connecttest.Bounds) connect.Inbound {
				return inbound(t, InboundConfig{TLS: server, MaxMessage: b.MaxMessage, HeaderTimeout: max(b.Whole/2, b.Idle), BodyTimeout: b.Whole / 2,
					IdleTimeout: b.Idle, MaxConnections: b.MaxConnections, Peers: b.Peers}, sink)
			},
			TLS: client,
			Frame: func(body []byte) []byte {
				return fmt.Appendf(nil, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			},
			Answer: func(r *bufio.Reader) (bool, error) {
				status, _, err := readAnswer(r)
				return status/100 == 2, err
			},
		}.Run(t)
	})
}

func TestOutboundSuite(t *testing.T) {
	connecttest.Secured(t, func(t *testing.T, server *secure.Server, client *secure.Client) {
		connecttest.Hostile{
			New: func(t *testing.T, addr string, timeout time.Duration) connect.Outbound {
				scheme := "http"
				if client != nil {
					scheme = "https"
				}
				return outbound(t, OutboundConfig{URL: scheme + "://" + addr + "/in", TLS: client, Timeout: timeout})
			},
			TLS: server,
			Read: func(r *bufio.Reader) ([]byte, error) {
				request, err := nethttp.ReadRequest(r)
				if err != nil {
					return nil, err
				}
				return io.ReadAll(request.Body)
			},
			Taken: func([]byte) []byte { return []byte("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\ntaken") },
		}.Run(t)
	})
	connecttest.Outbound{New: func(t *testing.T) (connect.Outbound, func() [][]byte) {
		var mu sync.Mutex
		var got [][]byte
		url := receiver(t, func(w nethttp.ResponseWriter, r *nethttp.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			got = append(got, body)
			fmt.Fprint(w, "two\nlines\x1b")
		})
		return outbound(t, OutboundConfig{URL: url}), func() [][]byte {
			mu.Lock()
			defer mu.Unlock()
			return got
		}
	}}.Run(t)
}

func inbound(t *testing.T, cfg InboundConfig, sink connect.Sink) *Inbound {
	t.Helper()
	cfg.Name, cfg.Listen = "in", "127.0.0.1:0"
	in, err := NewInbound(cfg, sink)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// serve starts an inbound that keeps what it gets in the sink.
func serve(t *testing.T, cfg InboundConfig, sink connect.Sink) *Inbound {
	t.Helper()
	in := inbound(t, cfg, sink)
	connecttest.Serve(t, in)
	return in
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

// receiver is an HTTP server that ends with the test.
func receiver(t *testing.T, answer nethttp.HandlerFunc) (url string) {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	return s.URL
}

// sender delivers to an inbound, as a sender of the standard library, until it is acknowledged.
func sender(t *testing.T, in *Inbound, secured *secure.Client) func(context.Context, []byte) error {
	transport, scheme := &nethttp.Transport{}, "http"
	if secured != nil {
		config, err := secured.Config()
		if err != nil {
			t.Fatal(err)
		}
		transport.TLSClientConfig, scheme = config(""), "https"
	}
	t.Cleanup(transport.CloseIdleConnections)
	return func(ctx context.Context, body []byte) error {
		for ctx.Err() == nil {
			r, err := nethttp.NewRequestWithContext(ctx, "POST", scheme+"://"+in.Addr()+"/", bytes.NewReader(body))
			if err != nil {
				return err
			}
			answer, err := transport.RoundTrip(r)
			if err != nil {
				continue // hung up: the outcome is unknown
			}
			_, _ = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
			switch {
			case answer.StatusCode == 200:
				return nil
			case answer.StatusCode != 503 || answer.Header.Get("Retry-After") == "":
				return errors.New("answered " + answer.Status)
			}
		}
		return ctx.Err()
	}
}

// readAnswer reads one answer to its end.
func readAnswer(r *bufio.Reader) (status int, body []byte, err error) {
	answer, err := nethttp.ReadResponse(r, nil)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	body, err = io.ReadAll(answer.Body)
	return answer.StatusCode, body, err
}

// ask sends one request as it is written and returns the answer, whole.
func ask(t *testing.T, addr, request string) (*nethttp.Response, string) {
	t.Helper()
	conn := dial(t, addr)
	defer conn.Close()
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	answer, err := nethttp.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("%.60q: %v", request, err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer, string(body)
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(connecttest.Patience)); err != nil {
		t.Fatal(err)
	}
	return conn
}
