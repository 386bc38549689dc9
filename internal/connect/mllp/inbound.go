package mllp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/connect/gate"
	"coppice.dev/coppice/internal/connect/secure"
	"coppice.dev/coppice/internal/room"
)

// AckMode says which answers a sender gets.
type AckMode string

// The modes. In every one of them a message is committed before anything is answered.
const (
	AckOriginal AckMode = "original" // AA once committed, whatever MSH-15 and MSH-16 say; the default
	AckEnhanced AckMode = "enhanced" // as MSH-15 and MSH-16 ask: CA, or AA, or nothing; at most one answer
	AckNone     AckMode = "none"     // nothing, for senders that want none
)

// InboundConfig says where to listen and how much to bear. Zero values mean the defaults.
type InboundConfig struct {
	Name           string
	Listen         string         // "host:port"; port 0 takes a free one
	MaxMessage     int64          // bytes of one body
	FrameTimeout   time.Duration  // from a block's first byte to its last
	IdleTimeout    time.Duration  // from one block to the next
	WriteTimeout   time.Duration  // for one answer: a peer that does not read is closed
	TLS            *secure.Server // nil: none
	Peers          []netip.Prefix // whose connections are taken; empty: everybody's
	MaxConnections int            // at once; see gate.Gate
	Ack            AckMode
	Split          bool       // a batch is its messages, and not one
	Room           *room.Room // for bodies, shared with others; nil: one of its own
	Log            *slog.Logger
}

// Inbound receives on persistent connections, one goroutine each.
type Inbound struct {
	cfg  InboundConfig
	sink connect.Sink
	gate *gate.Gate
}

// NewInbound checks the configuration and reads the files that it names; it does not listen.
func NewInbound(cfg InboundConfig, sink connect.Sink) (*Inbound, error) {
	switch cfg.Ack {
	case "":
		cfg.Ack = AckOriginal
	case AckOriginal, AckEnhanced, AckNone:
	default:
		return nil, fmt.Errorf("mllp inbound %s: ack %q is none of original, enhanced, none", cfg.Name, cfg.Ack)
	}
	cfg.fill()
	g, err := gate.New(gate.Config{Inbound: cfg.Name, Listen: cfg.Listen, Peers: cfg.Peers, TLS: cfg.TLS,
		MaxConnections: cfg.MaxConnections, Log: cfg.Log}, sink)
	if err != nil {
		return nil, fmt.Errorf("mllp inbound %s: %w", cfg.Name, err)
	}
	return &Inbound{cfg: cfg, sink: sink, gate: g}, nil
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
	if cfg.Room == nil {
		cfg.Room = room.New(DefaultRoom, cfg.MaxMessage, nil)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Log = cfg.Log.With("inbound", cfg.Name)
}

// Listen binds the address.
func (in *Inbound) Listen(ctx context.Context) error {
	if err := in.gate.Listen(ctx); err != nil {
		return fmt.Errorf("mllp inbound %s: %w", in.cfg.Name, err)
	}
	return nil
}

// Addr is the address that is bound, or, before Listen, the one that was configured.
func (in *Inbound) Addr() string { return in.gate.Address() }

// Serve receives until ctx is done; see connect.Inbound. Its error after that tells of a sink that did not let go.
func (in *Inbound) Serve(ctx context.Context) error {
	commit, end, err := in.gate.Begin(ctx)
	if err != nil {
		return fmt.Errorf("mllp inbound %s: %w", in.cfg.Name, err)
	}
	var conns sync.WaitGroup
	for {
		var conn net.Conn
		if conn, err = in.gate.Accept(); err != nil {
			break
		}
		conns.Go(func() {
			defer conn.Close() // what mattered was written before
			newPeer(in, conn.(*gate.Conn)).serve(commit)
		})
	}
	if in.gate.Stopped() {
		err = nil
	}
	if err = errors.Join(err, end(&conns)); err != nil {
		return fmt.Errorf("mllp inbound %s: %w", in.cfg.Name, err)
	}
	return nil
}
