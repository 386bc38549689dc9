package engine

import (
	"context"
	"errors"
	"fmt"
	"os"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/connect/file"
	"coppice.dev/coppice/internal/connect/mllp"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/pipeline"
	"coppice.dev/coppice/internal/store"
)

// connect makes all connections and has the inbounds take their addresses and folders.
func (e *Engine) connect(ctx context.Context, g *generation) error {
	for _, out := range g.cfg.Outbounds {
		if err := e.connectOutbound(g, out); err != nil {
			return err
		}
	}
	for _, in := range g.cfg.Inbounds {
		if err := e.listen(ctx, g, in); err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) connectOutbound(g *generation, out config.Outbound) error {
	o, err := e.outbound(out)
	if err != nil {
		return g.cfg.Errorf(outboundPlace(out), "", "%v", told(g.cfg, outboundPlace(out), err))
	}
	g.outbounds[out.Name] = o
	return nil
}

// listen makes an inbound and has it take its address or folder.
func (e *Engine) listen(ctx context.Context, g *generation, in config.Inbound) error {
	i, err := e.inbound(in)
	if err != nil {
		return g.cfg.Errorf(inboundPlace(in), "", "%v", told(g.cfg, inboundPlace(in), err))
	}
	if err := i.Listen(ctx); err != nil {
		return g.cfg.Errorf(inboundPlace(in), listenHint(in), "%v", told(g.cfg, inboundPlace(in), err))
	}
	g.inbounds[in.Name] = i
	return nil
}

func inboundPlace(in config.Inbound) []string {
	if in.MLLP != nil {
		return []string{"inbound", in.Name, "mllp", "listen"}
	}
	return []string{"inbound", in.Name, "file", "dir"}
}

func listenHint(in config.Inbound) string {
	if in.MLLP != nil {
		return "is another program using it?"
	}
	return "make the folder; the engine has to be able to write in it"
}

func outboundPlace(out config.Outbound) []string {
	if out.MLLP != nil {
		return []string{"outbound", out.Name, "mllp", "connect"}
	}
	return []string{"outbound", out.Name, "file", "name"}
}

func (e *Engine) inbound(in config.Inbound) (connect.Inbound, error) {
	s := sink{e}
	if m := in.MLLP; m != nil {
		return mllp.NewInbound(mllp.InboundConfig{Name: in.Name, Listen: m.Listen, MaxMessage: m.MaxMessage,
			Ack: mllp.AckMode(m.Ack), Log: e.log}, s)
	}
	f := in.File
	return file.NewInbound(file.InboundConfig{Name: in.Name, Dir: f.Dir, Pattern: f.Pattern, Poll: f.Poll, Stable: max(f.Stable, 1), // none is the shortest: zero would be the default

		MaxMessage: f.MaxMessage, After: file.After(f.After), MoveTo: f.MoveTo, Log: e.log}, s)
}

func (e *Engine) outbound(out config.Outbound) (connect.Outbound, error) {
	if m := out.MLLP; m != nil {
		return mllp.NewOutbound(mllp.OutboundConfig{Name: out.Name, Connect: m.Connect, AckTimeout: m.AckTimeout, Log: e.log})
	}
	if info, err := os.Stat(out.File.Dir); err == nil && !info.IsDir() {
		return nil, errors.New("dir is a file, and should be a folder")
	}
	return file.NewOutbound(file.OutboundConfig{Name: out.Name, Dir: out.File.Dir, NameTemplate: out.File.Name, Log: e.log})
}

// sink is the engine as its inbound connections see it.
type sink struct{ e *Engine }

func (s sink) Receive(ctx context.Context, in message.Incoming) (message.ID, error) {
	g := s.e.now.Load()
	id, err := g.pipeline.Receive(ctx, in)
	if next := s.e.now.Load(); next != g && errors.Is(err, pipeline.ErrStopped) { // a reload came in between
		id, err = next.pipeline.Receive(ctx, in)
	}
	switch {
	case errors.Is(err, pipeline.ErrStopped):
		return 0, connect.ErrBusy
	case errors.Is(err, store.ErrUnknown):
		return 0, fmt.Errorf("%w: %w", connect.ErrUnknown, err)
	}
	return id, err
}

func (s sink) Refuse(ctx context.Context, r message.Refusal) error { return s.e.store.Refuse(ctx, r) }

func (s sink) Seen(ctx context.Context, src message.Source) (message.ID, bool, error) {
	return s.e.store.Seen(ctx, src)
}
