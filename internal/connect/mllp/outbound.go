package mllp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/connect/secure"
	"coppice.dev/coppice/internal/hl7"
	"coppice.dev/coppice/internal/message"
)

// maxText caps what is kept of a receiver's text, in bytes.
const maxText = 512

// OutboundConfig says where deliveries go. Zero values mean the defaults.
type OutboundConfig struct {
	Name           string
	Connect        string         // "host:port"
	AckTimeout     time.Duration  // from the first byte sent to the last byte of the answer
	ConnectTimeout time.Duration  // with the TLS handshake
	TLS            *secure.Client // nil: none
	PerMessage     bool           // a connection for each message, for receivers that want one
	MaxReply       int64          // bytes of one answer
	Log            *slog.Logger
}

// Outbound delivers messages over one connection, which it opens when it needs it and keeps while all goes well, unless
// each message is to have its own. It is safe for concurrent use; sends follow one another.
type Outbound struct {
	cfg    OutboundConfig
	tls    func(host string) *tls.Config // nil: none
	turn   chan struct{}                 // holds one token: who has it may use client
	client *Client

	closed chan struct{}
	once   sync.Once
	gone   chan struct{} // closed when Close has done its work
}

// NewOutbound checks the configuration and reads the files that it names; it does not connect.
func NewOutbound(cfg OutboundConfig) (*Outbound, error) {
	if _, _, err := net.SplitHostPort(cfg.Connect); err != nil {
		return nil, fmt.Errorf("mllp outbound %s: connect address: %w", cfg.Name, err)
	}
	if cfg.AckTimeout <= 0 {
		cfg.AckTimeout = DefaultAckTimeout
	}
	if cfg.ConnectTimeout <= 0 {
		cfg.ConnectTimeout = DefaultConnectTimeout
	}
	if cfg.MaxReply <= 0 {
		cfg.MaxReply = DefaultMaxReply
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	o := &Outbound{
		cfg:    cfg,
		turn:   make(chan struct{}, 1),
		closed: make(chan struct{}),
		gone:   make(chan struct{}),
	}
	o.turn <- struct{}{}
	if cfg.TLS != nil {
		var err error
		if o.tls, err = cfg.TLS.Config(); err != nil {
			return nil, fmt.Errorf("mllp outbound %s: %w", cfg.Name, err)
		}
	}
	return o, nil
}

// Send delivers d and waits for the receiver's answer. AA and CA are a receipt; AE, AR and their like, and a body that
// cannot be framed, a *message.Rejection. After any other error the connection is gone, and whether the receiver took
// the message is unknown.
func (o *Outbound) Send(ctx context.Context, d message.Delivery) (message.Receipt, error) {
	ctx, cancel := connect.UntilClosed(ctx, o.closed)
	defer cancel()
	select {
	case <-o.turn:
		defer func() { o.turn <- struct{}{} }()
	case <-ctx.Done():
		return message.Receipt{}, o.failed(ctx.Err())
	}
	if err := ctx.Err(); err != nil {
		return message.Receipt{}, o.failed(err)
	}
	ack, err := o.exchange(ctx, d.Body)
	if rejection := (*message.Rejection)(nil); errors.As(err, &rejection) {
		return message.Receipt{}, rejection
	}
	if err != nil || o.cfg.PerMessage {
		o.drop()
	}
	if err != nil {
		return message.Receipt{}, o.failed(err)
	}
	return outcome(ack)
}

// exchange does one round on a connection that nothing waits on.
func (o *Outbound) exchange(ctx context.Context, body []byte) (hl7.Acknowledgement, error) {
	if o.client != nil {
		if err := o.client.cause(); err != nil {
			o.cfg.Log.Debug("connection ended while idle", "outbound", o.cfg.Name, "cause", err)
			o.drop()
		}
	}
	if o.client == nil {
		dialing, cancel := context.WithTimeout(ctx, o.cfg.ConnectTimeout)
		defer cancel()
		client, err := dial(dialing, o.cfg.Connect, o.tls, o.cfg.MaxReply)
		if err != nil {
			return hl7.Acknowledgement{}, err
		}
		o.client = client
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.cfg.AckTimeout,
		fmt.Errorf("no answer within %v: %w", o.cfg.AckTimeout, context.DeadlineExceeded))
	defer cancel()
	return o.client.Exchange(ctx, body)
}

// outcome is what a receiver's answer means for the delivery.
func outcome(ack hl7.Acknowledgement) (message.Receipt, error) {
	if ack.Taken() {
		return message.Receipt{Text: ack.Code}, nil
	}
	return message.Receipt{}, &message.Rejection{
		Code:  ack.Code,
		Text:  connect.OneLine(ack.Text, maxText),
		Final: ack.Code == hl7.AR || ack.Code == hl7.CR,
	}
}

// drop ends the connection; who calls it has the turn.
func (o *Outbound) drop() {
	if o.client != nil {
		_ = o.client.Close() // always nil
		o.client = nil
	}
}

// failed names the outbound in an error, and a Close as such.
func (o *Outbound) failed(err error) error {
	select {
	case <-o.closed:
		err = connect.ErrClosed
	default:
	}
	return fmt.Errorf("mllp outbound %s: %s: %w", o.cfg.Name, o.cfg.Connect, err)
}

// Close ends the connection and every Send in progress, and waits for them. It may be called more than once.
func (o *Outbound) Close() error {
	o.once.Do(func() {
		close(o.closed)
		<-o.turn // for good: later sends see that it is closed
		o.drop()
		close(o.gone)
	})
	<-o.gone
	return nil
}
