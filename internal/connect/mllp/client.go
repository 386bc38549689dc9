package mllp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/connect/secure"
	"coppice.dev/coppice/internal/hl7"
	"coppice.dev/coppice/internal/message"
)

// Errors of an exchange, beside those of the network; test with errors.Is.
var (
	// ErrForeign is returned when an answer names another message than the one sent.
	ErrForeign = errors.New("answer is for another message")
	// ErrUnsolicited ends a connection whose peer sent something while nothing was asked.
	ErrUnsolicited = errors.New("peer answered what was not asked")
)

// settle is waited before a message without a control id is sent: its answer can be told from one that waits unread only
// by being later, so the reader gets the time to see what waits.
const settle = 2 * time.Millisecond

// settleRefused is how long the answer to a block that could not be sent whole may take to be read.
const settleRefused = 200 * time.Millisecond

// Client is one connection to an MLLP receiver. Its methods are safe for concurrent use; exchanges follow one another.
// The first error of an exchange ends the connection.
type Client struct {
	conn  net.Conn
	turn  sync.Mutex // held by the exchange in progress
	reply chan []byte
	dead  chan struct{} // closed with the first error
	ended chan struct{} // closed when the reader has returned

	mu       sync.Mutex
	awaiting bool // an exchange wants the next block
	err      error
}

// Dial connects to addr, "host:port". Without a deadline in ctx it tries for DefaultConnectTimeout.
func Dial(ctx context.Context, addr string) (*Client, error) {
	return dial(ctx, addr, nil, DefaultMaxReply)
}

// dial also greets with TLS, unless the configuration for it is nil.
func dial(ctx context.Context, addr string, tls func(host string) *tls.Config, maxReply int64) (*Client, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultConnectTimeout)
		defer cancel()
	}
	conn, err := secure.Dial(ctx, addr, tls)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return newClient(conn, maxReply), nil
}

func newClient(conn net.Conn, maxReply int64) *Client {
	c := &Client{
		conn:  conn,
		reply: make(chan []byte, 1),
		dead:  make(chan struct{}),
		ended: make(chan struct{}),
	}
	go c.read(maxReply)
	return c
}

// Exchange sends body and waits for its answer, until ctx ends or, without a deadline there, for DefaultAckTimeout.
//
// An answer of any code is no error. A *message.Rejection means that body cannot be framed and nothing was sent. After
// every other error (ErrForeign, hl7.ErrNoAck, the end of ctx, of the network) the connection is closed, and whether the
// message arrived is unknown. The answer's MSA-2 must be the message's control id; where that is empty, or the body is a
// batch, which receivers answer in many ways, any will do.
func (c *Client) Exchange(ctx context.Context, body []byte) (hl7.Acknowledgement, error) {
	if !framable(body) {
		return hl7.Acknowledgement{}, &message.Rejection{
			Code: "UNFRAMABLE", Text: "body holds the block end FS CR, which MLLP cannot carry", Final: true,
		}
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultAckTimeout)
		defer cancel()
	}
	c.turn.Lock()
	defer c.turn.Unlock()
	id := checkedID(body)
	reply, err := c.roundTrip(ctx, body, id == "")
	if err != nil {
		return hl7.Acknowledgement{}, c.fail(err)
	}
	ack, err := hl7.ParseAck(reply)
	if err != nil {
		return hl7.Acknowledgement{}, c.fail(err)
	}
	if id != "" && strings.TrimSpace(ack.ControlID) != id {
		return hl7.Acknowledgement{}, c.fail(fmt.Errorf("%w: %q, not %q", ErrForeign,
			connect.OneLine(ack.ControlID, 64), connect.OneLine(id, 64)))
	}
	return ack, nil
}

// checkedID is the control id that the answer to body must name; empty where any will do.
func checkedID(body []byte) string {
	h, err := hl7.ParseHeader(body)
	if err != nil || h.Batch() {
		return ""
	}
	return strings.TrimSpace(h.ControlID)
}

// roundTrip writes one block and returns the body of the next one that arrives.
func (c *Client) roundTrip(ctx context.Context, body []byte, blind bool) ([]byte, error) {
	// The end of ctx closes the connection, which also ends a write that the peer does not read.
	stop := context.AfterFunc(ctx, func() { _ = c.fail(context.Cause(ctx)) })
	defer stop()
	if blind {
		select {
		case <-time.After(settle):
		case <-c.dead:
			return nil, c.cause()
		}
	}
	if err := c.await(ctx); err != nil {
		return nil, err
	}
	if _, err := c.conn.Write(frame(body)); err != nil {
		return c.refused(err)
	}
	select {
	case reply := <-c.reply:
		return reply, nil
	case <-c.dead:
	}
	select {
	case reply := <-c.reply: // the peer answered, then hung up
		return reply, nil
	default:
		return nil, c.cause()
	}
}

// refused looks for the answer of a peer that would not read a block to its end: AR to one that is too large, then it closed.
// Nobody can have taken what did not arrive whole, so no other answer counts.
func (c *Client) refused(failed error) ([]byte, error) {
	failed = fmt.Errorf("send: %w", failed)
	t := time.NewTimer(settleRefused)
	defer t.Stop()
	select {
	case reply := <-c.reply:
		if ack, err := hl7.ParseAck(reply); err == nil && !ack.Taken() {
			return reply, nil
		}
	case <-t.C:
	}
	return nil, failed
}

// await announces to the reader that the next block is wanted.
func (c *Client) await(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	c.awaiting = true
	return nil
}

// read takes blocks for as long as somebody awaits them. It always reads, so that an end of the connection, or an answer
// that nobody asked for, is known before the next send.
func (c *Client) read(maxReply int64) {
	defer close(c.ended)
	blocks := newFrameReader(c.conn, maxReply)
	for {
		if err := blocks.begin(); err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("peer closed the connection")
			}
			_ = c.fail(fmt.Errorf("await answer: %w", err))
			return
		}
		if !c.wanted(false) {
			_ = c.fail(ErrUnsolicited)
			return
		}
		body, err := blocks.body()
		if err != nil {
			_ = c.fail(fmt.Errorf("read answer: %w", err))
			return
		}
		if !c.wanted(true) {
			return // failed meanwhile
		}
		c.reply <- body // has room: one block for each exchange
	}
}

// wanted says whether an exchange awaits a block, and with take ends the waiting.
func (c *Client) wanted(take bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	ok := c.awaiting && c.err == nil
	if take {
		c.awaiting = false
	}
	return ok
}

// fail ends the connection with its first error, which it returns.
func (c *Client) fail(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		close(c.dead)
		_ = secure.Cut(c.conn) // the error that matters is c.err
	}
	return c.err
}

// cause is the connection's first error; nil while it is usable.
func (c *Client) cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection and an exchange in progress. It may be called more than once.
func (c *Client) Close() error {
	_ = c.fail(net.ErrClosed)
	<-c.ended
	return nil
}
