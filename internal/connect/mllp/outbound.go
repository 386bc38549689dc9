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
	Parallel       int            // how many connections there may be, each with one message on its way; 0 is 1
	MaxReply       int64          // bytes of one answer
	Log            *slog.Logger
}

// Outbound delivers messages over one connection, or as many as it may have, which it opens when it needs them and keeps while
// all goes well, unless each message is to have its own. It is safe for concurrent use; on one connection sends follow one another.
type Outbound struct {
	cfg   OutboundConfig
	tls   func(host string) *tls.Config // nil: none
	turns chan struct{}                 // holds a token for each connection that nobody uses

	mu   sync.Mutex
	idle []*Client // that nobody uses; the one that was used last is the last

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
		turns:  make(chan struct{}, max(cfg.Parallel, 1)),
		closed: make(chan struct{}),
		gone:   make(chan struct{}),
	}
	for range cap(o.turns) {
		o.turns <- struct{}{}
	}
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
	case <-o.turns:
		defer func() { o.turns <- struct{}{} }()
	case <-ctx.Done():
		return message.Receipt{}, o.failed(ctx.Err())
	}
	if err := ctx.Err(); err != nil {
		return message.Receipt{}, o.failed(err)
	}
	client, err := o.connection(ctx)
	if err != nil {
		return message.Receipt{}, o.failed(err)
	}
	ack, err := o.exchange(ctx, client, d.Body)
	rejection := (*message.Rejection)(nil)
	rejected := errors.As(err, &rejection) // by the client: nothing was sent
	if (rejected || err == nil) && !o.cfg.PerMessage {
		o.keep(client)
	} else {
		_ = client.Close() // always nil
	}
	switch {
	case rejected:
		return message.Receipt{}, rejection
	case err != nil:
		return message.Receipt{}, o.failed(err)
	}
	return outcome(ack)
}

// connection returns the connection that was used last of those that nobody uses and that are still up, or a new one. Who calls it
// has a turn.
func (o *Outbound) connection(ctx context.Context) (*Client, error) {
	for client := o.take(); client != nil; client = o.take() {
		err := client.cause()
		if err == nil {
			return client, nil
		}
		o.cfg.Log.Debug("connection ended while idle", "outbound", o.cfg.Name, "cause", err)
		_ = client.Close() // always nil
	}
	ctx, cancel := context.WithTimeout(ctx, o.cfg.ConnectTimeout)
	defer cancel()
	return dial(ctx, o.cfg.Connect, o.tls, o.cfg.MaxReply)
}

// take returns an idle connection, which nobody else has then; nil if there is none.
func (o *Outbound) take() *Client {
	o.mu.Lock()
	defer o.mu.Unlock()
	last := len(o.idle) - 1
	if last < 0 {
		return nil
	}
	client := o.idle[last]
	o.idle = o.idle[:last]
	return client
}

func (o *Outbound) keep(client *Client) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.idle = append(o.idle, client)
}

// exchange does one round on a connection that nothing waits on.
func (o *Outbound) exchange(ctx context.Context, client *Client, body []byte) (hl7.Acknowledgement, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, o.cfg.AckTimeout,
		fmt.Errorf("no answer within %v: %w", o.cfg.AckTimeout, context.DeadlineExceeded))
	defer cancel()
	return client.Exchange(ctx, body)
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

// failed names the outbound in an error, and a Close as such.
func (o *Outbound) failed(err error) error {
	select {
	case <-o.closed:
		err = connect.ErrClosed
	default:
	}
	return fmt.Errorf("mllp outbound %s: %s: %w", o.cfg.Name, o.cfg.Connect, err)
}

// Close ends the connections and every Send in progress, and waits for them. It may be called more than once.
func (o *Outbound) Close() error {
	o.once.Do(func() {
		close(o.closed)
		for range cap(o.turns) {
			<-o.turns // for good: later sends see that it is closed
		}
		for client := o.take(); client != nil; client = o.take() {
			_ = client.Close() // always nil
		}
		close(o.gone)
	})
	<-o.gone
	return nil
}
