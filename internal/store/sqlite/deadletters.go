package sqlite

import (
	"cmp"
	"context"
	"fmt"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// The two halves of the dead letters: runs, the router's among them, and deliveries. Each is walked in its index, which
// holds nothing else, from the newest message on; CROSS keeps the planner from beginning with the messages.
const (
	sqlDeadRuns = `SELECT r.message, m.inbound, m.type, m.control_id,
			CASE r.handler WHEN '' THEN 'inbound' ELSE 'handler' END AS kind,
			CASE r.handler WHEN '' THEN m.inbound ELSE r.handler END AS name, 0 AS number, r.reason, r.ended
		FROM runs r INDEXED BY runs_dead CROSS JOIN messages m ON m.id = r.message
		WHERE r.state = 'ERROR' AND r.replayed IS NULL` + runNotDismissed + notResubmitted
	sqlDeadDeliveries = `SELECT d.message, m.inbound, m.type, m.control_id, 'outbound', d.outbound AS name, d.number, d.reason, d.ended
		FROM deliveries d INDEXED BY deliveries_dead CROSS JOIN messages m ON m.id = d.message
		WHERE d.state = 'DEAD' AND d.replayed IS NULL` + deliveryNotDismissed + notResubmitted
	// Who has sent a message again, edited, does not want it replayed as it was.
	notResubmitted = ` AND NOT EXISTS (SELECT 1 FROM messages a WHERE a.resubmits = m.id)`
)

// DeadLetters lists parts that failed for good and have not been seen to; see store.Reader.
func (r *reader) DeadLetters(ctx context.Context, q store.DeadLetters) ([]message.DeadLetter, error) {
	list, err := r.deadLetters(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	return list, nil
}

func (r *reader) deadLetters(ctx context.Context, q store.DeadLetters) ([]message.DeadLetter, error) {
	if err := r.gate.enter(); err != nil {
		return nil, err
	}
	defer r.gate.leave()
	query, args := deadSQL(q)
	rows, err := r.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	limit := cmp.Or(max(q.Limit, 0), 50)
	var list []message.DeadLetter
	var last message.ID
	for rows.Next() {
		var d message.DeadLetter
		var number int
		err := rows.Scan(&d.Message, &d.Inbound, &d.Type, &d.Control, &d.Kind, &d.Name, &number, &d.Reason, timeCol{&d.Ended})
		if err != nil {
			return nil, err
		}
		if d.Message != last {
			if limit == 0 {
				return list, nil
			}
			limit--
			last = d.Message
		}
		if number > 0 {
			d.Delivery = message.Delivery{Message: d.Message, Number: number}.Name()
		}
		list = append(list, d)
	}
	return list, rows.Err()
}

// deadSQL builds the query of both halves, or of the one that has the kind.
func deadSQL(q store.DeadLetters) (query string, args []any) {
	half := func(sql, id string) string {
		if q.Before > 0 {
			sql += " AND " + id + " < ?"
			args = append(args, q.Before)
		}
		if q.Inbound != "" {
			sql += " AND m.inbound = ?"
			args = append(args, q.Inbound)
		}
		if !q.Since.IsZero() {
			sql += " AND m.received >= ?"
			args = append(args, micros(q.Since))
		}
		if q.Kind != "" {
			sql += " AND kind = ?"
			args = append(args, q.Kind)
		}
		if q.Name != "" {
			sql += " AND name = ?"
			args = append(args, q.Name)
		}
		return sql
	}
	// An ORDER BY over UNION ALL merges two ordered walks, and sorts nothing.
	const order = " ORDER BY 1 DESC"
	switch q.Kind {
	case message.KindOutbound:
		q.Kind = ""
		return half(sqlDeadDeliveries, "d.message") + order, args
	case message.KindInbound, message.KindHandler:
		return half(sqlDeadRuns, "r.message") + order, args
	}
	runs := half(sqlDeadRuns, "r.message")
	return runs + " UNION ALL " + half(sqlDeadDeliveries, "d.message") + order, args
}
