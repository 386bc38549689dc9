package mllp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"coppice.dev/coppice/internal/connect"
)

// AckMode says which answers a sender gets.
type AckMode string

// The modes. In every one of them a message is committed before anything is answered.
const (
	AckOriginal AckMode = "original" // AA once committed, whatever MSH-15 and MSH-16 say; the default
	AckEnhanced AckMode = "enhanced" // as MSH-15 and MSH-16 ask: CA, or AA, or nothing; at most one answer
	AckNone     AckMode = "none"     // nothing, for senders that want none
)

// How a stop is spread over connect.StopWithin: commits may run for stopCommit; then their contexts end, and writes with
// them; what is left a little later is reported.
const (
	stopCommit = 1000 * time.Millisecond
	stopWrite  = 1400 * time.Millisecond
	stopReport = 1800 * time.Millisecond
)

// InboundConfig says where to listen and how much to bear. Zero values mean the defaults.
type InboundConfig struct {
	Name           string
	Listen         string        // "host:port"; port 0 takes a free one
	MaxMessage     int64         // bytes of one body
	FrameTimeout   time.Duration // from a block's first byte to its last
	IdleTimeout    time.Duration // from one block to the next
	WriteTimeout   time.Duration // for one answer: a peer that does not read is closed
	MaxConnections int           // at once; see Inbound
	Ack            AckMode
	Log            *slog.Logger
}

// Inbound receives on persistent connections, one goroutine each.
//
// At MaxConnections a new connection takes the place of the oldest one that has not yet brought a message, so that
// silent connections cannot shut the others out; where every one has, the new one is closed.
type Inbound struct {
	cfg  InboundConfig
	sink connect.Sink

	mu       sync.Mutex
	listener net.Listener
	peers    map[*peer]struct{}
	stopped  time.Time // zero until the stop
}

// NewInbound checks the configuration; it does not listen.
func NewInbound(cfg InboundConfig, sink connect.Sink) (*Inbound, error) {
	if _, _, err := net.SplitHostPort(cfg.Listen); err != nil {
		return nil, fmt.Errorf("mllp inbound %s: listen address: %w", cfg.Name, err)
	}
	switch cfg.Ack {
	case "":
		cfg.Ack = AckOriginal
	case AckOriginal, AckEnhanced, AckNone:
	default:
		return nil, fmt.Errorf("mllp inbound %s: ack %q is none of original, enhanced, none", cfg.Name, cfg.Ack)
	}
	cfg.fill()
	return &Inbound{cfg: cfg, sink: sink, peers: map[*peer]struct{}{}}, nil
}

func (cfg *InboundConfig) fill() {
	if cfg.MaxMessage <= 0 {
		cfg.MaxMessage = DefaultMaxMessage
	}
	if cfg.FrameTimeout <= 0 {
		cfg.FrameTimeout = DefaultFrameTimeout
	}
	if cfg.IdleTimeout <= 0 {
		cfg.IdleTimeout = DefaultIdleTimeout
	}
	if cfg.WriteTimeout <= 0 {
		cfg.WriteTimeout = DefaultWriteTimeout
	}
	if cfg.MaxConnections <= 0 {
		cfg.MaxConnections = DefaultMaxConnections
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Log = cfg.Log.With("inbound", cfg.Name)
}

// Listen binds the address.
func (in *Inbound) Listen(ctx context.Context) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", in.cfg.Listen)
	if err != nil {
		return fmt.Errorf("mllp inbound %s: %w", in.cfg.Name, err)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.listener = l
	return nil
}

// Addr is the address that is bound, or, before Listen, the one that was configured.
func (in *Inbound) Addr() string {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.listener == nil {
		return in.cfg.Listen
	}
	return in.listener.Addr().String()
}

// Serve receives until ctx is done; see connect.Inbound. Its error after that tells of a sink that did not let go.
func (in *Inbound) Serve(ctx context.Context) error {
	in.mu.Lock()
	listener := in.listener
	in.mu.Unlock()
	if listener == nil {
		return fmt.Errorf("mllp inbound %s: %w", in.cfg.Name, connect.ErrNotListening)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var conns sync.WaitGroup
	unblocked := make(chan struct{})
	go func() {
		defer close(unblocked)
		<-ctx.Done()
		in.stop(listener)
	}()
	err := in.accept(ctx, listener, &conns)
	cancel()
	<-unblocked
	if err = errors.Join(err, waitFor(&conns, stopReport)); err != nil {
		return fmt.Errorf("mllp inbound %s: %w", in.cfg.Name, err)
	}
	return nil
}

// stop wakes everything that waits on the network.
func (in *Inbound) stop(listener net.Listener) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.stopped = time.Now()
	_ = listener.Close() // an error here means that it is closed
	for p := range in.peers {
		p.stop(in.stopped)
	}
}

// accept takes connections until ctx is done. An error of one accept (too many open files, a connection that went away)
// passes: the pause grows to a second.
func (in *Inbound) accept(ctx context.Context, listener net.Listener, conns *sync.WaitGroup) error {
	pause := time.Duration(0)
	for {
		conn, err := listener.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close() // never served
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil:
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			in.cfg.Log.Warn("accept", "error", err, "pause", pause)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			continue
		}
		pause = 0
		p := newPeer(in.cfg, in.sink, conn)
		if !in.admit(p) {
			_ = conn.Close() // never served
			continue
		}
		conns.Go(func() {
			defer in.release(p)
			p.serve(ctx)
		})
	}
}

// admit makes room for p, and says whether there is any.
func (in *Inbound) admit(p *peer) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.stopped.IsZero() {
		return false
	}
	if len(in.peers) >= in.cfg.MaxConnections {
		old := in.oldestUnproved()
		if old == nil {
			in.cfg.Log.Warn("connection refused: too many", "peer", p.addr, "limit", in.cfg.MaxConnections)
			return false
		}
		in.cfg.Log.Warn("connection closed for a new one: it brought no message", "peer", old.addr)
		old.evict()
		delete(in.peers, old)
	}
	in.peers[p] = struct{}{}
	return true
}

// oldestUnproved is the oldest connection that has not brought a message; nil where all have. The caller holds in.mu.
func (in *Inbound) oldestUnproved() *peer {
	var old *peer
	for p := range in.peers {
		if !p.proved.Load() && (old == nil || p.since.Before(old.since)) {
			old = p
		}
	}
	return old
}

func (in *Inbound) release(p *peer) {
	_ = p.conn.Close() // what mattered was written before
	in.mu.Lock()
	defer in.mu.Unlock()
	delete(in.peers, p)
}

// waitFor waits for the connections, at most d.
func waitFor(conns *sync.WaitGroup, d time.Duration) error {
	done := make(chan struct{})
	go func() {
		conns.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-time.After(d):
		return errors.New("stop: a commit did not end with its context")
	}
}
