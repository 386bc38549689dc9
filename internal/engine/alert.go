package engine

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/pipeline"
	"coppice.dev/coppice/internal/store"
	"coppice.dev/coppice/sandbox"
	"coppice.dev/coppice/wire"
)

// Alert is what leaves the engine when something waits, and when it does so no more. It names things and counts; what a
// handler, a receiver or a message says is not in it, since that may be anybody's data. coppice lanes has the rest.
type Alert struct {
	Kind  string    `json:"kind"`  // one of the kinds below
	What  string    `json:"what"`  // "handler admit", "outbound emr, lane of adt", "disk"
	State string    `json:"state"` // "raised", "lasts" when it is told again, or "over"
	Text  string    `json:"text"`  // a sentence, ours
	Since time.Time `json:"since"`
	Host  string    `json:"host"`
	Feed  string    `json:"feed"` // the configuration's file
}

// The kinds of alerts.
const (
	alertHeld    = "held"        // until somebody releases it
	alertStalled = "stalled"     // a worker cannot start, or the store fails; it is tried again by itself
	alertNoReach = "unreachable" // a receiver, several times in a row
	alertOldest  = "waiting"     // the oldest message of a lane has waited too long
	alertDisk    = "disk"        // too little room to receive
)

// When alerts are looked at and told.
const (
	unreachableAfter = 3                // failures in a row
	lookEvery        = 30 * time.Second // for what waits too long, and what is to be told again
	tellWithin       = 30 * time.Second
)

// alertFunction is what the command that takes alerts is called among the functions of workers.
const alertFunction = "alert"

type alertKey struct{ kind, what string }

// alerts keeps what is wrong just now, and tells of it.
type alerts struct {
	now  func() *generation
	log  *slog.Logger
	host string
	tell func(ctx context.Context, g *generation, a Alert) error // a test's own in its place

	mu    sync.Mutex
	open  map[alertKey]*openAlert
	fails map[string]int // deliveries in a row, by outbound
	wake  chan struct{}
}

type openAlert struct {
	text  string
	since time.Time
	over  bool
	told  time.Time // zero: not yet
}

func newAlerts(now func() *generation, log *slog.Logger) *alerts {
	host, _ := os.Hostname() // without one it is told by the file's name alone
	return &alerts{now: now, log: log, host: host, tell: tellAlert, open: map[alertKey]*openAlert{}, fails: map[string]int{},
		wake: make(chan struct{}, 1)}
}

func (a *alerts) raise(kind, what, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if o := a.open[alertKey{kind, what}]; o != nil && !o.over {
		o.text = text
		return
	}
	a.open[alertKey{kind, what}] = &openAlert{text: text, since: time.Now()}
	a.kick()
}

// clear ends an alert. One that nobody was told of yet is forgotten.
func (a *alerts) clear(kind, what string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := alertKey{kind, what}
	switch o := a.open[key]; {
	case o == nil || o.over:
	case o.told.IsZero():
		delete(a.open, key)
	default:
		o.over, o.told = true, time.Time{}
		a.kick()
	}
}

// keepDeclared ends the alerts of names that a configuration does not have: nobody else would.
func (a *alerts) keepDeclared(cfg *config.Config) {
	known := map[string]bool{}
	for _, in := range cfg.Inbounds {
		known[message.Target{Kind: message.KindInbound, Name: in.Name}.String()] = true
	}
	for _, h := range cfg.Handlers {
		known[message.Target{Kind: message.KindHandler, Name: h.Name}.String()] = true
	}
	for _, out := range cfg.Outbounds {
		lane := message.Target{Kind: message.KindOutbound, Name: out.Name}
		known[lane.String()] = true
		for _, in := range cfg.Inbounds {
			lane.Inbound = in.Name
			known[lane.String()] = true
		}
	}
	a.mu.Lock()
	var gone []alertKey
	for key := range a.open {
		if key.kind != alertDisk && !known[key.what] {
			gone = append(gone, key)
		}
	}
	a.mu.Unlock()
	for _, key := range gone {
		a.clear(key.kind, key.what)
	}
}

func (a *alerts) kick() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// observe raises alerts of what the pipeline tells, and passes it on.
func (a *alerts) observe(o pipeline.Observer) pipeline.Observer {
	if a == nil { // of a dry run
		return o
	}
	held, released, sent, retried := o.Held, o.Released, o.Sent, o.Retried
	o.Held = func(what string, why error, wait time.Duration) {
		if wait == 0 {
			a.raise(alertHeld, what, what+" is held until somebody releases it")
		} else {
			a.raise(alertStalled, what, what+" cannot go on: its worker does not start, or the store fails; it is tried again")
		}
		if held != nil {
			held(what, why, wait)
		}
	}
	o.Released = func(what string) {
		a.clear(alertHeld, what)
		a.clear(alertStalled, what)
		if released != nil {
			released(what)
		}
	}
	o.Sent = func(d message.Delivery, r message.Receipt) {
		a.reached(d.Outbound, true)
		if sent != nil {
			sent(d, r)
		}
	}
	o.Retried = func(d message.Delivery, err error, wait time.Duration) {
		var rejection *message.Rejection
		a.reached(d.Outbound, errors.As(err, &rejection))
		if retried != nil {
			retried(d, err, wait)
		}
	}
	return o
}

// reached counts how often in a row a receiver could not be reached.
func (a *alerts) reached(outbound string, ok bool) {
	a.mu.Lock()
	n := 0
	if ok {
		delete(a.fails, outbound)
	} else {
		a.fails[outbound]++
		n = a.fails[outbound]
	}
	a.mu.Unlock()
	what := message.Target{Kind: message.KindOutbound, Name: outbound}.String()
	switch {
	case ok:
		a.clear(alertNoReach, what)
	case n >= unreachableAfter:
		a.raise(alertNoReach, what, fmt.Sprintf("%s could not deliver %d times in a row; it is tried again", what, n))
	}
}

// run tells alerts until ctx ends.
func (a *alerts) run(ctx context.Context, s store.Reader) {
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for {
		a.tellAll(ctx)
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
		case <-t.C:
			if err := a.lookForOld(ctx, s); err != nil && ctx.Err() == nil {
				a.log.Warn("alerts: what waits is not known", "err", err)
			}
		}
	}
}

// lookForOld raises an alert for each lane whose oldest message has waited too long, and clears the others.
func (a *alerts) lookForOld(ctx context.Context, s store.Reader) error {
	cfg := a.now().cfg.Alerts
	if cfg == nil {
		return nil
	}
	lanes, err := s.Lanes(ctx)
	if err != nil {
		return err
	}
	old := map[string]bool{}
	for _, l := range lanes {
		if time.Since(l.Oldest) >= cfg.Oldest {
			what := l.Target.String()
			old[what] = true
			a.raise(alertOldest, what, fmt.Sprintf("%d wait in %s, the oldest since %s", l.Waiting, what, l.Oldest.UTC().Format(time.RFC3339)))
		}
	}
	a.mu.Lock()
	var over []string
	for key := range a.open {
		if key.kind == alertOldest && !old[key.what] {
			over = append(over, key.what)
		}
	}
	a.mu.Unlock()
	for _, what := range over {
		a.clear(alertOldest, what)
	}
	return nil
}

// tellAll tells what has not been told, or not for a while. What cannot be told is tried again at the next look.
func (a *alerts) tellAll(ctx context.Context) {
	g := a.now()
	if g.cfg.Alerts == nil {
		return
	}
	for _, due := range a.due(g.cfg) {
		if err := a.tell(ctx, g, due.Alert); err != nil {
			if ctx.Err() == nil {
				a.log.Error("alert is not told, and will be again", "kind", due.Kind, "what", due.What, "err", err)
			}
			return
		}
		a.log.Info("alert", "kind", due.Kind, "what", due.What, "state", due.State)
		a.mu.Lock()
		due.from.told = time.Now()
		if due.State == "over" && a.open[alertKey{due.Kind, due.What}] == due.from {
			delete(a.open, alertKey{due.Kind, due.What})
		}
		a.mu.Unlock()
	}
}

type dueAlert struct {
	Alert
	from *openAlert
}

// due lists what is to be told now, oldest first.
func (a *alerts) due(cfg *config.Config) (list []dueAlert) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, o := range a.open {
		state := "raised"
		switch {
		case o.over:
			state = "over"
		case o.told.IsZero():
		case time.Since(o.told) < cfg.Alerts.Repeat:
			continue
		default:
			state = "lasts"
		}
		list = append(list, dueAlert{Alert{Kind: key.kind, What: key.what, State: state, Text: o.text, Since: o.since.UTC(), Host: a.host, Feed: cfg.File}, o})
	}
	slices.SortFunc(list, func(a, b dueAlert) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.What, b.What)) })
	return list
}

// tellAlert hands an alert to a configuration's command and webhook.
func tellAlert(ctx context.Context, g *generation, a Alert) error {
	ctx, cancel := context.WithTimeout(ctx, tellWithin)
	defer cancel()
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	var errs []error
	if p := g.workers.alert; p != nil {
		_, err := p.Dispatch(ctx, sandbox.Request{Phase: wire.PhaseHandle, Name: alertFunction, Message: 1, Received: time.Now(), Timeout: tellWithin, Body: text})
		if err != nil {
			errs = append(errs, fmt.Errorf("alerts.command: %w", err))
		}
	}
	if url := g.cfg.Alerts.Webhook; url != "" {
		if err := postAlert(ctx, url, text); err != nil {
			errs = append(errs, fmt.Errorf("alerts.webhook: %w", told(g.cfg, []string{"alerts", "webhook"}, err)))
		}
	}
	return errors.Join(errs...)
}

// postAlert sends JSON and wants an answer of 2xx. It follows no redirect, and reads no answer.
func postAlert(ctx context.Context, url string, text []byte) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(text))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := c.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	io.CopyN(io.Discard, resp.Body, 64<<10) // an error does not change what it answered
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("answered %s", resp.Status)
	}
	return nil
}
