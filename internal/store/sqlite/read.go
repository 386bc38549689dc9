package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

const (
	sqlMessage    = `SELECT ` + messageColumns + ` FROM messages m WHERE m.id = ?`
	sqlRuns       = `SELECT ` + runColumns + ` FROM runs r WHERE r.message = ? ORDER BY r.id`
	sqlDeliveries = `SELECT ` + deliveryColumns + ` FROM deliveries d JOIN messages m ON m.id = d.message
		JOIN runs r ON r.id = d.run WHERE d.message = ? ORDER BY d.number`
	// A place and what was replayed of it are one.
	sqlPlanned   = `SELECT run, outbound FROM deliveries WHERE message = ? AND sub = 0 GROUP BY run, outbound ORDER BY min(number)`
	sqlResubmits = `SELECT id FROM messages WHERE resubmits = ? ORDER BY id`
	sqlTags      = `SELECT name, value FROM tags WHERE message = ?`
	sqlCounts    = `SELECT disposition, count(*) FROM messages INDEXED BY messages_open WHERE ended IS NULL GROUP BY disposition
		UNION ALL SELECT disposition, count(*) FROM messages INDEXED BY messages_by_end WHERE ended IS NOT NULL GROUP BY disposition`
	sqlRefusals = `SELECT inbound, peer, reason, size, at FROM refusals ORDER BY id DESC LIMIT ?`
)

// Timeline returns one message whole; see store.Reader. It is of one moment. A run's sends are among the deliveries, so
// Outcome.Sends and Outcome.Tags are empty there.
func (r *reader) Timeline(ctx context.Context, id message.ID) (store.Timeline, error) {
	return r.told(ctx, id, true)
}

// Outline returns one message without the bodies; see store.Reader.
func (r *reader) Outline(ctx context.Context, id message.ID) (store.Timeline, error) {
	return r.told(ctx, id, false)
}

func (r *reader) told(ctx context.Context, id message.ID, bodies bool) (store.Timeline, error) {
	tl, err := r.timeline(ctx, id, bodies)
	if errors.Is(err, sql.ErrNoRows) {
		err = store.ErrNotFound
	}
	if err != nil {
		return store.Timeline{}, fmt.Errorf("timeline of message %d: %w", id, err)
	}
	return tl, nil
}

func (r *reader) timeline(ctx context.Context, id message.ID, bodies bool) (tl store.Timeline, err error) {
	if err := r.gate.enter(); err != nil {
		return tl, err
	}
	defer r.gate.leave()
	tx, err := r.db.BeginTx(ctx, nil) // deferred: one snapshot for all statements
	if err != nil {
		return tl, err
	}
	defer func() { _ = tx.Rollback() }() // it only read
	ask := func(query string, args []any, scan func(scanner) error) error {
		rows, err := tx.QueryContext(ctx, query, args...)
		return scanAll(rows, err, scan)
	}
	if err := tx.QueryRowContext(ctx, sqlMessage, id).Scan(messageDest(&tl.Message)...); err != nil {
		return tl, err
	}
	each := func(query string, scan func(scanner) error) {
		if err == nil {
			err = ask(query, []any{id}, scan)
		}
	}
	each(sqlRuns, func(row scanner) error {
		run, err := scanRun(row)
		tl.Runs = append(tl.Runs, run)
		return err
	})
	each(sqlPlanned, func(row scanner) error {
		var run int64
		var to string
		err := row.Scan(&run, &to)
		for i := range tl.Runs {
			if tl.Runs[i].ID == run {
				tl.Runs[i].To = append(tl.Runs[i].To, to)
			}
		}
		return err
	})
	each(sqlDeliveries, func(row scanner) error {
		d, err := scanDelivery(row)
		tl.Deliveries = append(tl.Deliveries, d)
		return err
	})
	each(sqlPrinted, func(row scanner) error { return addPrinted(&tl, row) })
	each(sqlDismissals, func(row scanner) error { return addDismissal(&tl, row) })
	each(sqlResubmits, func(row scanner) error {
		var id message.ID
		err := row.Scan(&id)
		tl.Resubmits = append(tl.Resubmits, id)
		return err
	})
	tl.Tags = map[string]string{}
	each(sqlTags, func(row scanner) error {
		var name, value string
		err := row.Scan(&name, &value)
		tl.Tags[name] = value
		return err
	})
	if err == nil && bodies {
		err = addBodies(ask, &tl)
	}
	return tl, err
}

func addBodies(ask asker, tl *store.Timeline) (err error) {
	if tl.Message.Body, err = ownedBody(ask, sqlMessageBody, sqlMessageChunks, int64(tl.Message.ID)); err != nil {
		return err
	}
	for i := range tl.Deliveries {
		d := &tl.Deliveries[i]
		if d.Body, err = ownedBody(ask, sqlDeliveryBody, sqlDeliveryChunks, d.ID); err != nil {
			return err
		}
	}
	return nil
}

// Counts returns how many messages stand at each disposition; all six are there, with zero where none does.
func (r *reader) Counts(ctx context.Context) (map[message.Disposition]int64, error) {
	counts := map[message.Disposition]int64{}
	for _, d := range message.Dispositions() {
		counts[d] = 0
	}
	err := r.each(ctx, sqlCounts, nil, func(row scanner) error {
		var d message.Disposition
		var n int64
		err := row.Scan(&d, &n)
		counts[d] = n
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("count messages: %w", err)
	}
	return counts, nil
}

// Refusals lists what inbounds turned away, newest first, at most limit; a limit of 0 means 50.
func (r *reader) Refusals(ctx context.Context, limit int) ([]message.Refusal, error) {
	var list []message.Refusal
	err := r.each(ctx, sqlRefusals, []any{cmp.Or(max(limit, 0), 50)}, func(row scanner) error {
		var f message.Refusal
		err := row.Scan(&f.Inbound, &f.Peer, &f.Reason, &f.Size, timeCol{&f.At})
		list = append(list, f)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list refusals: %w", err)
	}
	return list, nil
}
