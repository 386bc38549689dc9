package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"coppice.dev/coppice/internal/message"
)

const (
	// The first reason stays: it is what began it.
	sqlHold = `INSERT INTO holds (kind, name, inbound, reason, since) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`
	// An outbound without an inbound is all of it.
	sqlRelease = `DELETE FROM holds WHERE kind = ?1 AND name = ?2 AND (?3 = '' OR inbound = ?3) RETURNING inbound, reason, since`
	sqlHolds   = `SELECT kind, name, inbound, reason, since FROM holds ORDER BY kind, name, inbound`

	sqlFailed = `INSERT INTO streaks (kind, name, failures) VALUES (?, ?, 1)
		ON CONFLICT DO UPDATE SET failures = failures + 1 RETURNING failures`
	sqlEndStreak = `DELETE FROM streaks WHERE kind = ? AND name = ?`
	sqlStreaks   = `SELECT count(*) FROM streaks`

	sqlTried = `SELECT id, message, number, state = 'READY' AND attempts > 0 FROM deliveries
		WHERE outbound = ? AND inbound = ? AND ended IS NULL ORDER BY place, sub LIMIT 1`
	sqlBuryTried = `UPDATE deliveries SET state = 'DEAD', next_try = NULL, ended = ?, reason = 'given up by hand; ' || reason WHERE id = ?`
)

// Hold holds a target; see store.Store.
func (s *Store) Hold(ctx context.Context, h message.Hold) error {
	err := checkTarget(h.Target)
	if err == nil {
		err = s.commit(ctx, 0, func(t *tx) error { return t.hold(h) })
	}
	if err != nil {
		return fmt.Errorf("hold %s: %w", h.Target, err)
	}
	return nil
}

func checkTarget(t message.Target) error {
	switch {
	case t.Kind != message.KindInbound && t.Kind != message.KindHandler && t.Kind != message.KindOutbound:
		return fmt.Errorf("%q is no kind of work", t.Kind)
	case t.Name == "":
		return errors.New("a target has no name")
	case t.Inbound != "" && t.Kind != message.KindOutbound:
		return fmt.Errorf("only an outbound has lanes, %s has none", t.Kind)
	}
	return nil
}

func (t *tx) hold(h message.Hold) error {
	if h.Since.IsZero() {
		h.Since = time.Now()
	}
	return t.run(sqlHold, h.Kind, h.Name, h.Inbound, oneLine(h.Reason, maxDetail), micros(h.Since))
}

// streak counts failures in a row, and holds the target at as many as the outcome says.
func (t *tx) streak(of message.Target, out message.Outcome) error {
	if out.State != message.RunError {
		return t.endStreak(of)
	}
	t.streaks = nil
	var failures int
	if err := t.row(sqlFailed, []any{of.Kind, of.Name}, &failures); err != nil {
		return err
	}
	if out.HoldAfter == 0 || failures < out.HoldAfter {
		return nil
	}
	return t.hold(message.Hold{Target: of, Reason: fmt.Sprintf("%d failures in a row, the last: %s", failures, out.Reason)})
}

// endStreak begins the count of failures anew. There is seldom a row, so that there is none is remembered.
func (t *tx) endStreak(of message.Target) error {
	if t.streaks == nil {
		t.streaks = new(int)
		if err := t.row(sqlStreaks, nil, t.streaks); err != nil {
			return err
		}
	}
	if *t.streaks == 0 {
		return nil
	}
	n, err := t.change(sqlEndStreak, of.Kind, of.Name)
	*t.streaks -= int(n)
	return err
}

// Release ends the holds of a target; see store.Store.
func (s *Store) Release(ctx context.Context, of message.Target, bury bool) ([]message.Hold, error) {
	var released []message.Hold
	err := checkTarget(of)
	if err == nil {
		err = s.commit(ctx, 0, func(t *tx) (err error) {
			released, err = t.release(of, bury)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("release %s: %w", of, err)
	}
	return released, nil
}

func (t *tx) release(of message.Target, bury bool) (released []message.Hold, err error) {
	err = t.rows(sqlRelease, []any{of.Kind, of.Name, of.Inbound}, func(rows *sql.Rows) error {
		h := message.Hold{Target: of}
		err := rows.Scan(&h.Inbound, &h.Reason, timeCol{&h.Since})
		released = append(released, h)
		return err
	})
	if err == nil {
		err = t.endStreak(of)
	}
	for i := range released {
		if bury && err == nil && released[i].Inbound != "" {
			released[i].Buried, err = t.buryTried(released[i].Target)
		}
	}
	return released, err
}

// buryTried makes a dead letter of a lane's head, if that is a delivery that has been tried, and returns its name. A lane that keeps
// no order has no head: see giveUp.
func (t *tx) buryTried(lane message.Target) (string, error) {
	var none bool
	if err := t.row(sqlKeepsNone, []any{lane.Name}, &none); err != nil {
		return "", err
	}
	if none {
		return t.giveUp(lane)
	}
	var d message.Delivery
	var tried bool
	err := t.row(sqlTried, []any{lane.Name, lane.Inbound}, &d.ID, &d.Message, &d.Number, &tried)
	if errors.Is(err, sql.ErrNoRows) || err == nil && !tried {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if err := t.run(sqlBuryTried, micros(time.Now()), d.ID); err != nil {
		return "", err
	}
	return d.Name(), t.settle(d.Message)
}

// Holds lists what is held; see store.Reader.
func (r *reader) Holds(ctx context.Context) ([]message.Hold, error) {
	var list []message.Hold
	err := r.each(ctx, sqlHolds, nil, func(row scanner) error {
		var h message.Hold
		err := row.Scan(&h.Kind, &h.Name, &h.Inbound, &h.Reason, timeCol{&h.Since})
		list = append(list, h)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list holds: %w", err)
	}
	return list, nil
}
