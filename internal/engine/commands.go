package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/control"
	"coppice.dev/coppice/internal/hl7"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/pipeline"
	"coppice.dev/coppice/internal/store"
	"coppice.dev/coppice/internal/store/sqlite"
)

// mover does what is asked: a pipeline, which then goes on with it, or the store of an engine that does not run.
type mover interface {
	Receive(ctx context.Context, in message.Incoming) (message.ID, error)
	Hold(ctx context.Context, h message.Hold) error
	Release(ctx context.Context, t message.Target, bury bool) ([]message.Hold, error)
	Replay(ctx context.Context, id message.ID, names message.Names) (message.Replay, error)
}

// desk carries out what people ask, under one configuration.
type desk struct {
	cfg   *config.Config
	store store.Store
	mover mover
	// patience ends when an order is to wait no longer; nil for an engine that does not run, where none does.
	patience context.Context
}

// named returns a target under its names of now; store.ErrUndeclared if the configuration has none, and had none before, for it.
func (d desk) named(t message.Target) (now message.Target, err error) {
	names, known := namesOf(d.cfg), false
	now = t
	switch t.Kind {
	case message.KindInbound:
		now.Name, known = names.Inbounds[t.Name]
	case message.KindHandler:
		var p message.Plan
		p, known = names.Handlers[t.Name]
		now.Name = p.Handler
	case message.KindOutbound:
		now.Name, known = names.Outbounds[t.Name]
	default:
		return now, fmt.Errorf("%q is none of inbound, handler, outbound", t.Kind)
	}
	if !known {
		return now, fmt.Errorf("%s %q is %w", t.Kind, t.Name, store.ErrUndeclared)
	}
	if t.Inbound != "" {
		if now.Inbound, known = names.Inbounds[t.Inbound]; !known {
			return now, fmt.Errorf("inbound %q is %w", t.Inbound, store.ErrUndeclared)
		}
	}
	return now, nil
}

// current says whether a target has the names of now.
func (d desk) current(t message.Target) error {
	now, err := d.named(t)
	switch {
	case err != nil:
		return err
	case now.Name != t.Name:
		return fmt.Errorf("%s %q is %q now", t.Kind, t.Name, now.Name)
	case now.Inbound != t.Inbound:
		return fmt.Errorf("inbound %q is %q now", t.Inbound, now.Inbound)
	}
	return nil
}

func (d desk) hold(ctx context.Context, t message.Target, reason string) error {
	if err := d.current(t); err != nil {
		return err
	}
	return d.mover.Hold(ctx, message.Hold{Target: t, Reason: reason})
}

// release also ends holds of a name that is not declared any more. That there was nothing to release is told of a name of now alone.
func (d desk) release(ctx context.Context, t message.Target, bury bool) ([]message.Hold, error) {
	holds, err := d.mover.Release(ctx, t, bury)
	if err == nil && len(holds) == 0 {
		err = d.current(t)
	}
	return holds, err
}

func (d desk) resubmit(ctx context.Context, id message.ID, body []byte) (message.ID, error) {
	old, err := d.store.Timeline(ctx, id)
	if err != nil {
		return 0, err
	}
	m := old.Message
	now, ok := namesOf(d.cfg).Inbounds[m.Inbound]
	if !ok {
		return 0, fmt.Errorf("it came by inbound %q, which is %w", m.Inbound, store.ErrUndeclared)
	}
	in := message.Incoming{Inbound: now, Body: m.Body, Peer: fmt.Sprintf("resubmit of %d", id), Type: m.Type, ControlID: m.ControlID,
		Received: time.Now().UTC(), Resubmits: id}
	if body != nil && len(body) == 0 {
		return 0, errors.New("the body is empty")
	}
	if body != nil {
		in.Body = body
	}
	h, noHeader := hl7.ParseHeader(in.Body)
	if body != nil {
		in.Type, in.ControlID = h.Type, h.ControlID // empty without one
	}
	if most := maxMessageOf(d.cfg, now); int64(len(in.Body)) > most {
		return 0, fmt.Errorf("the body has %d bytes, and inbound %q takes no more than %d", len(in.Body), now, most)
	}
	if to := find(d.cfg.Inbounds, now, inboundName); noHeader != nil && to != nil && to.MLLP != nil {
		return 0, fmt.Errorf("inbound %q would turn it away: %w", now, noHeader)
	}
	parts, err := batchOf(d.cfg, now, in.Body)
	if err != nil {
		return 0, fmt.Errorf("inbound %q would turn it away: %w", now, err)
	}
	if parts != nil {
		return 0, fmt.Errorf("the body is a batch, which inbound %q takes apart into %d: resubmit one of its messages, or send it there", now, len(parts))
	}
	return d.mover.Receive(ctx, in)
}

// maxMessageOf is how large a message of an inbound may be.
func maxMessageOf(cfg *config.Config, inbound string) int64 {
	if in := find(cfg.Inbounds, inbound, inboundName); in != nil {
		return in.MaxMessage()
	}
	return 0
}

// StatusOf reads what waits and what is held in a store, beside its engine or without one.
func StatusOf(ctx context.Context, r store.Reader) (control.Status, error) {
	return status(ctx, r, nil)
}

// status lists lanes in which something waits or is held, or through which something went.
func status(ctx context.Context, r store.Reader, rates map[message.Target]int64) (control.Status, error) {
	var s control.Status
	lanes, err := r.Lanes(ctx)
	if err != nil {
		return s, err
	}
	if s.Holds, err = r.Holds(ctx); err != nil {
		return s, err
	}
	all := map[message.Target]*control.Lane{}
	for t, rate := range rates {
		all[t] = &control.Lane{Target: t, Rate: rate}
	}
	for _, h := range s.Holds {
		if all[h.Target] == nil {
			all[h.Target] = &control.Lane{Target: h.Target}
		}
	}
	for _, l := range lanes {
		all[l.Target] = &control.Lane{Target: l.Target, Waiting: l.Waiting, Oldest: l.Oldest, Unordered: l.Unordered, Head: l.Head,
			Rate: rates[l.Target]}
	}
	for _, t := range slices.SortedFunc(maps.Keys(all), message.Target.Compare) {
		s.Lanes = append(s.Lanes, *all[t])
	}
	return s, nil
}

// namesOf is what a configuration declares, with the names that it had before.
func namesOf(cfg *config.Config) message.Names {
	n := message.Names{Inbounds: map[string]string{}, Handlers: map[string]message.Plan{}, Outbounds: map[string]string{}}
	for _, in := range cfg.Inbounds {
		for _, name := range append([]string{in.Name}, in.Was...) {
			n.Inbounds[name] = in.Name
		}
	}
	for _, h := range cfg.Handlers {
		for _, name := range append([]string{h.Name}, h.Was...) {
			n.Handlers[name] = message.Plan{Handler: h.Name, To: h.To}
		}
	}
	for _, out := range cfg.Outbounds {
		for _, name := range append([]string{out.Name}, out.Was...) {
			n.Outbounds[name] = out.Name
		}
	}
	return n
}

// Stopped is the store of an engine that does not run, for those commands that need none. It satisfies control.Commands.
type Stopped struct{ desk desk }

var _ control.Commands = (*Stopped)(nil)

// ErrNotRunning is returned by Stopped for what needs an engine that runs.
var ErrNotRunning = errors.New("no engine runs: start it with `coppice serve`")

// OpenStopped takes hold of the store that a configuration names, as an engine would; an error that is store.ErrLocked says
// that one does. A store that is not there yet is an error of kind fs.ErrNotExist.
func OpenStopped(ctx context.Context, cfg *config.Config) (*Stopped, error) {
	db, err := sqlite.Open(ctx, cfg.Store.Path, sqlite.Options{MustExist: true})
	if err != nil {
		return nil, err
	}
	if _, err := db.Rename(ctx, namesOf(cfg)); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &Stopped{desk{cfg: cfg, store: db, mover: db}}, nil
}

// Close gives the store up.
func (s *Stopped) Close() error { return s.desk.store.Close() }

// Status says what waits; see control.Commands.
func (s *Stopped) Status(ctx context.Context) (control.Status, error) {
	return StatusOf(ctx, s.desk.store)
}

// Hold holds a target from the next start on; see control.Commands.
func (s *Stopped) Hold(ctx context.Context, t message.Target, reason string) error {
	return s.desk.hold(ctx, t, reason)
}

// Release ends holds; see control.Commands.
func (s *Stopped) Release(ctx context.Context, t message.Target, bury bool) ([]message.Hold, error) {
	return s.desk.release(ctx, t, bury)
}

// Replay makes a new attempt of what failed, from the next start on; see control.Commands.
func (s *Stopped) Replay(ctx context.Context, id message.ID) (message.Replay, error) {
	return s.desk.mover.Replay(ctx, id, namesOf(s.desk.cfg))
}

// Dismiss takes what failed from the dead letters; see control.Commands.
func (s *Stopped) Dismiss(ctx context.Context, id message.ID, reason string) (int64, error) {
	return s.desk.store.Dismiss(ctx, id, reason)
}

// Resubmit receives a message again; see control.Commands.
func (s *Stopped) Resubmit(ctx context.Context, id message.ID, body []byte) (message.ID, error) {
	return s.desk.resubmit(ctx, id, body)
}

// Purge takes one step of removing what has ended; see control.Commands.
func (s *Stopped) Purge(ctx context.Context, done, dead time.Time) (store.Purged, error) {
	return s.desk.store.Purge(ctx, store.PurgeRequest{DoneBefore: done, DeadBefore: dead, Lies: lies})
}

// Reload is ErrNotRunning: a start reads everything anew.
func (s *Stopped) Reload(context.Context) (control.Reloaded, error) {
	return control.Reloaded{}, ErrNotRunning
}

var _ mover = (*pipeline.Pipeline)(nil)
