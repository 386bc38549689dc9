package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"

	"coppice.dev/coppice/internal/store"
)

// schemaPlans remembers under which outbounds each handler's runs were planned, so that only a change of those has the runs that
// wait looked at.
const schemaPlans = `
CREATE TABLE plans (
	handler   TEXT PRIMARY KEY,
	outbounds TEXT NOT NULL -- a JSON list, sorted
) WITHOUT ROWID;
`

// extendRuns is how many runs one step of Extend looks at.
const extendRuns = 256

const (
	sqlPlannedTo = `SELECT outbounds FROM plans WHERE handler = ?`
	sqlPlanTo    = `INSERT INTO plans (handler, outbounds) VALUES (?, ?) ON CONFLICT DO UPDATE SET outbounds = excluded.outbounds`
	sqlToExtend  = `SELECT r.id, r.message, m.inbound, coalesce((SELECT min(place) FROM deliveries d
			WHERE d.message = r.message AND d.run = r.id AND d.sub = 0), 0)
		FROM runs r JOIN messages m ON m.id = r.message
		WHERE r.handler = ? AND r.state = 'PENDING' AND r.id > ? ORDER BY r.id LIMIT ?`
	sqlExtend = `INSERT INTO deliveries (message, number, run, inbound, outbound, place, sub, state)
		SELECT ?1, (SELECT coalesce(max(number), 0) + 1 FROM deliveries WHERE message = ?1), ?2, ?3, ?4, ?5, 0, 'RESERVED'
		WHERE NOT EXISTS (SELECT 1 FROM deliveries WHERE message = ?1 AND run = ?2 AND outbound = ?4 AND sub = 0)`
)

// Extend gives the pending runs of a handler places in lanes that they have none in; see store.Store. It is done in steps, each a
// transaction, and is over at once where the outbounds are those of the last time.
func (s *Store) Extend(ctx context.Context, p store.Plan) error {
	err := checkPlans([]store.Plan{p})
	if err == nil {
		err = s.extend(ctx, p)
	}
	if err != nil {
		return fmt.Errorf("places for handler %q: %w", p.Handler, err)
	}
	return nil
}

func (s *Store) extend(ctx context.Context, p store.Plan) error {
	list := append([]string{}, p.To...) // none is [], not null
	slices.Sort(list)
	now, err := json.Marshal(list)
	if err != nil {
		return err
	}
	var planned string
	if _, err := s.one(ctx, sqlPlannedTo, []any{p.Handler}, &planned); err != nil || planned == string(now) {
		return err
	}
	for more, after := true, int64(0); more; {
		var last int64
		err := s.commit(ctx, 0, func(t *tx) (err error) {
			if more, last, err = t.extend(p, after); err != nil || more {
				return err
			}
			return t.run(sqlPlanTo, p.Handler, string(now))
		})
		if err != nil {
			return err
		}
		after = last
	}
	return nil
}

// extend takes the runs behind one, and returns the last of them, and whether there may be more.
func (t *tx) extend(p store.Plan, after int64) (more bool, last int64, err error) {
	type waiting struct {
		run, message, place int64
		inbound             string
	}
	var list []waiting
	err = t.rows(sqlToExtend, []any{p.Handler, after, extendRuns}, func(rows *sql.Rows) error {
		var w waiting
		err := rows.Scan(&w.run, &w.message, &w.inbound, &w.place)
		list = append(list, w)
		return err
	})
	for _, w := range list {
		for _, to := range p.To {
			if err == nil && w.place == 0 {
				w.place, err = t.takePlaces(1)
			}
			if err == nil {
				err = t.run(sqlExtend, w.message, w.run, w.inbound, to, w.place)
			}
		}
		last = w.run
	}
	return len(list) == extendRuns, last, err
}
