package engine

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/connect/file"
	"coppice.dev/coppice/internal/connect/http"
	"coppice.dev/coppice/internal/connect/mllp"
	"coppice.dev/coppice/internal/connect/secure"
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
		return connectionError(g.cfg, outboundPlace(out), "", err)
	}
	g.outbounds[out.Name] = o
	return nil
}

// listen makes an inbound and has it take its address or folder.
func (e *Engine) listen(ctx context.Context, g *generation, in config.Inbound) error {
	i, err := e.inbound(in)
	if err != nil {
		return connectionError(g.cfg, inboundPlace(in), "", err)
	}
	if err := i.Listen(ctx); err != nil {
		return connectionError(g.cfg, inboundPlace(in), listenHint(in), err)
	}
	g.inbounds[in.Name] = i
	return nil
}

// connectionError says what keeps a connection from being made, at its place, or at that of the file that is wrong.
func connectionError(cfg *config.Config, place []string, hint string, err error) *config.Error {
	var file *secure.FileError
	if errors.As(err, &file) {
		place = append(slices.Clone(place[:3]), "tls", file.Key)
	}
	return cfg.Errorf(place, hint, "%v", told(cfg, place, err))
}

// inboundPlace is the key that says where an inbound takes messages: kind, name, transport and key.
func inboundPlace(in config.Inbound) []string {
	switch {
	case in.MLLP != nil:
		return []string{"inbound", in.Name, "mllp", "listen"}
	case in.HTTP != nil:
		return []string{"inbound", in.Name, "http", "listen"}
	}
	return []string{"inbound", in.Name, "file", "dir"}
}

func listenHint(in config.Inbound) string {
	if in.File == nil {
		return "is another program using it?"
	}
	return "make the folder; the engine has to be able to write in it"
}

func outboundPlace(out config.Outbound) []string {
	switch {
	case out.MLLP != nil:
		return []string{"outbound", out.Name, "mllp", "connect"}
	case out.HTTP != nil:
		return []string{"outbound", out.Name, "http", "url"}
	}
	return []string{"outbound", out.Name, "file", "name"}
}

func (e *Engine) inbound(in config.Inbound) (connect.Inbound, error) {
	s := sink{e}
	switch {
	case in.MLLP != nil:
		m := in.MLLP
		return mllp.NewInbound(mllp.InboundConfig{Name: in.Name, Listen: m.Listen, MaxMessage: m.MaxMessage,
			Ack: mllp.AckMode(m.Ack), Peers: m.Peers, TLS: serverTLS(m.TLS), Room: e.room, Split: in.Split == splitHL7, Log: e.log}, s)
	case in.HTTP != nil:
		h := in.HTTP
		return http.NewInbound(http.InboundConfig{Name: in.Name, Listen: h.Listen, Path: h.Path, MaxMessage: h.MaxMessage,
			AuthHeader: h.AuthHeader, Peers: h.Peers, TLS: serverTLS(h.TLS), Room: e.room, Split: in.Split == splitHL7, Log: e.log}, s)
	}
	f := in.File
	return file.NewInbound(file.InboundConfig{Name: in.Name, Dir: f.Dir, Pattern: f.Pattern, Poll: f.Poll, Stable: max(f.Stable, 1), // none is the shortest: zero would be the default

		MaxMessage: f.MaxMessage, After: file.After(f.After), MoveTo: f.MoveTo, Room: e.room, Split: in.Split == splitHL7, Log: e.log}, s)
}

func (e *Engine) outbound(out config.Outbound) (connect.Outbound, error) {
	switch {
	case out.MLLP != nil:
		m := out.MLLP
		return mllp.NewOutbound(mllp.OutboundConfig{Name: out.Name, Connect: m.Connect, AckTimeout: m.AckTimeout,
			PerMessage: m.Connection == perMessage, Parallel: out.Parallel, TLS: clientTLS(m.TLS), Log: e.log})
	case out.HTTP != nil:
		h := out.HTTP
		return http.NewOutbound(http.OutboundConfig{Name: out.Name, URL: h.URL, Method: h.Method, ContentType: h.ContentType, Headers: h.Headers,
			Timeout: h.Timeout, PerMessage: h.Connection == perMessage, Parallel: out.Parallel, TLS: clientTLS(h.TLS)})
	}
	if info, err := os.Stat(out.File.Dir); err == nil && !info.IsDir() {
		return nil, errors.New("dir is a file, and should be a folder")
	}
	return file.NewOutbound(file.OutboundConfig{Name: out.Name, Dir: out.File.Dir, NameTemplate: out.File.Name, Log: e.log})
}

// splitHL7 is the word of the configuration for a batch that is taken apart.
const splitHL7 = "hl7"

// perMessage is the word of the configuration for a connection for each message.
const perMessage = "per_message"

func serverTLS(t *config.TLSIn) *secure.Server {
	if t == nil {
		return nil
	}
	return &secure.Server{Cert: t.Cert, Key: t.Key, ClientCA: t.ClientCA}
}

func clientTLS(t *config.TLSOut) *secure.Client {
	if t == nil {
		return nil
	}
	return &secure.Client{CA: t.CA, Cert: t.Cert, Key: t.Key, ServerName: t.ServerName}
}

// sink is the engine as its inbound connections see it.
type sink struct{ e *Engine }

func (s sink) Receive(ctx context.Context, in message.Incoming) (id message.ID, err error) {
	err = s.receive(in.Inbound, func(g *generation) (err error) {
		in.Once, in.Was = onceOf(g.cfg, in.Inbound)
		id, err = g.pipeline.Receive(ctx, in)
		return err
	})
	return id, err
}

func (s sink) ReceiveAll(ctx context.Context, all []message.Incoming) (ids []message.ID, err error) {
	err = s.receive(all[0].Inbound, func(g *generation) (err error) {
		for i := range all {
			all[i].Once, all[i].Was = onceOf(g.cfg, all[i].Inbound)
		}
		ids, err = g.pipeline.ReceiveAll(ctx, all)
		return err
	})
	return ids, err
}

// receive has the generation of now commit what an inbound brought.
func (s sink) receive(inbound string, commit func(*generation) error) error {
	if s.e.disk.full() {
		return connect.ErrBusy
	}
	g := s.e.now.Load()
	err := commit(g)
	if next := s.e.now.Load(); next != g && errors.Is(err, pipeline.ErrStopped) { // a reload came in between
		err = commit(next)
	}
	if next := s.e.now.Load(); next != g { // the one that it was committed through may have ended since, and cannot be told of it
		next.pipeline.Look(message.Target{Kind: message.KindInbound, Name: inbound})
	}
	switch {
	case errors.Is(err, pipeline.ErrStopped):
		return connect.ErrBusy
	case errors.Is(err, store.ErrUnknown):
		return unknown{err}
	}
	return err
}

// unknown is the store's error in the connections' terms, which say the same: one of them is enough to read.
type unknown struct{ error }

func (unknown) Is(target error) bool { return target == connect.ErrUnknown }
func (u unknown) Unwrap() error      { return u.error }

// onceOf is how long an inbound remembers a message, and by which other names it may have come.
func onceOf(cfg *config.Config, inbound string) (within time.Duration, was []string) {
	if in := find(cfg.Inbounds, inbound, inboundName); in != nil && in.Duplicates != nil {
		return in.Duplicates.Within, in.Was
	}
	return 0, nil
}

func (s sink) Refuse(ctx context.Context, r message.Refusal) error { return s.e.store.Refuse(ctx, r) }

func (s sink) Seen(ctx context.Context, src message.Source) (message.ID, bool, error) {
	return s.e.store.Seen(ctx, src)
}
