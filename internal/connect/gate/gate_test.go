package gate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"coppice.dev/coppice/internal/connect/connecttest"
	"coppice.dev/coppice/internal/connect/secure"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

// Red without Unmap, and without WithZone.
func TestAllowed(t *testing.T) {
	g := &Gate{cfg: Config{Peers: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.0.2.7/32"),
		netip.MustParsePrefix("fe80::/10")}}}
	for addr, want := range map[address]bool{
		"10.1.2.3:99":           true,
		"11.1.2.3:99":           false,
		"192.0.2.7:1":           true,
		"192.0.2.8:1":           false,
		"[::ffff:10.1.2.3]:99":  true,
		"[::ffff:11.1.2.3]:99":  false,
		"[fe80::1%eth0]:99":     true,
		"[2001:db8::1]:99":      false,
		"what is no address:99": false,
	} {
		if got := g.allowed(addr); got != want {
			t.Errorf("%s: %v", addr, got)
		}
	}
	if !new(Gate).allowed(address("203.0.113.1:1")) {
		t.Error("without peers, nobody may connect")
	}
}

// Red with the cap left out, with one host for all, and with a window that never ends.
func TestScarce(t *testing.T) {
	var s scarce
	at := time.Now()
	taken := 0
	for range 3 {
		for host := range 2 * scarceMost {
			if s.take(fmt.Sprint(host), at) {
				taken++
			}
		}
	}
	if taken != scarceMost || len(s.hosts) != scarceMost {
		t.Errorf("%d refusals, %d hosts kept; want %d", taken, len(s.hosts), scarceMost)
	}
	if s.take("1", at.Add(scarceWindow-1)) || !s.take("1", at.Add(scarceWindow)) {
		t.Error("not one in each window")
	}
}

// A peer that says nothing, or no TLS, is closed by the handshake's deadline and recorded; meanwhile others are let in. Red
// without the timeout of handshake, and, for the record, without RecordOnce there.
func TestHandshake(t *testing.T) {
	for name, text := range map[string]string{"silent": "", "plain": "\x0bMSH|^~\\&|", "half": "\x16\x03\x01\x02"} {
		t.Run(name, func(t *testing.T) {
			authority := connecttest.NewAuthority(t)
			sink := connecttest.NewSink()
			g, err := New(Config{Inbound: "in", Listen: "127.0.0.1:0", TLS: authority.Server(t, false), HandshakeTimeout: 200 * time.Millisecond}, sink)
			if err != nil {
				t.Fatal(err)
			}
			if err := g.Listen(t.Context()); err != nil {
				t.Fatal(err)
			}
			_, end, err := g.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			bad, err := net.Dial("tcp", g.Address())
			if err != nil {
				t.Fatal(err)
			}
			defer bad.Close()
			_ = bad.SetDeadline(time.Now().Add(connecttest.Patience))
			if _, err := io.WriteString(bad, text); err != nil {
				t.Fatal(err)
			}
			conn, err := g.Accept() // does not wait for the handshake
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.Read(make([]byte, 1)); err == nil || !strings.HasPrefix(err.Error(), "TLS handshake: ") {
				t.Errorf("Read = %v", err)
			}
			if got := sink.AwaitRefusals(t, 1); !strings.HasPrefix(got[0].Reason, "TLS handshake: ") {
				t.Errorf("refusal %+v", got[0])
			}
			if _, err := io.Copy(io.Discard, bad); err != nil && strings.Contains(err.Error(), "timeout") {
				t.Error("the connection is still open")
			}
			if err := end(new(sync.WaitGroup)); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestHandshakeHasItsOwnTime: a deadline for what comes after it does not end a handshake. Red without the look at greeting in
// setRead.
func TestHandshakeHasItsOwnTime(t *testing.T) {
	authority := connecttest.NewAuthority(t)
	g, err := New(Config{Listen: "127.0.0.1:0", TLS: authority.Server(t, false)}, connecttest.NewSink())
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, end, err := g.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	config, err := authority.Client(t, false).Config()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), connecttest.Patience)
	defer cancel()
	greeted, over := make(chan error, 1), make(chan struct{})
	go func() {
		conn, err := secure.Dial(ctx, g.Address(), config)
		if err == nil {
			<-over
			_ = conn.Close()
		}
		greeted <- err
	}()
	conn, err := g.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, new(*HandshakeError)) {
		t.Errorf("Read = %v, want the deadline after the handshake", err)
	}
	close(over)
	if err := <-greeted; err != nil {
		t.Errorf("the peer: %v", err)
	}
	if err := end(new(sync.WaitGroup)); err != nil {
		t.Error(err)
	}
}

// After a stop no deadline is later than the stop allows, whoever sets it: a read that has been given an hour ends. Red with
// within left out of SetReadDeadline.
func TestStopOutlastsDeadlines(t *testing.T) {
	g, err := New(Config{Listen: "127.0.0.1:0"}, connecttest.NewSink())
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, end, err := g.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	peer, err := net.Dial("tcp", g.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	conn, err := g.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	cancel()
	if err := end(new(sync.WaitGroup)); err != nil {
		t.Error(err)
	}
	for _, set := range []func(time.Time) error{conn.SetDeadline, conn.SetReadDeadline} {
		for _, at := range []time.Time{time.Now().Add(time.Hour), {}} {
			if err := set(at); err != nil {
				t.Fatal(err)
			}
			read := make(chan error, 1)
			go func() {
				_, err := conn.Read(make([]byte, 1))
				read <- err
			}()
			select {
			case err := <-read:
				if err == nil {
					t.Error("read something")
				}
			case <-time.After(connecttest.Patience):
				t.Fatal("a read goes on after the stop")
			}
		}
	}
}
