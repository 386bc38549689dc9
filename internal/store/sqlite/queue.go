package sqlite

import (
	"context"
	"encoding/json"
	"fmt"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// What the engine asks all the time. Each is a few index look-ups, however long the queue is; TestPlans holds this.
const (
	sqlNextReceived = `SELECT ` + messageColumns + `, ` + bodyColumns + ` FROM messages m JOIN bodies b ON b.id = m.body
		WHERE m.inbound = ? AND m.disposition = 'RECEIVED' AND m.ended IS NULL ORDER BY m.id LIMIT 1`

	// While a run is pending, its places are there and nobody but its own end changes them.
	sqlNextRuns = `SELECT ` + messageColumns + `, ` + bodyColumns + `, r.id, (SELECT json_group_array(outbound) FROM (
			SELECT outbound FROM deliveries d WHERE d.message = r.message AND d.run = r.id AND d.sub = 0 ORDER BY d.number))
		FROM runs r JOIN messages m ON m.id = r.message JOIN bodies b ON b.id = m.body
		WHERE r.handler = ?1 AND r.state = 'PENDING' ORDER BY r.id LIMIT ?2`

	// A lane may be as long as an outage lasts, so lanes are found by skipping from one inbound to the next in the index
	// of open deliveries, and only the first rows of each are read.
	sqlHeads = `WITH RECURSIVE lane (inbound) AS (
			SELECT min(inbound) FROM deliveries WHERE outbound = ?1 AND ended IS NULL
			UNION ALL
			SELECT (SELECT min(inbound) FROM deliveries
				WHERE outbound = ?1 AND inbound > lane.inbound AND ended IS NULL)
			FROM lane WHERE lane.inbound IS NOT NULL
		)
		SELECT ` + deliveryColumns + `
		FROM lane
		CROSS JOIN deliveries d ON d.id IN (SELECT id FROM deliveries
			WHERE outbound = ?1 AND inbound = lane.inbound AND ended IS NULL ORDER BY place, sub LIMIT ?2)
		JOIN messages m ON m.id = d.message
		JOIN runs r ON r.id = d.run
		ORDER BY d.place, d.sub`

	sqlSeen = `SELECT message FROM sources WHERE path = ? AND size = ? AND mtime = ? AND sha256 = ?`

	// Each part counts what is open in an index, and looks at no row.
	sqlWaiting = `SELECT 'inbound', inbound, count(*) FROM messages INDEXED BY messages_open
			WHERE disposition = 'RECEIVED' AND ended IS NULL GROUP BY inbound
		UNION ALL SELECT 'handler', handler, count(*) FROM runs WHERE state = 'PENDING' GROUP BY handler
		UNION ALL SELECT 'outbound', outbound, count(*) FROM deliveries WHERE ended IS NULL GROUP BY outbound`

	sqlUnfinished = `SELECT count(*) FROM messages INDEXED BY messages_open WHERE ended IS NULL`
)

// NextReceived returns the oldest message of the inbound that awaits routing; see store.Store.
func (s *Store) NextReceived(ctx context.Context, inbound string) (*message.Message, error) {
	var m message.Message
	var body bodyCols
	found, err := s.one(ctx, sqlNextReceived, []any{inbound}, append(messageDest(&m), body.dest()...)...)
	if err == nil && found {
		m.Body, err = body.whole(s.asks(ctx), sqlMessageChunks, int64(m.ID))
	}
	if err != nil {
		return nil, fmt.Errorf("next message of inbound %q: %w", inbound, err)
	}
	if !found {
		return nil, nil
	}
	return &m, nil
}

// NextRuns returns the handler's oldest pending runs; see store.Store.
func (s *Store) NextRuns(ctx context.Context, handler string, most int, bytes int64) ([]message.Pending, error) {
	var next []message.Pending
	var bodies []bodyCols
	err := s.each(ctx, sqlNextRuns, []any{handler, most}, func(row scanner) error {
		p := message.Pending{Run: message.Run{Handler: handler, State: message.RunPending}}
		var body bodyCols
		var to []byte
		if err := row.Scan(append(append(messageDest(&p.On), body.dest()...), &p.Run.ID, &to)...); err != nil {
			return err
		}
		if bytes -= p.On.Size; bytes < 0 && len(next) > 0 {
			return errEnough
		}
		if err := json.Unmarshal(to, &p.Run.To); err != nil {
			return fmt.Errorf("places of run %d: %w", p.Run.ID, err)
		}
		p.Run.Message = p.On.ID
		next, bodies = append(next, p), append(bodies, body)
		return nil
	})
	for i := range next {
		if err == nil {
			next[i].On.Body, err = bodies[i].whole(s.asks(ctx), sqlMessageChunks, int64(next[i].On.ID))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("next runs of handler %q: %w", handler, err)
	}
	return next, nil
}

// Heads returns the first deliveries of each lane of the outbound; see store.Store.
func (r *reader) Heads(ctx context.Context, outbound string, most int) ([]message.Delivery, error) {
	var heads []message.Delivery
	err := r.each(ctx, sqlHeads, []any{outbound, most}, func(row scanner) error {
		d, err := scanDelivery(row)
		heads = append(heads, d)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("heads of outbound %q: %w", outbound, err)
	}
	return heads, nil
}

// DeliveryBody returns what a delivery carries; see store.Store.
func (r *reader) DeliveryBody(ctx context.Context, delivery int64) ([]byte, error) {
	b, err := ownedBody(r.asks(ctx), sqlDeliveryBody, sqlDeliveryChunks, delivery)
	if err != nil {
		return nil, fmt.Errorf("body of delivery %d: %w", delivery, err)
	}
	return b, nil
}

// Seen says whether a file with this identity was received already; see store.Store.
func (s *Store) Seen(ctx context.Context, src message.Source) (message.ID, bool, error) {
	var id message.ID
	found, err := s.one(ctx, sqlSeen, []any{src.Path, src.Size, micros(src.ModTime), src.SHA256}, &id)
	if err != nil {
		return 0, false, fmt.Errorf("look up a file: %w", err)
	}
	return id, found, nil
}

// Unfinished returns how many messages have no final disposition.
func (s *Store) Unfinished(ctx context.Context) (int64, error) {
	var n int64
	if _, err := s.one(ctx, sqlUnfinished, nil, &n); err != nil {
		return 0, fmt.Errorf("count unfinished messages: %w", err)
	}
	return n, nil
}

// Waiting lists for whom unfinished work waits; see store.Store.
func (s *Store) Waiting(ctx context.Context) ([]store.Waiting, error) {
	var out []store.Waiting
	err := s.each(ctx, sqlWaiting, nil, func(row scanner) error {
		var w store.Waiting
		err := row.Scan(&w.Kind, &w.Name, &w.Count)
		out = append(out, w)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for waiting work: %w", err)
	}
	return out, nil
}
