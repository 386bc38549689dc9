package gate

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"coppice.dev/coppice/internal/connect"
)

// Conn is a connection that was let in. Its first Read greets the peer where there is TLS, in the caller's goroutine, so
// that a peer that does not answer holds up nobody else.
type Conn struct {
	net.Conn // what is read and written: the line, or TLS on it
	line     *line
	gate     *Gate
	since    time.Time
	proved   atomic.Bool

	greet   sync.Once
	greeted error
}

func newConn(g *Gate, tcp net.Conn) *Conn {
	l := &line{Conn: tcp, done: make(chan struct{})}
	c := &Conn{Conn: l, line: l, gate: g, since: time.Now()}
	if g.tls != nil {
		c.Conn = tls.Server(l, g.tls)
	}
	return c
}

// Done is closed when the connection is closed, be it by the gate, and when the gate stops.
func (c *Conn) Done() <-chan struct{} { return c.line.done }

// Prove says that the connection brought a message: it keeps its place.
func (c *Conn) Prove() { c.proved.Store(true) }

// Read reads what the peer sent.
func (c *Conn) Read(b []byte) (int, error) {
	c.greet.Do(func() { c.greeted = c.handshake() })
	if c.greeted != nil {
		return 0, c.greeted
	}
	return c.Conn.Read(b)
}

// handshake has its own deadline, in the place of the one that the caller of Read has set.
func (c *Conn) handshake() error {
	stream, ok := c.Conn.(*tls.Conn)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.gate.cfg.HandshakeTimeout)
	defer cancel()
	c.line.greet(true)
	err := stream.HandshakeContext(ctx)
	c.line.greet(false)
	if err == nil {
		return nil
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = errors.New("it took too long")
	}
	err = &HandshakeError{err}
	if !c.gate.Stopped() {
		c.gate.RecordOnce(c.gate.commit, c.RemoteAddr().String(), err.Error(), 0)
	}
	_ = c.line.Close()
	return err
}

// HandshakeError ends a connection whose peer and we did not agree on TLS. It is recorded.
type HandshakeError struct{ Err error }

func (e *HandshakeError) Error() string {
	return "TLS handshake: " + connect.OneLine(e.Err.Error(), 512) // names in a peer's certificate may be in it
}

// Unwrap returns what was wrong.
func (e *HandshakeError) Unwrap() error { return e.Err }

// CloseWrite ends what is sent; the peer sees an end after the last byte.
func (c *Conn) CloseWrite() error {
	if stream, ok := c.Conn.(*tls.Conn); ok {
		if err := stream.CloseWrite(); err != nil {
			return err
		}
	}
	half, ok := c.line.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}

// Close ends the connection. It may be called more than once.
func (c *Conn) Close() error {
	c.gate.mu.Lock()
	delete(c.gate.conns, c)
	c.gate.mu.Unlock()
	return c.Conn.Close()
}

// line is a TCP connection that takes no deadline later than its stop allows: package net/http sets deadlines of its own,
// and a TLS connection allows its goodbye five seconds.
type line struct {
	net.Conn
	done          chan struct{} // closed by the stop, or by Close
	mu            sync.Mutex
	over          bool      // done is closed
	asked         time.Time // for reads, by whoever uses the connection
	greeting      bool      // what was asked for holds only after the TLS handshake
	reads, writes time.Time // the latest; zero until the stop
}

// stop ends reads at once, and a write in hand by the stop's end.
func (l *line) stop(at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end()
	l.reads, l.writes = at, at.Add(StopWrite)
	_ = l.Conn.SetReadDeadline(l.reads)   // a closed connection
	_ = l.Conn.SetWriteDeadline(l.writes) // needs no waking
}

// end tells those who wait for something else than the network. The caller holds l.mu.
func (l *line) end() {
	if !l.over {
		l.over = true
		close(l.done)
	}
}

func (l *line) Close() error {
	l.mu.Lock()
	l.end()
	l.mu.Unlock()
	return l.Conn.Close()
}

func (l *line) SetDeadline(t time.Time) error {
	return errors.Join(l.SetReadDeadline(t), l.SetWriteDeadline(t))
}

func (l *line) SetReadDeadline(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = t
	return l.setRead()
}

// setRead sets what was asked for, as far as it holds. The caller holds l.mu.
func (l *line) setRead() error {
	t := l.asked
	if l.greeting {
		t = time.Time{}
	}
	return l.Conn.SetReadDeadline(within(t, l.reads))
}

func (l *line) greet(now bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.greeting = now
	_ = l.setRead() // an error here comes again from the read
}

func (l *line) SetWriteDeadline(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Conn.SetWriteDeadline(within(t, l.writes))
}

// within is t, or the latest where t is later or no deadline at all.
func within(t, latest time.Time) time.Time {
	if !latest.IsZero() && (t.IsZero() || t.After(latest)) {
		return latest
	}
	return t
}
