package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/engine"
	"coppice.dev/coppice/internal/flight"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// held is one thing that a message waits for, through no fault of its own.
type held struct {
	What    string     `json:"what"` // "router", "handler admit", "delivery 1 to emr"
	Why     string     `json:"why"`
	NextTry *time.Time `json:"next_try,omitempty"` // if the store has it
	Cut     int        `json:"cut,omitempty"`      // the story, for coppice explain
	Release string     `json:"release,omitempty"`  // what coppice release takes to let it go on
}

func (h held) String() string {
	s := h.What + ": " + h.Why
	if h.NextTry != nil {
		s += "; next try " + clock(*h.NextTry)
	}
	if h.Cut != 0 {
		s += fmt.Sprintf(" (coppice explain %d)", h.Cut)
	}
	if h.Release != "" {
		s += "; coppice release " + h.Release
	}
	return s
}

// holds are what keeps messages from going on, as the disk tells it: a delivery that is to be tried again and what was held until
// it is released, from the store, and a worker that could not start when it was last tried, from the flight records. None says
// whether an engine runs just now.
type holds struct {
	records []flight.Record
	heads   []message.Delivery // of all lanes that keep order
	held    map[message.Target]message.Hold
}

func readHolds(ctx context.Context, cfg *config.Config, r store.Reader) (h holds, err error) {
	if h.records, err = readRecords(engine.FlightFolder(cfg)); err != nil {
		return h, err
	}
	for _, out := range cfg.Outbounds {
		if out.Order == "none" {
			continue
		}
		heads, err := r.Heads(ctx, out.Name, 1)
		if err != nil {
			return h, err
		}
		h.heads = append(h.heads, heads...)
	}
	list, err := r.Holds(ctx)
	h.held = map[message.Target]message.Hold{}
	for _, hold := range list {
		h.held[hold.Target] = hold
	}
	return h, err
}

// until adds the hold of a target, if there is one.
func (h *holds) until(out []held, what string, t message.Target) []held {
	hold, ok := h.held[t]
	if !ok {
		return out
	}
	return append(out, held{What: what, Why: "held since " + clock(hold.Since) + ": " + hold.Reason, Release: releaseOf(t)})
}

// releaseOf is what coppice release takes to let a target go on.
func releaseOf(t message.Target) string {
	if t.Inbound == "" {
		return t.Kind + " " + t.Name
	}
	return t.Kind + " " + t.Name + " --lane " + t.Inbound
}

// readRecords reads all flight records, oldest first. What is spoilt, or is removed meanwhile, is left out: coppice explain says so.
func readRecords(dir string) (out []flight.Record, err error) {
	ids, err := flight.List(dir)
	if errors.Is(err, fs.ErrPermission) {
		return nil, nil // who may read the store may not read these
	}
	for _, id := range ids {
		if r, bad := flight.Read(dir, id); bad == nil {
			// Of what may be megabytes in each of 500, this is all that is told here.
			out = append(out, flight.Record{ID: r.ID, Worker: r.Worker, Kind: r.Kind, Why: r.Why, Times: r.Times, Message: r.Message, At: r.At,
				Status: r.Status})
		}
	}
	return out, err
}

// of lists what a message that has not ended waits for.
func (h *holds) of(t store.Timeline) (out []held) {
	m := t.Message
	if m.Disposition.Final() {
		return nil
	}
	if m.Disposition == message.Received {
		out = h.until(out, "router", message.Target{Kind: message.KindInbound, Name: m.Inbound})
		out = h.unstarted(out, "router", m, func(worker string) bool { return worker == "router of inbound "+m.Inbound })
	}
	for _, r := range t.Runs {
		if r.State == message.RunPending {
			out = h.until(out, "handler "+r.Handler, message.Target{Kind: message.KindHandler, Name: r.Handler})
			out = h.unstarted(out, "handler "+r.Handler, m, func(worker string) bool { return serves(worker, r.Handler, m.Inbound) })
		}
	}
	for _, d := range t.Deliveries {
		if d.State == message.Ready {
			what, target := fmt.Sprintf("delivery %d to %s", d.Number, d.Outbound), message.Target{Kind: message.KindOutbound, Name: d.Outbound}
			out = h.until(out, what, target)
			target.Inbound = d.Inbound
			out = h.until(out, what, target)
			if !d.NextTry.IsZero() {
				out = append(out, held{What: what, Why: d.Reason, NextTry: &d.NextTry})
			}
			out = h.behind(out, m, d)
		}
	}
	return out
}

// unstarted adds a worker that could not start since the message came, if that was the last that it was heard of.
func (h *holds) unstarted(out []held, what string, m message.Message, is func(worker string) bool) []held {
	var last flight.Record
	for _, r := range h.records {
		if is(r.Worker) && !r.At.Before(last.At) {
			last = r
		}
	}
	if last.Kind != "boot" || last.At.Before(m.Received) {
		return out
	}
	return append(out, held{What: what, Cut: last.ID, Why: fmt.Sprintf("its worker could not start, last tried %s: %s", clock(last.At), short(last))})
}

// serves says whether a worker of this name has a handler's messages from an inbound: it may be shared by handlers, and be one
// inbound's alone.
func serves(worker, handler, inbound string) bool {
	names, ok := strings.CutPrefix(worker, "handler ")
	names, only, one := strings.Cut(names, " for inbound ")
	return ok && (!one || only == inbound) && slices.Contains(strings.Split(names, " and "), handler)
}

// behind adds a delivery that waits behind a head of its lane which waits for another try, or whose handler's worker could not start.
func (h *holds) behind(out []held, m message.Message, d message.Delivery) []held {
	what := fmt.Sprintf("delivery %d to %s", d.Number, d.Outbound)
	for _, head := range h.heads {
		switch {
		case head.Inbound != d.Inbound || head.Outbound != d.Outbound:
		case head.ID != d.ID && head.State == message.Reserved:
			for _, w := range h.until(nil, "handler "+head.Handler, message.Target{Kind: message.KindHandler, Name: head.Handler}) {
				out = append(out, held{What: what, Why: fmt.Sprintf("it is behind message %d: %s: %s", head.Message, w.What, w.Why), Release: w.Release})
			}
			for _, w := range h.unstarted(nil, "handler "+head.Handler, m, func(worker string) bool { return serves(worker, head.Handler, m.Inbound) }) {
				out = append(out, held{What: what, Why: fmt.Sprintf("it is behind message %d: %s: %s", head.Message, w.What, w.Why), Cut: w.Cut})
			}
		case head.ID != d.ID && !head.NextTry.IsZero():
			out = append(out, held{What: what, Why: fmt.Sprintf("it is behind delivery %d of message %d: %s", head.Number, head.Message, head.Reason),
				NextTry: &head.NextTry})
		}
	}
	return out
}

// cutsOf are the stories of workers that had the message.
func (h *holds) cutsOf(id message.ID) (out []flight.Record) {
	for _, r := range h.records {
		if r.Message == int64(id) {
			out = append(out, r)
		}
	}
	return out
}
