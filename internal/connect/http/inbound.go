package http

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	nethttp "net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/connect/gate"
	"coppice.dev/coppice/internal/connect/secure"
	"coppice.dev/coppice/internal/room"
)

// InboundConfig says where to listen and how much to bear. Zero values mean the defaults.
type InboundConfig struct {
	Name           string
	Listen         string // "host:port"; port 0 takes a free one
	Path           string // of the URL; the only one that takes messages
	MaxMessage     int64  // bytes of one body
	AuthHeader     string // "Name: value", which a request must have; empty: none
	TLS            *secure.Server
	Peers          []netip.Prefix // whose connections are taken; empty: everybody's
	HeaderTimeout  time.Duration  // from a request's first byte to the end of its header
	BodyTimeout    time.Duration  // from there to the end of its body
	IdleTimeout    time.Duration  // from one request to the next
	WriteTimeout   time.Duration  // for one answer: a peer that does not read is closed
	MaxConnections int            // at once; see gate.Gate
	Split          bool           // a batch is its messages, and not one
	Room           *room.Room     // for bodies, shared with others; nil: one of its own
	Log            *slog.Logger
}

// Inbound receives on persistent connections, one request after the other on each.
type Inbound struct {
	cfg     InboundConfig
	auth    auth
	sink    connect.Sink
	gate    *gate.Gate
	running running
}

// NewInbound checks the configuration and reads the files that it names; it does not listen.
func NewInbound(cfg InboundConfig, sink connect.Sink) (*Inbound, error) {
	cfg.fill()
	a, err := parseAuth(cfg.AuthHeader)
	if err == nil && !strings.HasPrefix(cfg.Path, "/") {
		err = errors.New("path does not begin with /")
	}
	if err != nil {
		return nil, fmt.Errorf("http inbound %s: %w", cfg.Name, err)
	}
	g, err := gate.New(gate.Config{Inbound: cfg.Name, Listen: cfg.Listen, Peers: cfg.Peers, TLS: cfg.TLS,
		MaxConnections: cfg.MaxConnections, Log: cfg.Log}, sink)
	if err != nil {
		return nil, fmt.Errorf("http inbound %s: %w", cfg.Name, err)
	}
	return &Inbound{cfg: cfg, auth: a, sink: sink, gate: g}, nil
}

func (cfg *InboundConfig) fill() {
	if cfg.Path == "" {
		cfg.Path = "/"
	}
	if cfg.MaxMessage <= 0 {
		cfg.MaxMessage = DefaultMaxMessage
	}
	if cfg.Room == nil {
		cfg.Room = room.New(DefaultRoom, cfg.MaxMessage, nil)
	}
	if cfg.HeaderTimeout <= 0 {
		cfg.HeaderTimeout = DefaultHeaderTimeout
	}
	if cfg.BodyTimeout <= 0 {
		cfg.BodyTimeout = DefaultBodyTimeout
	}
	if cfg.IdleTimeout <= 0 {
		cfg.IdleTimeout = DefaultIdleTimeout
	}
	if cfg.WriteTimeout <= 0 {
		cfg.WriteTimeout = DefaultWriteTimeout
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Log = cfg.Log.With("inbound", cfg.Name)
}

// Listen binds the address.
func (in *Inbound) Listen(ctx context.Context) error {
	if err := in.gate.Listen(ctx); err != nil {
		return fmt.Errorf("http inbound %s: %w", in.cfg.Name, err)
	}
	return nil
}

// Addr is the address that is bound, or, before Listen, the one that was configured.
func (in *Inbound) Addr() string { return in.gate.Address() }

// Serve receives until ctx is done; see connect.Inbound. Its error after that tells of a sink that did not let go.
func (in *Inbound) Serve(ctx context.Context) error {
	commit, end, err := in.gate.Begin(ctx)
	if err != nil {
		return fmt.Errorf("http inbound %s: %w", in.cfg.Name, err)
	}
	server := in.server(commit)
	err = server.Serve(door{in.gate})
	if in.gate.Stopped() {
		err = nil
	}
	// What is being committed may still be answered; then what is left of the connections is cut.
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), gate.StopWrite)
	defer cancel()
	if server.Shutdown(late) != nil {
		_ = server.Close() // an error here means that a connection is closed
	}
	in.running.close()
	if err = errors.Join(err, end(&in.running.work)); err != nil {
		return fmt.Errorf("http inbound %s: %w", in.cfg.Name, err)
	}
	return nil
}

func (in *Inbound) server(commit context.Context) *nethttp.Server {
	protocols := new(nethttp.Protocols)
	protocols.SetHTTP1(true) // of HTTP/2, one connection would be many requests at once
	request := in.cfg.HeaderTimeout + in.cfg.BodyTimeout
	return &nethttp.Server{
		Handler:                      nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) { in.serve(commit, w, r) }),
		Protocols:                    protocols,
		DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout:            in.cfg.HeaderTimeout,
		ReadTimeout:                  request,
		WriteTimeout:                 request + in.cfg.WriteTimeout, // of what the server says by itself; an answer of ours sets its own
		IdleTimeout:                  in.cfg.IdleTimeout,
		MaxHeaderBytes:               maxHeader,
		ConnContext:                  func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, visitKey{}, c) },
		ConnState:                    func(c net.Conn, s nethttp.ConnState) { in.watch(commit, c.(*visit), s) },
		ErrorLog:                     slog.NewLogLogger(in.cfg.Log.Handler(), slog.LevelWarn),
	}
}

// visit is a connection as the server has it.
type visit struct {
	*gate.Conn
	begun atomic.Bool // a request has begun, and is not whole
}

// visitKey is where the context of a request has its visit.
type visitKey struct{}

// door is the gate as a listener of visits.
type door struct{ *gate.Gate }

func (d door) Accept() (net.Conn, error) {
	conn, err := d.Gate.Accept()
	if err != nil {
		return nil, err
	}
	return &visit{Conn: conn.(*gate.Conn)}, nil
}

// watch records a connection that ended before the header of a request had: it may have been a message. The server tells
// nobody of it.
func (in *Inbound) watch(commit context.Context, v *visit, s nethttp.ConnState) {
	switch s {
	case nethttp.StateActive:
		v.begun.Store(true)
	case nethttp.StateClosed:
		if v.begun.Load() && !in.gate.Stopped() {
			in.gate.RecordOnce(commit, v.RemoteAddr().String(), "connection ended without a whole HTTP header", 0)
		}
	}
}
