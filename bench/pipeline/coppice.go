package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"coppice.dev/coppice/bench/pipeline/echo"
	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/connect/mllp"
	"coppice.dev/coppice/internal/engine"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/pipeline"
	"coppice.dev/coppice/internal/store/sqlite"
	"coppice.dev/coppice/sandbox"
	"coppice.dev/coppice/wire"
)

// deadline is each handler's.
const deadline = 5 * time.Second

// observer tells the bed what is done: the pipeline says so after the commit.
func observer(b *bed) pipeline.Observer {
	return pipeline.Observer{Sent: func(d message.Delivery, _ message.Receipt) { b.done(d.Control) }}
}

// openGo and openPython are the engine as `coppice serve` runs it.
func (f *far) openGo(b *bed, dir string) (*served, error) {
	if err := f.configure(b, dir, func(int) string { return fmt.Sprintf("command = [%q, \"worker\"]", f.child) }); err != nil {
		return nil, err
	}
	return serveEngine(b, dir)
}

func (f *far) openPython(b *bed, dir string) (*served, error) {
	if err := os.WriteFile(filepath.Join(dir, "echo.py"), echo.Python(), 0o600); err != nil {
		return nil, err
	}
	if err := f.configure(b, dir, func(lane int) string { return fmt.Sprintf("run = %q", "echo.py:"+echo.Handler(lane)) }); err != nil {
		return nil, err
	}
	return serveEngine(b, dir)
}

// configure writes an engine's configuration: a lane has an inbound, a handler and an outbound of its own.
func (f *far) configure(b *bed, dir string, code func(lane int) string) error {
	var toml strings.Builder
	toml.WriteString("version = 1\n[store]\nmin_free = \"1MiB\"\n")
	for lane := range b.lanes {
		fmt.Fprintf(&toml, `
[inbound.%[1]s]
mllp = { listen = "127.0.0.1:0" }
handlers = [%[2]q]
[handler.%[2]s]
%[4]s
to = [%[3]q]
deadline = "%[5]v"
[outbound.%[3]s]
mllp = { connect = %[6]q }
`, echo.Inbound(lane), echo.Handler(lane), echo.Outbound(lane), code(lane), deadline, b.receivers[lane].Addr())
	}
	return os.WriteFile(filepath.Join(dir, "coppice.toml"), []byte(toml.String()), 0o600)
}

func serveEngine(b *bed, dir string) (*served, error) {
	cfg, err := config.Load(dir, os.LookupEnv)
	if err != nil {
		return nil, err
	}
	e, err := engine.Open(context.Background(), cfg, engine.Options{Pipeline: observer(b)})
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	s := &served{}
	s.onEnd(func() error {
		stop()
		return <-ended
	})
	for lane := range b.lanes {
		s.addrs = append(s.addrs, e.Addr(echo.Inbound(lane)))
	}
	return s, nil
}

// openOff is the engine's store, pipeline and connections with the same functions called in this process. `coppice serve` has
// no such mode, since its program has no functions of the user's; so it is put together here, as package engine does it.
func openOff(b *bed, dir string) (_ *served, err error) {
	s := &served{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.end())
		}
	}()
	db, err := sqlite.Open(context.Background(), filepath.Join(dir, "coppice.db"), sqlite.Options{})
	if err != nil {
		return nil, err
	}
	s.onEnd(db.Close)
	cfg := pipeline.Config{Store: db, Grace: time.Second, Observer: observer(b)}
	for lane := range b.lanes {
		r, err := newOffice(lane)
		if err != nil {
			return nil, err
		}
		s.onEnd(r.close)
		out, err := mllp.NewOutbound(mllp.OutboundConfig{Name: echo.Outbound(lane), Connect: b.receivers[lane].Addr()})
		if err != nil {
			return nil, err
		}
		s.onEnd(out.Close)
		cfg.Inbounds = append(cfg.Inbounds, pipeline.Inbound{Name: echo.Inbound(lane), Handlers: []string{echo.Handler(lane)}, Attempts: 2})
		cfg.Handlers = append(cfg.Handlers, pipeline.Handler{Name: echo.Handler(lane), To: []string{echo.Outbound(lane)}, Attempts: 2, Runner: r})
		cfg.Outbounds = append(cfg.Outbounds, pipeline.Outbound{Name: echo.Outbound(lane), Sender: out,
			Retry: pipeline.Retry{First: time.Second, Max: time.Minute, Rejected: 3}})
	}
	p := pipeline.New(cfg)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	s.onEnd(func() error {
		stop()
		return <-ended
	})
	for lane := range b.lanes {
		if err := s.listen(echo.Inbound(lane), sink{p, db}); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// office is a pool without a worker, as the pipeline sees it. Its functions do not fail, so an error of it is nobody's fault.
type office struct {
	pool *sandbox.Pool
	name string
}

func newOffice(lane int) (*office, error) {
	p, err := sandbox.New(sandbox.Spec{Name: echo.Handler(lane), Functions: echo.Functions(),
		Offers: []wire.Offer{{Phase: wire.PhaseHandle, Name: echo.Handler(lane)}}})
	return &office{p, echo.Handler(lane)}, err
}

func (o *office) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	return o.pool.Close(ctx)
}

func (o *office) Run(ctx context.Context, m *message.Message, attempt int) (pipeline.Answer, error) {
	r, err := o.pool.Dispatch(ctx, sandbox.Request{Phase: wire.PhaseHandle, Name: o.name, Message: int64(m.ID), Inbound: m.Inbound,
		Type: m.Type, ControlID: m.ControlID, Received: m.Received, Attempt: attempt, Timeout: deadline, Body: m.Body})
	if err != nil {
		return pipeline.Answer{}, err
	}
	a := pipeline.Answer{Took: r.Took}
	for _, s := range r.Sends {
		a.Sends = append(a.Sends, message.Send{To: s.To, Body: s.Body})
	}
	return a, nil
}

// sink is store and pipeline as the connections see them.
type sink struct {
	p  *pipeline.Pipeline
	db *sqlite.Store
}

func (s sink) Receive(ctx context.Context, in message.Incoming) (message.ID, error) {
	return s.p.Receive(ctx, in)
}
func (s sink) Refuse(ctx context.Context, r message.Refusal) error { return s.db.Refuse(ctx, r) }
func (s sink) Seen(ctx context.Context, src message.Source) (message.ID, bool, error) {
	return s.db.Seen(ctx, src)
}
