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
	runNotDismissed      = ` AND NOT EXISTS (SELECT 1 FROM dismissals x WHERE x.message = r.message AND x.kind = 'run' AND x.part = r.id)`
	deliveryNotDismissed = ` AND NOT EXISTS (SELECT 1 FROM dismissals x WHERE x.message = d.message AND x.kind = 'delivery' AND x.part = d.id)`

	sqlDismissRuns = `INSERT INTO dismissals SELECT r.message, 'run', r.id, ?, ? FROM runs r
		WHERE r.message = ? AND r.state = 'ERROR' AND r.replayed IS NULL` + runNotDismissed
	sqlDismissDeliveries = `INSERT INTO dismissals SELECT d.message, 'delivery', d.id, ?, ? FROM deliveries d
		WHERE d.message = ? AND d.state = 'DEAD' AND d.replayed IS NULL` + deliveryNotDismissed
	sqlDismissals       = `SELECT kind, part, at, reason FROM dismissals WHERE message = ?`
	sqlRemoveDismissals = `DELETE FROM dismissals WHERE message = ?`
)

// Dismiss takes what failed of a message from the dead letters; see store.Store.
func (s *Store) Dismiss(ctx context.Context, id message.ID, reason string) (parts int64, err error) {
	err = s.commit(ctx, 0, func(t *tx) error {
		var d message.Disposition
		var inbound string
		switch err := t.row(sqlMessageState, []any{id}, &d, &inbound); {
		case errors.Is(err, sql.ErrNoRows):
			return store.ErrNotFound
		case err != nil:
			return err
		}
		parts = 0 // it may be tried again
		for _, dismiss := range []string{sqlDismissRuns, sqlDismissDeliveries} {
			n, err := t.change(dismiss, micros(time.Now()), oneLine(reason, maxDetail), id)
			if err != nil {
				return err
			}
			parts += n
		}
		if parts == 0 {
			return fmt.Errorf("%w, or it was dismissed before", store.ErrNothingFailed)
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("dismiss message %d: %w", id, err)
	}
	return parts, nil
}

// addDismissal reads a row of sqlDismissals into the timeline, whose runs and deliveries are there.
func addDismissal(tl *store.Timeline, row scanner) error {
	var kind string
	var part int64
	var d message.Dismissal
	err := row.Scan(&kind, &part, timeCol{&d.At}, &d.Reason)
	for i := range tl.Runs {
		if r := &tl.Runs[i]; kind == "run" && r.ID == part {
			r.Dismissed = d
		}
	}
	for i := range tl.Deliveries {
		if sent := &tl.Deliveries[i]; kind == "delivery" && sent.ID == part {
			sent.Dismissed = d
		}
	}
	return err
}
