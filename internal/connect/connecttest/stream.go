package connecttest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/connect/secure"
	"coppice.dev/coppice/internal/message"
)

// Stream is an inbound on a TCP port as the suite for such inbounds sees it: by the bytes on the wire.
type Stream struct {
	// New makes an inbound named "in" on a free port of 127.0.0.1.
	New func(t *testing.T, sink connect.Sink, b Bounds) connect.Inbound
	// TLS is how its peers greet it; nil: not at all.
	TLS *secure.Client
	// Frame is one body as its sender writes it.
	Frame func(body []byte) []byte
	// Answer reads one answer, and says whether it acknowledges a message.
	Answer func(r *bufio.Reader) (taken bool, err error)
}

// Bounds are what a test of the suite narrows. Zero values mean the transport's defaults.
type Bounds struct {
	MaxMessage     int64         // bytes
	Whole          time.Duration // from a message's first byte to its last
	Idle           time.Duration // from one message to the next
	MaxConnections int
	Peers          []netip.Prefix
}

// Peer is a sender that sends what it likes.
type Peer struct {
	t      *testing.T
	stream Stream
	net.Conn
	in *bufio.Reader
}

// Run runs the suite.
func (s Stream) Run(t *testing.T) {
	t.Run("split at every byte", s.split)
	t.Run("ten in one write", s.joined)
	t.Run("huge", s.huge)
	t.Run("empty", s.empty)
	t.Run("slow", s.slow)
	t.Run("silent", s.silent)
	t.Run("half-closed after the last", s.halfClosed)
	t.Run("ended inside a message", s.cutOff)
	t.Run("gone while it is committed", s.gone)
	t.Run("store failed", s.storeFailed)
	t.Run("a hundred bad, then a good one", s.hundredBad)
	t.Run("good ones keep their places", s.tooManyGood)
	t.Run("peers", s.peers)
	t.Run("stop", s.stop)
}

// serve starts an inbound.
func (s Stream) serve(t *testing.T, sink connect.Sink, b Bounds) (connect.Inbound, Served) {
	t.Helper()
	in := s.New(t, sink, b)
	return in, Serve(t, in)
}

// dial connects, and greets where there is TLS. Everything on the connection has an end in Patience.
func (s Stream) dial(t *testing.T, addr string) *Peer {
	t.Helper()
	var config func(string) *tls.Config
	if s.TLS != nil {
		var err error
		if config, err = s.TLS.Config(); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	conn, err := secure.Dial(ctx, addr, config)
	if err != nil {
		t.Fatal(err)
	}
	return s.peer(t, conn)
}

// bare connects, and does not greet.
func (s Stream) bare(t *testing.T, addr string) *Peer {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return s.peer(t, conn)
}

func (s Stream) peer(t *testing.T, conn net.Conn) *Peer {
	t.Helper()
	t.Cleanup(func() { _ = secure.Cut(conn) })
	if err := conn.SetDeadline(time.Now().Add(Patience)); err != nil {
		t.Fatal(err)
	}
	return &Peer{t, s, conn, bufio.NewReader(conn)}
}

func (p *Peer) send(b []byte) {
	p.t.Helper()
	if _, err := p.Write(b); err != nil {
		p.t.Fatal(err)
	}
}

func (p *Peer) wantTaken() {
	p.t.Helper()
	if taken, err := p.stream.Answer(p.in); err != nil || !taken {
		p.t.Fatalf("answered with taken %v, %v", taken, err)
	}
}

// wantNotTaken reads a refusal, or the end of the connection.
func (p *Peer) wantNotTaken() {
	p.t.Helper()
	if taken, err := p.stream.Answer(p.in); taken || stillOpen(err) {
		p.t.Fatalf("answered with taken %v, %v", taken, err)
	}
}

// wantClosed reads the end of the connection, and nothing before it.
func (p *Peer) wantClosed() {
	p.t.Helper()
	_ = p.SetReadDeadline(time.Now().Add(Patience)) // what came before may have taken long; a closed connection tells of it
	b, err := io.ReadAll(p.in)
	if stillOpen(err) {
		p.t.Fatal("connection is still open")
	}
	if len(b) > 0 {
		p.t.Fatalf("answer %q, want none", b)
	}
}

// stillOpen says whether a read ended by its deadline alone.
func stillOpen(err error) bool {
	timeout := net.Error(nil)
	return errors.As(err, &timeout) && timeout.Timeout()
}

// halfClose ends what the peer sends.
func (p *Peer) halfClose() {
	p.t.Helper()
	if err := p.Conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		p.t.Fatal(err)
	}
}

// reset ends the connection with a reset, whatever is under way.
func (p *Peer) reset() {
	p.t.Helper()
	conn := p.Conn
	if stream, ok := conn.(*tls.Conn); ok {
		conn = stream.NetConn()
	}
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.Close()
}

// numbered is a small message with this control id.
func numbered(id int) []byte {
	return fmt.Appendf(nil, "MSH|^~\\&|APP|FAC|||20260101||ADT^A01|%d|P|2.5\rPID|1||%d\r", id, id)
}

func (s Stream) split(t *testing.T) {
	in, _ := s.serve(t, NewSink(), Bounds{})
	peer := s.dial(t, in.Addr())
	frame := s.Frame(numbered(7))
	for cut := range frame {
		peer.send(frame[:cut])
		peer.send(frame[cut:])
		peer.wantTaken()
	}
}

// joined: ten frames in one write give ten answers, in order.
func (s Stream) joined(t *testing.T) {
	sink := NewSink()
	in, _ := s.serve(t, sink, Bounds{})
	peer := s.dial(t, in.Addr())
	var all []byte
	for i := range 10 {
		all = append(all, s.Frame(numbered(i))...)
	}
	peer.send(all)
	for range 10 {
		peer.wantTaken()
	}
	for i, got := range sink.AwaitMessages(t, 10) {
		if !bytes.Equal(got.Body, numbered(i)) {
			t.Errorf("message %d is %q", i, got.Body)
		}
	}
}

// huge: the sender of a body over the limit is told so, and hears it while it still sends; the store hears of it too.
func (s Stream) huge(t *testing.T) {
	sink := NewSink()
	in, _ := s.serve(t, sink, Bounds{MaxMessage: 10_000})
	peer := s.dial(t, in.Addr())
	peer.send(s.Frame(append(numbered(1), make([]byte, 900_000)...)))
	if taken, err := s.Answer(peer.in); taken || err != nil {
		t.Errorf("answered with taken %v, %v; want a refusal", taken, err)
	}
	if got := sink.AwaitRefusals(t, 1); !strings.Contains(got[0].Reason, "10000") {
		t.Errorf("refusals %+v", got)
	}
	if n := len(sink.Messages()); n != 0 {
		t.Errorf("%d messages, want none", n)
	}
}

func (s Stream) empty(t *testing.T) {
	sink := NewSink()
	in, _ := s.serve(t, sink, Bounds{})
	peer := s.dial(t, in.Addr())
	peer.send(s.Frame(nil))
	peer.wantNotTaken()
	if got := sink.Refusals(); len(got) != 1 { // recorded before it was answered
		t.Errorf("refusals %+v, want one", got)
	}
}

// slow: a message that drips in is late by its first byte's time, however steadily it drips, from its begin or from its
// middle. Red, for the middle, without ReadTimeout in http; and with the deadline of mllp set anew at each read.
func (s Stream) slow(t *testing.T) {
	frame := s.Frame(append(numbered(1), make([]byte, 100_000)...))
	for name, at := range map[string]int{"begin": 0, "middle": len(frame) / 2} {
		t.Run(name, func(t *testing.T) {
			sink := NewSink()
			in, _ := s.serve(t, sink, Bounds{Whole: 150 * time.Millisecond})
			peer := s.dial(t, in.Addr())
			_, _ = peer.Write(frame[:at]) // on a slow machine it is late by then
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				tick := time.NewTicker(5 * time.Millisecond)
				defer tick.Stop()
				for i := range frame[at:] {
					if _, err := peer.Write(frame[at+i : at+i+1]); err != nil {
						return
					}
					<-tick.C
				}
			}()
			sink.AwaitRefusals(t, 1)
			<-ended
			peer.wantNotTaken()
		})
	}
}

func (s Stream) silent(t *testing.T) {
	sink := NewSink()
	in, _ := s.serve(t, sink, Bounds{Idle: 50 * time.Millisecond})
	s.dial(t, in.Addr()).wantClosed()
	if got := sink.Refusals(); len(got) != 0 {
		t.Errorf("refusals %+v, want none", got)
	}
}

// halfClosed: a peer that closes its sending half after the last message still gets its answers.
func (s Stream) halfClosed(t *testing.T) {
	in, _ := s.serve(t, NewSink(), Bounds{})
	peer := s.dial(t, in.Addr())
	peer.send(append(s.Frame(numbered(1)), s.Frame(numbered(2))...))
	peer.halfClose()
	peer.wantTaken()
	peer.wantTaken()
	peer.wantClosed()
}

// cutOff: what is cut off inside of a message was never acknowledged, and is on record.
func (s Stream) cutOff(t *testing.T) {
	for name, end := range map[string]func(*Peer){"half-closed": (*Peer).halfClose, "reset": (*Peer).reset} {
		t.Run(name, func(t *testing.T) {
			sink := NewSink()
			in, _ := s.serve(t, sink, Bounds{})
			peer := s.dial(t, in.Addr())
			frame := s.Frame(numbered(2))
			peer.send(append(s.Frame(numbered(1)), frame[:len(frame)-4]...))
			peer.wantTaken() // so that the reader is inside of the second one
			end(peer)
			sink.AwaitRefusals(t, 1)
			if n := len(sink.Messages()); n != 1 {
				t.Errorf("%d messages, want 1", n)
			}
		})
	}
}

// gone: a sender that goes away cannot take back what is being committed. Red with a commit under the context of the request.
func (s Stream) gone(t *testing.T) {
	sink := NewSink()
	release := make(chan struct{})
	sink.OnReceive(func(ctx context.Context, in message.Incoming) error {
		if in.ControlID == "1" {
			<-release
		}
		return ctx.Err()
	})
	in, _ := s.serve(t, sink, Bounds{})
	peer := s.dial(t, in.Addr())
	peer.send(s.Frame(numbered(1)))
	sink.AwaitTries(t, 1)
	peer.reset()
	for range 3 { // whatever the reset sets off has had its time
		other := s.dial(t, in.Addr())
		other.send(s.Frame(numbered(2)))
		other.wantTaken()
	}
	close(release)
	sink.AwaitMessages(t, 4)
}

// storeFailed: no error of the store is answered as its success is, nor recorded as the message's fault.
func (s Stream) storeFailed(t *testing.T) {
	for _, failure := range []error{connect.ErrBusy, errors.Join(errors.New("disk"), connect.ErrUnknown), errors.New("full")} {
		t.Run(failure.Error(), func(t *testing.T) {
			sink := NewSink()
			sink.OnReceive(func(context.Context, message.Incoming) error { return failure })
			in, _ := s.serve(t, sink, Bounds{})
			peer := s.dial(t, in.Addr())
			peer.send(s.Frame(numbered(1)))
			peer.wantNotTaken()
			if errors.Is(failure, connect.ErrUnknown) {
				peer.wantClosed()
			}
			if got := sink.Refusals(); len(got) != 0 {
				t.Errorf("refusals %+v, want none", got)
			}
		})
	}
}

// hundredBad: connections of every bad kind, some still open and more than the inbound may have, then a good one. Red with
// admit of package gate refusing at the limit, whoever holds the places.
func (s Stream) hundredBad(t *testing.T) {
	sink := NewSink()
	in, _ := s.serve(t, sink, Bounds{MaxConnections: 8})
	frame := s.Frame(numbered(1))
	kinds := [][]byte{nil, frame[:1], frame[:len(frame)-3], []byte("GET /"), []byte("\x00\x00"), []byte("\x0b\x1c\r"), []byte("\xff\xfe"),
		[]byte("\x16\x03\x01\x02\x00"), []byte("\r\n\r\n\r\n")}
	for i := range 100 {
		bad := s.bare(t, in.Addr())
		if i%4 == 0 {
			_ = bad.Close()
			bad = s.dial(t, in.Addr())
		}
		_, _ = bad.Write(kinds[i%len(kinds)]) // it may have been evicted
		if i%3 == 0 {
			_ = bad.Close()
		}
	}
	good := s.dial(t, in.Addr())
	good.send(frame)
	good.wantTaken()
	if got := sink.Messages(); len(got) != 1 || !bytes.Equal(got[0].Body, numbered(1)) {
		t.Errorf("%d messages, want the good one", len(got))
	}
}

// tooManyGood: connections that brought messages keep their places; a new one is closed.
func (s Stream) tooManyGood(t *testing.T) {
	in, _ := s.serve(t, NewSink(), Bounds{MaxConnections: 2})
	var good []*Peer
	for i := range 2 {
		good = append(good, s.dial(t, in.Addr()))
		good[i].send(s.Frame(numbered(1)))
		good[i].wantTaken()
	}
	s.bare(t, in.Addr()).wantClosed()
	for _, p := range good {
		p.send(s.Frame(numbered(2)))
		p.wantTaken()
	}
}

// peers: whoever is not among them is closed at once, and recorded once. Red without the look at allowed in package gate,
// and, with more than one refusal, without scarce.
func (s Stream) peers(t *testing.T) {
	sink := NewSink()
	in, _ := s.serve(t, sink, Bounds{Peers: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::1/128")}})
	for range 5 {
		peer := s.bare(t, in.Addr())
		_, _ = peer.Write(s.Frame(numbered(1))) // it may have been closed
		peer.wantClosed()
	}
	if got := sink.AwaitRefusals(t, 1); len(got) != 1 || !strings.Contains(got[0].Reason, "peers") || !strings.HasPrefix(got[0].Peer, "127.0.0.1:") {
		t.Errorf("refusals %+v, want one", got)
	}
	in, _ = s.serve(t, sink, Bounds{Peers: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	good := s.dial(t, in.Addr())
	good.send(s.Frame(numbered(1)))
	good.wantTaken()
}

// stop: Serve returns in time, whatever its peers are at. Red, for mllp, without the deadlines of line.stop in package gate; http
// also has its server's Close.
func (s Stream) stop(t *testing.T) {
	frame := s.Frame(numbered(1))
	for name, do := range map[string]func(t *testing.T, addr string){
		"bare":    func(t *testing.T, addr string) { s.bare(t, addr) },
		"silent":  func(t *testing.T, addr string) { s.dial(t, addr) },
		"begun":   func(t *testing.T, addr string) { s.dial(t, addr).send(frame[:1]) },
		"not yet": func(t *testing.T, addr string) { s.dial(t, addr).send(frame[:len(frame)-1]) },
		"huge": func(t *testing.T, addr string) {
			p := s.dial(t, addr)
			_ = p.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			_, _ = p.Write(s.Frame(append(numbered(1), make([]byte, 8<<20)...)))
		},
		"never reads": func(t *testing.T, addr string) {
			p := s.dial(t, addr)
			_ = p.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
			many := bytes.Repeat(frame, 50)
			for _, err := p.Write(many); err == nil; _, err = p.Write(many) {
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in, served := s.serve(t, NewSink(), Bounds{MaxMessage: 1 << 20})
			first := s.dial(t, in.Addr())
			first.send(frame)
			first.wantTaken()
			do(t, in.Addr())
			served.Stop(t)
			first.wantClosed()
		})
	}
}
