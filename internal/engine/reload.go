package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"time"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/confine"
	"coppice.dev/coppice/internal/connect"
	"coppice.dev/coppice/internal/control"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/pipeline"
	"coppice.dev/coppice/internal/store"
)

// desk is what carries out orders under the configuration of now, which stays the one of now until done is called. Otherwise a
// reload could come in between: the work would wait under a name that is gone, and the pipeline that goes on would not hear of it.
func (e *Engine) desk() (d desk, done func()) {
	patience, leave := e.orders.enter()
	g := e.now.Load()
	return desk{cfg: g.cfg, store: e.store, mover: g.pipeline, patience: patience}, leave
}

var _ control.Commands = (*Engine)(nil)

// Status says what waits; see control.Commands.
func (e *Engine) Status(ctx context.Context) (control.Status, error) {
	s, err := status(ctx, e.store, e.rates.last(time.Now()))
	if since := e.since.Load(); since != nil {
		s.Running, s.Since = true, *since
	}
	return s, err
}

// Hold holds a target; see control.Commands.
func (e *Engine) Hold(ctx context.Context, t message.Target, reason string) error {
	d, done := e.desk()
	defer done()
	err := d.hold(ctx, t, reason)
	e.ordered("hold", err, "what", t)
	return err
}

// ordered logs what people at a shell had the engine do: their orders change what becomes of messages.
func (e *Engine) ordered(what string, err error, args ...any) {
	if err != nil {
		e.log.Warn("order refused", append([]any{"order", what, "err", err}, args...)...)
		return
	}
	e.log.Info("order", append([]any{"order", what}, args...)...)
}

// Release ends holds; see control.Commands.
func (e *Engine) Release(ctx context.Context, t message.Target, bury bool) ([]message.Hold, error) {
	d, done := e.desk()
	defer done()
	if !bury {
		holds, err := d.release(ctx, t, false)
		e.ordered("release", err, "what", t)
		return holds, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(d.patience, func() { cancel(context.Cause(d.patience)) })() // it waits for what is being sent
	holds, err := d.release(ctx, t, true)
	if errors.Is(err, context.Canceled) {
		err = context.Cause(ctx)
	}
	for _, h := range holds {
		if h.Buried != "" {
			e.log.Warn("dead letter, given up by order", "delivery", h.Buried, "outbound", h.Name)
		}
	}
	e.ordered("release --dead-letter", err, "what", t)
	return holds, err
}

// Replay makes a new attempt of what failed; see control.Commands.
func (e *Engine) Replay(ctx context.Context, id message.ID) (message.Replay, error) {
	d, done := e.desk()
	defer done()
	r, err := d.mover.Replay(ctx, id, namesOf(d.cfg))
	e.ordered("replay", err, "message", id)
	return r, err
}

// Dismiss takes what failed from the dead letters; see control.Commands.
func (e *Engine) Dismiss(ctx context.Context, id message.ID, reason string) (int64, error) {
	n, err := e.store.Dismiss(ctx, id, reason)
	e.ordered("dismiss", err, "message", id)
	return n, err
}

// Resubmit receives a message again; see control.Commands.
func (e *Engine) Resubmit(ctx context.Context, id message.ID, body []byte) (message.ID, error) {
	d, done := e.desk()
	defer done()
	again, err := d.resubmit(ctx, id, body)
	e.ordered("resubmit", err, "message", id, "as", again)
	return again, err
}

// Purge takes one step of removing what has ended; see control.Commands.
func (e *Engine) Purge(ctx context.Context, done, dead time.Time) (store.Purged, error) {
	return e.store.Purge(ctx, store.PurgeRequest{DoneBefore: done, DeadBefore: dead, Lies: lies})
}

// Reload reads the configuration and the code again and goes on with them; see control.Commands. It is all or nothing: what
// can be wrong is tried first, each worker is started, and until the pipelines change places the old one works as if nothing
// were. What is under way then has drainGrace to end under the old one; what has not ended by then is done again under the new.
// A connection that did not change keeps its socket. One that did, at the address that it had, is closed for a moment.
// Errors are *config.Error and config.Errors, with a place in the file, those of the system, control.ErrStarting and control.ErrStopping.
func (e *Engine) Reload(ctx context.Context) (control.Reloaded, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running == nil && !e.over {
		return control.Reloaded{}, control.ErrStarting
	}
	if e.running == nil {
		return control.Reloaded{}, control.ErrStopping
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(e.running.ctx, func() { cancel(control.ErrStopping) })()
	r := &reload{e: e, old: e.now.Load()}
	if err := r.prepare(ctx); err != nil {
		r.drop()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		e.log.Warn("order refused: the engine goes on as it was", "order", "reload")
		return control.Reloaded{}, err
	}
	err := r.change(ctx)
	return r.done, err
}

// reload is one change from an old generation to a new one.
type reload struct {
	e        *Engine
	old, new *generation
	late     []config.Inbound // those that take an address which another one has to let go of first
	done     control.Reloaded
}

// prepare makes all of the new generation that can be there beside the old one.
func (r *reload) prepare(ctx context.Context) error {
	cfg, err := config.Load(r.old.cfg.File, os.LookupEnv)
	if err != nil {
		return err
	}
	if cfg.Store.Path != r.old.cfg.Store.Path {
		return cfg.Errorf([]string{"store", "path"}, "stop the engine, and start it again", "store.path cannot be changed by a reload")
	}
	if err := orphans(ctx, cfg, r.e.store); err != nil {
		return err
	}
	r.new = &generation{number: r.old.number + 1, cfg: cfg, inbounds: map[string]connect.Inbound{}, outbounds: map[string]connect.Outbound{}}
	if err := r.e.load(ctx, r.new, r.old.code.Dir); err != nil {
		return err
	}
	var errs config.Errors
	for _, p := range r.new.workers.pools {
		if err := p.Boot(ctx); err != nil {
			errs = append(errs, bootProblem(cfg, p, err))
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if len(errs) > 0 {
		return errs
	}
	return r.connect(ctx)
}

// connect takes over the connections that did not change, and makes the others.
func (r *reload) connect(ctx context.Context) error {
	for _, out := range r.new.cfg.Outbounds {
		if before := find(r.old.cfg.Outbounds, out.Name, outboundName); before != nil && sameOutbound(*before, out) {
			r.new.outbounds[out.Name] = r.old.outbounds[out.Name]
		} else if err := r.e.connectOutbound(r.new, out); err != nil {
			return err
		}
	}
	var leaving []config.Inbound
	for _, in := range r.old.cfg.Inbounds {
		if after := find(r.new.cfg.Inbounds, in.Name, inboundName); after == nil || !sameInbound(in, *after) {
			leaving = append(leaving, in)
		}
	}
	for _, in := range r.new.cfg.Inbounds {
		if before := find(r.old.cfg.Inbounds, in.Name, inboundName); before != nil && sameInbound(*before, in) {
			r.new.inbounds[in.Name] = r.old.inbounds[in.Name]
			continue
		}
		if len(leaving) > 0 { // perhaps at an address of theirs
			r.late = append(r.late, in)
			if _, err := r.e.inbound(in); err != nil {
				return connectionError(r.new.cfg, inboundPlace(in), "", err)
			}
		} else if err := r.e.listen(ctx, r.new, in); err != nil {
			return err
		}
	}
	return nil
}

// change puts the new generation in the place of the old one, or everything back.
func (r *reload) change(ctx context.Context) error {
	e, run := r.e, r.e.running
	ended, err := r.replace(ctx)
	if err != nil {
		r.drop()
		return errors.Join(err, r.restore(ctx, ended))
	}
	for name, in := range r.new.inbounds {
		if run.receiving[name] == nil {
			run.receive(name, in)
			e.log.Info("listening", "inbound", name, "at", in.Addr())
		}
	}
	r.finish()
	return nil
}

// replace has the new inbounds stand where the old ones did, and turns. It returns the inbounds that it has ended. Orders are waited
// for before, while all of them are served.
func (r *reload) replace(ctx context.Context) (ended []config.Inbound, err error) {
	defer r.e.orders.reload()()
	for _, in := range r.old.cfg.Inbounds {
		if r.old.inbounds[in.Name] != r.new.inbounds[in.Name] {
			r.e.running.end(in.Name)
			ended = append(ended, in)
		}
	}
	for _, in := range r.late {
		if err := r.e.listen(ctx, r.new, in); err != nil {
			return ended, err
		}
	}
	return ended, r.turn(ctx)
}

// turn ends the old pipeline and starts the new one on the work that waits, or the old one again. No order is under way.
func (r *reload) turn(ctx context.Context) error {
	e, run := r.e, r.e.running
	r.new.pipeline = pipeline.New(e.pipelineConfig(r.new))
	e.now.Store(r.new) // messages that come from here on wait for it in the store
	e.room.Resize(r.new.cfg.Memory.Bodies, r.new.cfg.LargestMessage())
	run.moving.end()
	// Work may have come for a name that is dropped since the first look; none comes now.
	err := orphans(ctx, r.new.cfg, e.store)
	if err == nil {
		r.done.Renamed, err = e.store.Rename(ctx, namesOf(r.new.cfg))
	}
	if err != nil {
		again := *r.old // others may be looking at that one
		again.pipeline = pipeline.New(e.pipelineConfig(&again))
		r.old = &again
		e.now.Store(r.old)
		e.room.Resize(r.old.cfg.Memory.Bodies, r.old.cfg.LargestMessage())
	}
	run.move(run.ctx, e.now.Load().pipeline)
	return err
}

// restore has the inbounds of the old generation listen again. One that cannot is an error, and ends the engine: it would
// receive no more, unseen.
func (r *reload) restore(ctx context.Context, ended []config.Inbound) error {
	again := *r.old // others may be looking at that one
	again.inbounds = maps.Clone(r.old.inbounds)
	r.old = &again
	defer func() { r.e.now.Store(r.old) }()
	for _, in := range ended {
		if err := r.e.listen(context.WithoutCancel(ctx), r.old, in); err != nil {
			err = fmt.Errorf("inbound %s, which a reload closed, cannot be opened again: %w", in.Name, err)
			r.e.running.fail(err)
			return err
		}
		r.e.running.receive(in.Name, r.old.inbounds[in.Name])
	}
	return nil
}

// drop lets go of a new generation that is not to be.
func (r *reload) drop() {
	if r.new == nil {
		return
	}
	if err := r.new.release(true, r.old); err != nil {
		r.e.log.Warn("reload: what is not used is not gone", "err", err)
	}
	r.clear(r.new, r.old)
}

// finish lets go of the old generation, and tells.
func (r *reload) finish() {
	e := r.e
	if err := r.old.release(false, r.new); err != nil {
		e.log.Warn("reload: what was before is not gone", "err", err)
	}
	r.clear(r.old, r.new)
	e.alerts.keepDeclared(r.new.cfg)
	r.done.Code, r.done.Changed = r.new.code.Hash, r.changes()
	e.log.Info("reloaded", "config", r.new.cfg.File, "code", r.done.Code, "changed", len(r.done.Changed), "renamed", r.done.Renamed)
}

// clear removes the folders of a generation that is gone.
func (r *reload) clear(gone, stays *generation) {
	if stays.code.Dir == "" || gone.code.Dir == "" {
		return // its own snapshot was not taken
	}
	if err := errors.Join(dropSnapshots(stays.code), confine.Clear(gone.sdk)); err != nil {
		r.e.log.Warn("reload: folders of what is gone are not cleared", "err", err)
	}
}

// changes lists what the reload changed, in the order of the configurations.
func (r *reload) changes() (list []string) {
	if r.old.code.Hash != r.new.code.Hash {
		list = append(list, "code: "+r.old.code.Hash+" to "+r.new.code.Hash)
	}
	list = append(list, changed(message.KindInbound, r.old.cfg.Inbounds, r.new.cfg.Inbounds, inboundName)...)
	list = append(list, changed(message.KindHandler, r.old.cfg.Handlers, r.new.cfg.Handlers, handlerName)...)
	list = append(list, changed(message.KindOutbound, r.old.cfg.Outbounds, r.new.cfg.Outbounds, outboundName)...)
	settings := len(list)
	for what, same := range map[string]bool{"alerts": reflect.DeepEqual(r.old.cfg.Alerts, r.new.cfg.Alerts),
		"memory": r.old.cfg.Memory == r.new.cfg.Memory, "sandbox": r.old.cfg.Sandbox == r.new.cfg.Sandbox, "store": r.old.cfg.Store == r.new.cfg.Store} {
		if !same {
			list = append(list, what+": changed")
		}
	}
	slices.Sort(list[settings:])
	return list
}

func changed[T any](kind string, old, now []T, name func(T) string) (list []string) {
	for _, t := range now {
		switch before := find(old, name(t), name); {
		case before == nil:
			list = append(list, kind+" "+name(t)+": new")
		case !reflect.DeepEqual(*before, t):
			list = append(list, kind+" "+name(t)+": changed")
		}
	}
	for _, t := range old {
		if find(now, name(t), name) == nil {
			list = append(list, kind+" "+name(t)+": gone")
		}
	}
	return list
}

func inboundName(in config.Inbound) string    { return in.Name }
func handlerName(h config.Handler) string     { return h.Name }
func outboundName(out config.Outbound) string { return out.Name }

// find returns what has a name; nil if nothing does.
func find[T any](list []T, name string, of func(T) string) *T {
	for i := range list {
		if of(list[i]) == name {
			return &list[i]
		}
	}
	return nil
}

// sameInbound says whether two inbounds are one connection: who routes its messages, and which of them are duplicates, is not of it.
func sameInbound(a, b config.Inbound) bool {
	for _, in := range []*config.Inbound{&a, &b} {
		in.Router, in.Handlers, in.HoldAfter, in.Duplicates, in.Was = nil, nil, 0, nil, nil
	}
	return reflect.DeepEqual(a, b)
}

// sameOutbound says whether two outbounds are one connection: when it is tried again is not of it.
func sameOutbound(a, b config.Outbound) bool {
	for _, out := range []*config.Outbound{&a, &b} {
		out.Order, out.Retry, out.Was = "", config.Retry{}, nil
	}
	return reflect.DeepEqual(a, b)
}
