package sqlite

import (
	"context"
	"fmt"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

const (
	sqlReceivedSize = `SELECT size FROM messages WHERE inbound = ? AND disposition = 'RECEIVED' AND ended IS NULL ORDER BY id LIMIT 1`
	sqlRunSize      = `SELECT m.size FROM runs r JOIN messages m ON m.id = r.message
		WHERE r.id = (SELECT id FROM runs WHERE handler = ? AND state = 'PENDING' ORDER BY id LIMIT 1)`
	sqlDeliverySize = `SELECT ifnull(ifnull(b.size, length(b.data)), 0) FROM deliveries d LEFT JOIN bodies b ON b.id = d.body WHERE d.id = ?`
)

// NextSize is how large the body is that NextReceived or the first of NextRuns has; see store.Store.
func (s *Store) NextSize(ctx context.Context, of message.Target) (n int64, err error) {
	query := sqlReceivedSize
	if of.Kind == message.KindHandler {
		query = sqlRunSize
	}
	if _, err := s.one(ctx, query, []any{of.Name}, &n); err != nil {
		return 0, fmt.Errorf("size of the next message of %s: %w", of, err)
	}
	return n, nil
}

// DeliverySize is how large the body of a delivery is; see store.Store.
func (s *Store) DeliverySize(ctx context.Context, delivery int64) (n int64, err error) {
	found, err := s.one(ctx, sqlDeliverySize, []any{delivery}, &n)
	if err == nil && !found {
		err = store.ErrNotFound
	}
	if err != nil {
		return 0, fmt.Errorf("size of delivery %d: %w", delivery, err)
	}
	return n, nil
}
