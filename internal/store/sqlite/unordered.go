package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"coppice.dev/coppice/internal/message"
)

const (
	sqlKeepsNone = `SELECT EXISTS (SELECT 1 FROM unordered WHERE outbound = ?)`
	sqlKeepNone  = `INSERT INTO unordered (outbound) VALUES (?) ON CONFLICT DO NOTHING`
	sqlMarkReady = `UPDATE deliveries INDEXED BY deliveries_open SET unordered = 1
		WHERE outbound = ? AND ended IS NULL AND state = 'READY'`
	sqlKeepOrder   = `DELETE FROM unordered WHERE outbound = ?`
	sqlUnmarkReady = `UPDATE deliveries INDEXED BY deliveries_unordered SET unordered = NULL
		WHERE outbound = ? AND state = 'READY' AND unordered = 1`

	// As sqlHeads, but the first few of each lane.
	sqlReady = `WITH RECURSIVE lane (inbound) AS (
			SELECT min(inbound) FROM deliveries WHERE outbound = ?1 AND state = 'READY' AND unordered = 1
			UNION ALL
			SELECT (SELECT min(inbound) FROM deliveries
				WHERE outbound = ?1 AND inbound > lane.inbound AND state = 'READY' AND unordered = 1)
			FROM lane WHERE lane.inbound IS NOT NULL
		)
		SELECT ` + deliveryColumns + `
		FROM lane
		CROSS JOIN deliveries d ON d.id IN (SELECT id FROM deliveries
			WHERE outbound = ?1 AND inbound = lane.inbound AND state = 'READY' AND unordered = 1 ORDER BY place, sub LIMIT ?2)
		JOIN messages m ON m.id = d.message
		JOIN runs r ON r.id = d.run
		ORDER BY d.place, d.sub`

	sqlStillReady = `SELECT attempts FROM deliveries WHERE id = ? AND state = 'READY'`

	sqlLaneTried = `SELECT ` + deliveryColumns + ` FROM deliveries d JOIN messages m ON m.id = d.message JOIN runs r ON r.id = d.run
		WHERE d.outbound = ? AND d.inbound = ? AND d.state = 'READY' AND d.unordered = 1 AND d.attempts > 0
		ORDER BY d.place, d.sub LIMIT 1`
	sqlGiveUp = `SELECT id, message, number, next_try IS NULL FROM deliveries
		WHERE outbound = ? AND inbound = ? AND state = 'READY' AND unordered = 1 AND attempts > 0 ORDER BY place, sub`
)

// KeepOrder says whether an outbound's deliveries leave in order; see store.Store. A change is one transaction, however much waits.
func (s *Store) KeepOrder(ctx context.Context, outbound string, keep bool) error {
	var none bool
	_, err := s.one(ctx, sqlKeepsNone, []any{outbound}, &none)
	if err == nil && none == keep {
		err = s.commit(ctx, 0, func(t *tx) error { return t.keepOrder(outbound, keep) })
	}
	if err != nil {
		return fmt.Errorf("order of outbound %q: %w", outbound, err)
	}
	return nil
}

func (t *tx) keepOrder(outbound string, keep bool) error {
	change, mark := sqlKeepNone, sqlMarkReady
	if keep {
		change, mark = sqlKeepOrder, sqlUnmarkReady
	}
	if err := t.run(change, outbound); err != nil {
		return err
	}
	return t.run(mark, outbound)
}

// Ready returns the first deliveries of each lane that can be sent; see store.Store.
func (s *Store) Ready(ctx context.Context, outbound string, limit int) ([]message.Delivery, error) {
	var list []message.Delivery
	err := s.each(ctx, sqlReady, []any{outbound, limit}, func(row scanner) error {
		d, err := scanDelivery(row)
		list = append(list, d)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("what is ready at outbound %q: %w", outbound, err)
	}
	return list, nil
}

// StillReady says whether a delivery is ready; see store.Store.
func (s *Store) StillReady(ctx context.Context, delivery int64) (attempts int, ready bool, err error) {
	ready, err = s.one(ctx, sqlStillReady, []any{delivery}, &attempts)
	if err != nil {
		return 0, false, fmt.Errorf("look up delivery %d: %w", delivery, err)
	}
	return attempts, ready, nil
}

// giveUp makes dead letters of what stands in the way at a lane that keeps no order: all that was rejected for good, and has no next
// try; or, if nothing was, the oldest that has been tried. It returns their names.
func (t *tx) giveUp(lane message.Target) (string, error) {
	var rejected, tried []message.Delivery
	err := t.rows(sqlGiveUp, []any{lane.Name, lane.Inbound}, func(rows *sql.Rows) error {
		var d message.Delivery
		var parked bool
		err := rows.Scan(&d.ID, &d.Message, &d.Number, &parked)
		if parked {
			rejected = append(rejected, d)
		} else if len(tried) == 0 {
			tried = append(tried, d)
		}
		return err
	})
	if len(rejected) == 0 {
		rejected = tried
	}
	var names []string
	for _, d := range rejected {
		if err == nil {
			err = t.run(sqlBuryTried, micros(time.Now()), d.ID)
		}
		if err == nil {
			err = t.settle(d.Message)
		}
		names = append(names, d.Name())
	}
	return strings.Join(names, ", "), err
}
