package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

const (
	sqlFailedRuns = `SELECT id, handler FROM runs WHERE message = ? AND state = 'ERROR' AND replayed IS NULL ORDER BY id`
	sqlDead       = `SELECT id, run, outbound, body FROM deliveries
		WHERE message = ? AND state = 'DEAD' AND replayed IS NULL ORDER BY number`
	sqlReplayedRun      = `UPDATE runs SET replayed = ? WHERE id = ?`
	sqlReplayedDelivery = `UPDATE deliveries SET replayed = ? WHERE id = ?`
	sqlReopen           = `UPDATE messages SET disposition = ?, reason = '', ended = NULL, inbound = ? WHERE id = ?`
	// What a newer message of the same inbound has had delivered there. Deliveries get their ids in the order of routing.
	sqlAhead = `SELECT count(*) FROM (SELECT 1 FROM deliveries d
		WHERE d.id > (SELECT min(id) FROM deliveries WHERE message = ?1) AND d.message > ?1
		AND d.outbound = ?2 AND d.inbound = ?3 AND d.state = 'DONE' LIMIT ?4)`
)

// Replay makes a new attempt of each part that failed for good; see store.Store.
func (s *Store) Replay(ctx context.Context, id message.ID, names message.Names) (message.Replay, error) {
	var r replaying
	err := s.commit(ctx, 0, func(t *tx) (err error) {
		r = replaying{tx: t, names: names, now: micros(time.Now()), done: message.Replay{Message: id}}
		return r.all()
	})
	if err == nil {
		err = s.countAhead(ctx, &r)
	}
	if err != nil {
		return message.Replay{}, fmt.Errorf("replay message %d: %w", id, err)
	}
	return r.done, nil
}

// replaying is one message that is replayed.
type replaying struct {
	*tx
	names   message.Names
	now     int64
	inbound string // as it is called now
	number  int    // the last one that a delivery of the message has
	done    message.Replay
	lanes   []string // the outbounds concerned
}

// all replays what failed. A message that is under way in its other parts is replayed all the same.
func (r *replaying) all() error {
	var d message.Disposition
	switch err := r.row(sqlMessageState, []any{r.done.Message}, &d, &r.inbound); {
	case errors.Is(err, sql.ErrNoRows):
		return store.ErrNotFound
	case err != nil:
		return err
	}
	if now, ok := r.names.Inbounds[r.inbound]; ok {
		r.inbound = now // otherwise only routing needs it
	}
	var last sql.NullInt64
	if err := r.row(sqlLastNumber, []any{r.done.Message}, &last); err != nil {
		return err
	}
	r.number = int(last.Int64)
	if err := r.runs(); err != nil {
		return err
	}
	if err := r.deliveries(); err != nil {
		return err
	}
	switch {
	case r.done.Router:
		d = message.Received
	case len(r.done.Handlers)+len(r.done.Sends) > 0:
		d = message.Routed
	default:
		return store.ErrNothingFailed
	}
	return r.run(sqlReopen, string(d), r.inbound, r.done.Message)
}

func (r *replaying) runs() error {
	type failed struct {
		id      int64
		handler string
	}
	var list []failed
	err := r.rows(sqlFailedRuns, []any{r.done.Message}, func(rows *sql.Rows) error {
		var f failed
		err := rows.Scan(&f.id, &f.handler)
		list = append(list, f)
		return err
	})
	if err != nil {
		return err
	}
	var plans []store.Plan
	for _, f := range list {
		if f.handler == "" {
			if _, ok := r.names.Inbounds[r.inbound]; !ok {
				return fmt.Errorf("inbound %q is %w", r.inbound, store.ErrUndeclared)
			}
			r.done.Router = true
		} else {
			p, ok := r.names.Handlers[f.handler]
			if !ok {
				return fmt.Errorf("handler %q is %w", f.handler, store.ErrUndeclared)
			}
			plans = append(plans, p)
			r.done.Handlers = append(r.done.Handlers, p.Handler)
			r.lanes = append(r.lanes, p.To...)
			r.number += len(p.To)
		}
		if err := r.run(sqlReplayedRun, r.now, f.id); err != nil {
			return err
		}
	}
	if len(plans) == 0 {
		return nil
	}
	places := 0
	for _, p := range plans {
		places += len(p.To)
	}
	_, err = r.reserve(r.done.Message, r.inbound, plans, r.number-places)
	return err
}

func (r *replaying) deliveries() error {
	type dead struct {
		id, run, body int64
		outbound      string
	}
	var list []dead
	err := r.rows(sqlDead, []any{r.done.Message}, func(rows *sql.Rows) error {
		var d dead
		err := rows.Scan(&d.id, &d.run, &d.outbound, &d.body)
		list = append(list, d)
		return err
	})
	if err != nil || len(list) == 0 {
		return err
	}
	place, err := r.takePlaces(len(list))
	if err != nil {
		return err
	}
	place -= int64(len(list))
	for _, d := range list {
		now, ok := r.names.Outbounds[d.outbound]
		if !ok {
			return fmt.Errorf("outbound %q is %w", d.outbound, store.ErrUndeclared)
		}
		place, r.number = place+1, r.number+1
		if err := r.run(sqlReplayedDelivery, r.now, d.id); err != nil {
			return err
		}
		id, err := r.insert(sqlAppend, r.done.Message, r.number, d.run, r.inbound, now, place, 0, d.body)
		if err != nil {
			return err
		}
		r.lanes = append(r.lanes, now)
		r.done.Sends = append(r.done.Sends, message.Delivery{ID: id, Message: r.done.Message, Number: r.number,
			Inbound: r.inbound, Outbound: now, State: message.Ready})
	}
	return nil
}

// countAhead counts, after the commit and off the writer, what has overtaken the message in each lane.
func (s *Store) countAhead(ctx context.Context, r *replaying) error {
	r.done.Ahead = map[string]int64{}
	for _, out := range r.lanes {
		var n int64
		if _, err := s.one(ctx, sqlAhead, []any{r.done.Message, out, r.inbound, message.MaxAhead}, &n); err != nil {
			return err
		}
		r.done.Ahead[out] = n
	}
	return nil
}

// exists is store.ErrNotFound for a message that is not there.
func (t *tx) exists(id message.ID) error {
	var one int
	err := t.row(`SELECT 1 FROM messages WHERE id = ?`, []any{id}, &one)
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("message %d: %w", id, store.ErrNotFound)
	}
	return err
}
