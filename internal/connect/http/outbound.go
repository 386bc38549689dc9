package http

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	nethttp "net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/connect/secure"
	"coppice.dev/coppice/internal/message"
)

// DeliveryHeader names the delivery, the same at each try: "0000000042-1". It is unique within one store, which is why it
// is not an Idempotency-Key: a receiver that has two engines, or a new store, would take a message for another.
const DeliveryHeader = "Coppice-Delivery"

const (
	maxReply = 64 << 10 // bytes of an answer's body that are read
	maxText  = 512      // bytes of a receiver's text that are kept
)

// answerWithin is how long the body of an answer may take behind its header. It is half of the timeout where that is less, so that
// what the header says is known in time.
const answerWithin = 2 * time.Second

// OutboundConfig says where deliveries go. Zero values mean the defaults.
type OutboundConfig struct {
	Name        string
	URL         string
	Method      string            // empty: POST
	ContentType string            // of every body
	Headers     map[string]string // of every request; no error and no log tells their values
	Timeout     time.Duration     // from the dial to the end of the answer
	TLS         *secure.Client    // nil: as the zero value; goes with https alone
	PerMessage  bool              // a connection for each message
	Parallel    int               // how many Sends there are at once: as many connections are kept
}

// Outbound delivers each message in a request of its own. It keeps its connections while all goes well, and goes through no
// proxy. It is safe for concurrent use.
type Outbound struct {
	cfg       OutboundConfig
	host      string // what errors name: a URL's path and query may hold a secret
	transport *nethttp.Transport
	running   running
	closed    chan struct{}
}

// NewOutbound checks the configuration and reads the files that it names; it does not connect.
func NewOutbound(cfg OutboundConfig) (*Outbound, error) {
	u, err := url.Parse(cfg.URL)
	switch {
	case err != nil: // which repeats the URL
		err = errors.New("url cannot be read")
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		err = errors.New("url is not http://HOST or https://HOST")
	case cfg.TLS != nil && u.Scheme != "https":
		err = errors.New("tls goes with https")
	}
	if err != nil {
		return nil, fmt.Errorf("http outbound %s: %w", cfg.Name, err)
	}
	cfg.fill()
	o := &Outbound{cfg: cfg, host: u.Host, closed: make(chan struct{})}
	files := secure.Client{}
	if cfg.TLS != nil {
		files = *cfg.TLS
	}
	config, err := files.Config()
	if err != nil {
		return nil, fmt.Errorf("http outbound %s: %w", cfg.Name, err)
	}
	o.transport = transport(cfg, config)
	return o, nil
}

func (cfg *OutboundConfig) fill() {
	if cfg.Method == "" {
		cfg.Method = nethttp.MethodPost
	}
	if cfg.ContentType == "" {
		cfg.ContentType = DefaultContentType
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = DefaultTimeout
	}
}

func transport(cfg OutboundConfig, config func(host string) *tls.Config) *nethttp.Transport {
	protocols := new(nethttp.Protocols)
	protocols.SetHTTP1(true)
	return &nethttp.Transport{
		Protocols: protocols,
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return secure.Dial(ctx, addr, nil)
		},
		DialTLSContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return secure.Dial(ctx, addr, config)
		},
		DisableKeepAlives:      cfg.PerMessage,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeader,
		MaxIdleConnsPerHost:    max(cfg.Parallel, nethttp.DefaultMaxIdleConnsPerHost),
		IdleConnTimeout:        time.Minute,
	}
}

// Send delivers d and waits for the receiver's answer. 2xx is a receipt; 4xx a final *message.Rejection, but for 408, 425
// and 429, which ask for another try. After any other error whether the receiver took the message is unknown.
func (o *Outbound) Send(ctx context.Context, d message.Delivery) (message.Receipt, error) {
	if !o.running.enter() {
		return message.Receipt{}, o.failed(connect.ErrClosed)
	}
	defer o.running.leave()
	ctx, release := connect.UntilClosed(ctx, o.closed)
	defer release()
	ctx, cancel := context.WithTimeoutCause(ctx, o.cfg.Timeout,
		fmt.Errorf("no answer within %v: %w", o.cfg.Timeout, context.DeadlineExceeded))
	defer cancel() // also drops a connection whose answer was not read to its end
	if err := ctx.Err(); err != nil {
		return message.Receipt{}, o.failed(err)
	}
	receipt, err := o.exchange(ctx, d)
	if rejection := (*message.Rejection)(nil); err == nil || errors.As(err, &rejection) {
		return receipt, err
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx) // not what became of the connection by it
	}
	return message.Receipt{}, o.failed(err)
}

// exchange sends one request and reads its answer. The answer is its header; of a body that is cut short it cannot be said who
// has cut it, so that is none.
func (o *Outbound) exchange(ctx context.Context, d message.Delivery) (message.Receipt, error) {
	r, err := nethttp.NewRequestWithContext(ctx, o.cfg.Method, o.cfg.URL, bytes.NewReader(d.Body))
	if err != nil {
		return message.Receipt{}, errors.New("url or method cannot be used") // err repeats the URL
	}
	r.Header.Set("User-Agent", "Coppice")
	for name, value := range o.cfg.Headers {
		r.Header.Set(name, value)
	}
	r.Header.Set("Content-Type", o.cfg.ContentType)
	r.Header.Set(DeliveryHeader, d.Name())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r = r.WithContext(ctx)
	// Not a Client: it would follow redirects and send the message where nobody said that it goes.
	answer, err := o.transport.RoundTrip(r)
	if err != nil {
		return message.Receipt{}, err
	}
	defer answer.Body.Close()
	late := time.AfterFunc(min(answerWithin, o.cfg.Timeout/2), cancel)
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxReply))
	if late.Stop() && err != nil {
		return message.Receipt{}, fmt.Errorf("read answer: %w", err)
	}
	// Else what it said by now will do: a body that never ends would have the delivery repeat for ever.
	return outcome(answer, text)
}

// outcome is what a receiver's answer means for the delivery.
func outcome(answer *nethttp.Response, body []byte) (message.Receipt, error) {
	status := strconv.Itoa(answer.StatusCode)
	text := connect.OneLine(strings.TrimSpace(nethttp.StatusText(answer.StatusCode)+" "+string(bytes.TrimSpace(body))), maxText)
	switch code := answer.StatusCode; {
	case code >= 200 && code < 300:
		return message.Receipt{Text: strings.TrimSpace(status + " " + text)}, nil
	case code >= 300 && code < 400:
		return message.Receipt{}, fmt.Errorf("answered %s %s: redirects are not followed; is it to be url = %q?", status,
			nethttp.StatusText(code), connect.OneLine(answer.Header.Get("Location"), maxText))
	case code == nethttp.StatusRequestTimeout, code == nethttp.StatusTooEarly, code == nethttp.StatusTooManyRequests:
	case code >= 400 && code < 500:
		return message.Receipt{}, &message.Rejection{Code: status, Text: text, Final: true}
	}
	if after := answer.Header.Get("Retry-After"); after != "" {
		text += " (Retry-After: " + connect.OneLine(after, 64) + ")"
	}
	return message.Receipt{}, fmt.Errorf("answered %s %s", status, text)
}

// failed names the outbound in an error, and a Close as such. What it says of the receiver is one line.
func (o *Outbound) failed(err error) error {
	select {
	case <-o.closed:
		err = connect.ErrClosed
	default:
	}
	return &sendError{fmt.Errorf("http outbound %s: %s: %w", o.cfg.Name, o.host, err)}
}

// sendError is an error in one line, whatever bytes of the receiver package net/http put into it.
type sendError struct{ error }

func (e *sendError) Error() string { return connect.OneLine(e.error.Error(), 2*maxText) }

func (e *sendError) Unwrap() error { return e.error }

// Close ends the connections and every Send in progress, and waits for them. It may be called more than once.
func (o *Outbound) Close() error {
	if o.running.close() {
		close(o.closed)
	}
	o.running.work.Wait()
	o.transport.CloseIdleConnections()
	return nil
}
