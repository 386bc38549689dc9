package sqlite

import (
	"context"
	"fmt"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// The queues that hold something: kind and name, the inbound of an outbound's lane, how much waits, since when the oldest.
const (
	sqlRoutingLanes = `SELECT q.inbound, q.n, m.received FROM (SELECT inbound, count(*) AS n, min(id) AS first
			FROM messages INDEXED BY messages_open WHERE disposition = 'RECEIVED' AND ended IS NULL GROUP BY inbound) q
		JOIN messages m ON m.id = q.first ORDER BY q.inbound`
	sqlHandlerLanes = `SELECT q.handler, q.n, m.received FROM (SELECT handler, count(*) AS n, min(id) AS first
			FROM runs WHERE state = 'PENDING' GROUP BY handler) q
		JOIN runs r ON r.id = q.first JOIN messages m ON m.id = r.message ORDER BY q.handler`
	sqlOutboundLanes = `SELECT outbound, inbound, count(*), EXISTS (SELECT 1 FROM unordered u WHERE u.outbound = deliveries.outbound)
		FROM deliveries WHERE ended IS NULL GROUP BY outbound, inbound`
	sqlLaneHead = `SELECT ` + deliveryColumns + `, m.received FROM deliveries d JOIN messages m ON m.id = d.message
		JOIN runs r ON r.id = d.run
		WHERE d.outbound = ? AND d.inbound = ? AND d.ended IS NULL ORDER BY d.place, d.sub LIMIT 1`
)

// Lanes lists the queues that hold something; see store.Reader. Each of the parts is of one moment.
func (r *reader) Lanes(ctx context.Context) ([]store.Lane, error) {
	var list []store.Lane
	queues := func(kind, query string) error {
		return r.each(ctx, query, nil, func(row scanner) error {
			l := store.Lane{Target: message.Target{Kind: kind}}
			err := row.Scan(&l.Name, &l.Waiting, timeCol{&l.Oldest})
			list = append(list, l)
			return err
		})
	}
	err := queues(message.KindInbound, sqlRoutingLanes)
	if err == nil {
		err = queues(message.KindHandler, sqlHandlerLanes)
	}
	if err == nil {
		var out []store.Lane
		out, err = r.outboundLanes(ctx)
		list = append(list, out...)
	}
	if err != nil {
		return nil, fmt.Errorf("list lanes: %w", err)
	}
	return list, nil
}

func (r *reader) outboundLanes(ctx context.Context) ([]store.Lane, error) {
	var list []store.Lane
	err := r.each(ctx, sqlOutboundLanes, nil, func(row scanner) error {
		l := store.Lane{Target: message.Target{Kind: message.KindOutbound}}
		err := row.Scan(&l.Name, &l.Inbound, &l.Waiting, &l.Unordered)
		list = append(list, l)
		return err
	})
	for i := range list {
		if err != nil {
			break
		}
		l := &list[i]
		err = r.each(ctx, sqlLaneHead, []any{l.Name, l.Inbound}, func(row scanner) error {
			d, err := scanDelivery(row, timeCol{&l.Oldest})
			l.Head = &d
			return err
		})
		if err == nil && l.Unordered {
			err = r.laneTried(ctx, l)
		}
	}
	return list, err
}

// laneTried puts the oldest delivery that has been tried in the place of the head.
func (r *reader) laneTried(ctx context.Context, l *store.Lane) error {
	l.Head = nil
	return r.each(ctx, sqlLaneTried, []any{l.Name, l.Inbound}, func(row scanner) error {
		d, err := scanDelivery(row)
		l.Head = &d
		return err
	})
}
