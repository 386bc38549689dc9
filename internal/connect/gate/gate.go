// Package gate lets the peers of an inbound in: those whose address may, over TLS where that is asked for, no more at once
// than the inbound bears. A stop ends every wait on the connections that it let in, whoever set their deadlines.
package gate

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/connect/secure"
)

// Defaults for what a configuration leaves zero.
const (
	DefaultMaxConnections   = 256
	DefaultHandshakeTimeout = 10 * time.Second
)

// How a stop is spread over connect.StopWithin: commits may run for StopCommit; then their contexts end, and writes with
// StopWrite; what is left at StopReport is reported.
const (
	StopCommit = 1000 * time.Millisecond
	StopWrite  = 1400 * time.Millisecond
	StopReport = 1800 * time.Millisecond
)

// Config says where a gate stands and whom it lets in. Zero values mean the defaults.
type Config struct {
	Inbound          string
	Listen           string         // "host:port"; port 0 takes a free one
	Peers            []netip.Prefix // whose connections are taken; empty: everybody's
	TLS              *secure.Server // nil: none
	MaxConnections   int            // at once; see Gate
	HandshakeTimeout time.Duration
	Log              *slog.Logger
}

// Gate is a listener. At MaxConnections a new connection takes the place of the oldest one that has not proved itself, so
// that silent connections cannot shut the others out; where every one has, the new one is closed.
type Gate struct {
	cfg  Config
	tls  *tls.Config // nil: none
	sink connect.Sink

	recording sync.WaitGroup // refusals of connections that were never served
	stopping  chan struct{}  // closed by the stop
	scarce    scarce

	mu       sync.Mutex
	listener net.Listener
	commit   context.Context // for what is recorded; ends StopCommit after the stop
	conns    map[*Conn]struct{}
	stopped  time.Time // zero until the stop
}

// New checks the configuration and reads the files that it names; it does not listen.
func New(cfg Config, sink connect.Sink) (*Gate, error) {
	if _, _, err := net.SplitHostPort(cfg.Listen); err != nil {
		return nil, fmt.Errorf("listen address: %w", err)
	}
	if cfg.MaxConnections <= 0 {
		cfg.MaxConnections = DefaultMaxConnections
	}
	if cfg.HandshakeTimeout <= 0 {
		cfg.HandshakeTimeout = DefaultHandshakeTimeout
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	g := &Gate{cfg: cfg, sink: sink, stopping: make(chan struct{}), conns: map[*Conn]struct{}{}}
	if cfg.TLS != nil {
		var err error
		if g.tls, err = cfg.TLS.Config(); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// Listen binds the address.
func (g *Gate) Listen(ctx context.Context) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", g.cfg.Listen)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.listener = l
	return nil
}

// Address is the address that is bound, or, before Listen, the one that was configured.
func (g *Gate) Address() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listener == nil {
		return g.cfg.Listen
	}
	return g.listener.Addr().String()
}

// Addr implements net.Listener, after Listen.
func (g *Gate) Addr() net.Addr { return g.listener.Addr() }

// Begin is called before the first Accept. When ctx ends, or end is called, the gate stops: Accept returns, reads of its
// connections end at once, writes at StopWrite. Commits take the context that it returns, which lets a stop wait for them:
// it ends StopCommit after the stop, or when end has seen work end. The error of end tells of work that did not.
func (g *Gate) Begin(ctx context.Context) (commit context.Context, end func(work *sync.WaitGroup) error, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listener == nil {
		return nil, nil, connect.ErrNotListening
	}
	ctx, cancel := context.WithCancel(ctx)
	commit, release := connect.Grace(ctx, StopCommit)
	g.commit = commit
	unhook := context.AfterFunc(ctx, g.stop)
	return commit, func(work *sync.WaitGroup) error {
		unhook()
		cancel()
		g.stop()
		defer release()
		return errors.Join(g.await(work), g.await(&g.recording))
	}, nil
}

// stop wakes everything that waits on the network.
func (g *Gate) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.stopped.IsZero() {
		return
	}
	g.stopped = time.Now()
	close(g.stopping)
	_ = g.listener.Close() // an error here means that it is closed
	for c := range g.conns {
		c.line.stop(g.stopped)
	}
}

// await waits for work on connections until StopReport after the stop.
func (g *Gate) await(work *sync.WaitGroup) error {
	done := make(chan struct{})
	go func() {
		work.Wait()
		close(done)
	}()
	g.mu.Lock()
	left := time.Until(g.stopped.Add(StopReport))
	g.mu.Unlock()
	select {
	case <-done:
		return nil
	case <-time.After(left):
		return errors.New("stop: a commit did not end with its context")
	}
}

// Stopped says whether the gate stops, or has.
func (g *Gate) Stopped() bool {
	select {
	case <-g.stopping:
		return true
	default:
		return false
	}
}

// Close implements net.Listener. Connections that were let in stay.
func (g *Gate) Close() error { return g.listener.Close() }

// Accept returns the next connection that is let in, a *Conn. An error of one accept (too many open files, a connection
// that went away) passes: the pause grows to a second. It returns an error only when the gate is closed or stops.
func (g *Gate) Accept() (net.Conn, error) {
	pause := time.Duration(0)
	for {
		tcp, err := g.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil, err
		}
		if err != nil {
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			g.cfg.Log.Warn("accept", "error", err, "pause", pause)
			select {
			case <-time.After(pause):
			case <-g.stopping:
			}
			continue
		}
		pause = 0
		if !g.allowed(tcp.RemoteAddr()) {
			_ = tcp.Close() // never served
			g.recording.Go(func() { g.RecordOnce(g.commit, tcp.RemoteAddr().String(), "its address is not among the peers", 0) })
			continue
		}
		if c := g.admit(tcp); c != nil {
			return c, nil
		}
		_ = tcp.Close() // never served
	}
}

// allowed says whether a peer's address is one of those that may connect.
func (g *Gate) allowed(addr net.Addr) bool {
	if len(g.cfg.Peers) == 0 {
		return true
	}
	at, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return false
	}
	ip := at.Addr().Unmap().WithZone("") // an IPv4 peer of an IPv6 listener is one of the IPv4 network
	for _, p := range g.cfg.Peers {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}

// admit makes room for a connection; nil where there is none.
func (g *Gate) admit(tcp net.Conn) *Conn {
	c := newConn(g, tcp)
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.stopped.IsZero() {
		return nil
	}
	if len(g.conns) >= g.cfg.MaxConnections {
		old := g.oldestUnproved()
		if old == nil {
			g.cfg.Log.Warn("connection refused: too many", "peer", tcp.RemoteAddr(), "limit", g.cfg.MaxConnections)
			return nil
		}
		g.cfg.Log.Warn("connection closed for a new one: it brought no message", "peer", old.RemoteAddr())
		_ = old.line.Close() // not a TLS goodbye, which may have to wait
		delete(g.conns, old)
	}
	g.conns[c] = struct{}{}
	return c
}

// oldestUnproved is the oldest connection that has not brought a message; nil where all have. The caller holds g.mu.
func (g *Gate) oldestUnproved() *Conn {
	var old *Conn
	for c := range g.conns {
		if !c.proved.Load() && (old == nil || c.since.Before(old.since)) {
			old = c
		}
	}
	return old
}
