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
	sqlMessageState = `SELECT disposition, inbound FROM messages WHERE id = ?`
	sqlMarkRouted   = `UPDATE messages SET disposition = 'ROUTED' WHERE id = ?`
	sqlInsertRun    = `INSERT INTO runs (message, handler, state) VALUES (?, ?, 'PENDING')`
	sqlTakePlaces   = `UPDATE meta SET value = value + ? WHERE name = 'place' RETURNING value`
	sqlReserve      = `INSERT INTO deliveries (message, number, run, inbound, outbound, place, sub, state)
		VALUES (?, ?, ?, ?, ?, ?, 0, 'RESERVED')`
)

// Route commits the router's choice; see store.Store. Besides store.ErrStale and store.ErrNotFound, a plan without a
// handler, a handler planned twice and an outbound named twice by one plan are refused, and nothing is committed.
func (s *Store) Route(ctx context.Context, id message.ID, plans []store.Plan, run message.Outcome) error {
	err := checkPlans(plans)
	if err == nil && run.Attempts > 0 {
		err = checkOutcome(run, message.RunSent)
	}
	if err == nil && len(run.Sends) > 0 {
		err = errors.New("a router sends nothing")
	}
	if err == nil {
		err = s.commit(ctx, 0, func(t *tx) error { return t.route(id, plans, run) })
	}
	if err != nil {
		return fmt.Errorf("route message %d: %w", id, err)
	}
	return nil
}

func (t *tx) route(id message.ID, plans []store.Plan, run message.Outcome) error {
	inbound, err := t.awaitsRouting(id)
	if err != nil {
		return err
	}
	if run.Attempts > 0 {
		if err := t.recordRouter(id, inbound, run); err != nil {
			return err
		}
	}
	if _, err := t.reserve(id, inbound, plans, 0); err != nil {
		return err
	}
	if len(plans) == 0 {
		return t.settle(id)
	}
	return t.run(sqlMarkRouted, id)
}

// FailRoute ends a message whose router failed on it; see store.Store.
func (s *Store) FailRoute(ctx context.Context, id message.ID, run message.Outcome) error {
	err := checkOutcome(run, message.RunError)
	if err == nil {
		err = s.commit(ctx, 0, func(t *tx) error {
			inbound, err := t.awaitsRouting(id)
			if err != nil {
				return err
			}
			if err := t.recordRouter(id, inbound, run); err != nil {
				return err
			}
			return t.settle(id)
		})
	}
	if err != nil {
		return fmt.Errorf("fail the routing of message %d: %w", id, err)
	}
	return nil
}

// awaitsRouting returns the message's inbound; store.ErrStale if it was routed already.
func (t *tx) awaitsRouting(id message.ID) (inbound string, err error) {
	var d message.Disposition
	switch err := t.row(sqlMessageState, []any{id}, &d, &inbound); {
	case errors.Is(err, sql.ErrNoRows):
		return "", store.ErrNotFound
	case err != nil:
		return "", err
	case d != message.Received:
		return "", fmt.Errorf("%w: the message is %s", store.ErrStale, d)
	}
	return inbound, nil
}

// recordRouter records the router's own run, which is over by now.
func (t *tx) recordRouter(id message.ID, inbound string, run message.Outcome) error {
	row, err := t.insert(sqlInsertRun, id, "")
	if err != nil {
		return err
	}
	if err := t.endRun(id, row, run); err != nil {
		return err
	}
	return t.streak(message.Target{Kind: message.KindInbound, Name: inbound}, run)
}

// places are those that have been taken from the store's counter, and not been given out: up to end, the last.
type places struct{ next, end int64 }

// spare is how many places are taken from the counter at once. Those that nobody gets are gone: they need only ascend.
const spare = 256

// takePlaces gives out n places, which are those up to the one returned. They come from one counter of the whole store, so
// they ascend in the order in which messages were routed.
func (t *tx) takePlaces(n int) (last int64, err error) {
	p := &t.places
	if p.next+int64(n) > p.end {
		if err := t.row(sqlTakePlaces, []any{n + spare}, &p.end); err != nil {
			return 0, err
		}
		p.next = p.end - int64(n+spare)
	}
	p.next += int64(n)
	return p.next, nil
}

// madeRun is a run, and the one that was made for its handler before; 0: not known.
type madeRun struct{ id, before int64 }

// reserve makes the planned runs and their places. number is the last one that the message has given to a delivery.
func (t *tx) reserve(id message.ID, inbound string, plans []store.Plan, number int) (made []madeRun, err error) {
	total := 0
	for _, p := range plans {
		total += len(p.To)
	}
	place, err := t.takePlaces(total)
	if err != nil {
		return nil, err
	}
	place -= int64(total)
	for _, p := range plans {
		run, err := t.insert(sqlInsertRun, id, p.Handler)
		if err != nil {
			return nil, err
		}
		made = append(made, madeRun{run, t.lastRuns[p.Handler]})
		t.lastRuns[p.Handler] = run
		for _, to := range p.To {
			number, place = number+1, place+1
			if err := t.run(sqlReserve, id, number, run, inbound, to, place); err != nil {
				return nil, err
			}
		}
	}
	return made, nil
}

func checkPlans(plans []store.Plan) error {
	handlers := map[string]bool{}
	for _, p := range plans {
		switch {
		case p.Handler == "":
			return errors.New("a plan has no handler")
		case handlers[p.Handler]:
			return fmt.Errorf("handler %q is planned twice", p.Handler)
		}
		handlers[p.Handler] = true
		to := map[string]bool{}
		for _, name := range p.To {
			switch {
			case name == "":
				return fmt.Errorf("handler %q has an outbound without a name", p.Handler)
			case to[name]:
				return fmt.Errorf("handler %q names outbound %q twice", p.Handler, name)
			}
			to[name] = true
		}
	}
	return nil
}

// checkOutcome says whether an outcome is one of the states that are allowed here and consistent in itself.
func checkOutcome(out message.Outcome, allowed ...message.RunState) error {
	for _, s := range allowed {
		if out.State != s {
			continue
		}
		if len(out.Sends) > 0 && s != message.RunSent {
			return fmt.Errorf("an outcome of %s sends nothing, this one has %d sends", s, len(out.Sends))
		}
		return nil
	}
	return fmt.Errorf("an outcome of state %q is not one of %q", out.State, allowed)
}

// How the parts of a message stand, in one walk over its runs and one over its deliveries: whether one is open; the first that
// failed for good, that filtered; whether there is a handler's run, and a delivery that was made.
const (
	sqlSettle = `SELECT ran.open OR sent.open, coalesce(ran.failed, 0), coalesce(sent.dead, 0), sent.done, ran.planned,
			coalesce(ran.filtered, 0)
		FROM (SELECT
			coalesce(max(state = 'PENDING'), 0) AS open,
			min(CASE WHEN state = 'ERROR' AND replayed IS NULL THEN id END) AS failed,
			coalesce(max(handler <> ''), 0) AS planned,
			min(CASE WHEN state = 'FILTERED' THEN id END) AS filtered
			FROM runs WHERE message = ?1) ran,
		(SELECT
			coalesce(max(state IN ('RESERVED','READY')), 0) AS open,
			min(CASE WHEN state = 'DEAD' AND replayed IS NULL THEN number END) AS dead,
			coalesce(max(state = 'DONE'), 0) AS done
			FROM deliveries WHERE message = ?1) sent`
	sqlRunReason  = `SELECT reason FROM runs WHERE message = ? AND id = ?`
	sqlDeadReason = `SELECT reason FROM deliveries WHERE message = ? AND number = ?`
	sqlEndMessage = `UPDATE messages SET disposition = ?, reason = ?, ended = ? WHERE id = ?`
)

// settle derives the message's disposition after one of its parts has ended. While another part is open it stays ROUTED.
// The reason is that of the first part that failed, runs before deliveries, or else of the first that filtered.
func (t *tx) settle(id message.ID) error {
	var open, done, planned bool
	var failed, dead, filtered int64
	err := t.row(sqlSettle, []any{id}, &open, &failed, &dead, &done, &planned, &filtered)
	if err != nil || open {
		return err
	}
	d, reason := message.Unrouted, ""
	switch {
	case failed != 0:
		d, err = message.Error, t.row(sqlRunReason, []any{id, failed}, &reason)
	case dead != 0:
		d, err = message.Error, t.row(sqlDeadReason, []any{id, dead}, &reason)
	case done:
		d = message.Processed
	case planned:
		d = message.Filtered
		if filtered != 0 {
			err = t.row(sqlRunReason, []any{id, filtered}, &reason)
		}
	}
	if err != nil {
		return err
	}
	return t.run(sqlEndMessage, string(d), oneLine(reason, maxReason), micros(time.Now()), id)
}
