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
	sqlDeliveryState = `SELECT message, state FROM deliveries WHERE id = ?`
	sqlLaneOf        = `SELECT outbound, inbound, number FROM deliveries WHERE id = ?`
	sqlDelivered     = `UPDATE deliveries SET state = 'DONE', attempts = attempts + 1, next_try = NULL, receipt = ?,
		ended = ? WHERE id = ?`
	sqlRetry = `UPDATE deliveries SET attempts = attempts + 1, rejected = rejected + ?, reason = ?, next_try = ?
		WHERE id = ?`
	sqlBury = `UPDATE deliveries SET state = 'DEAD', attempts = attempts + 1, rejected = rejected + 1, next_try = NULL,
		reason = ?, ended = ? WHERE id = ?`
)

// Delivered ends a delivery that the receiver took; see store.Store. It counts one attempt.
func (s *Store) Delivered(ctx context.Context, delivery int64, r message.Receipt) error {
	return s.deliver(ctx, "record as delivered", delivery, func(t *tx, id message.ID) error {
		if err := t.run(sqlDelivered, oneLine(r.Text, maxDetail), micros(time.Now()), delivery); err != nil {
			return err
		}
		return t.settle(id)
	})
}

// Retry keeps a delivery at the head of its lane; see store.Store. It counts one attempt.
func (s *Store) Retry(ctx context.Context, delivery int64, reason string, rejected bool, next time.Time) error {
	return s.deliver(ctx, "retry", delivery, func(t *tx, _ message.ID) error {
		return t.run(sqlRetry, rejected, oneLine(reason, maxDetail), microsOrNull(next), delivery)
	})
}

// Bury ends a delivery that was rejected for good; see store.Store. It counts one attempt and one rejection.
func (s *Store) Bury(ctx context.Context, delivery int64, reason string) error {
	return s.deliver(ctx, "bury", delivery, func(t *tx, id message.ID) error {
		if err := t.run(sqlBury, oneLine(reason, maxDetail), micros(time.Now()), delivery); err != nil {
			return err
		}
		return t.settle(id)
	})
}

// Park keeps a delivery that was rejected for good at the head of its lane, and holds that lane; see store.Store.
func (s *Store) Park(ctx context.Context, delivery int64, reason string) error {
	return s.deliver(ctx, "park", delivery, func(t *tx, id message.ID) error {
		if err := t.run(sqlRetry, true, oneLine(reason, maxDetail), nil, delivery); err != nil {
			return err
		}
		lane, d := message.Target{Kind: message.KindOutbound}, message.Delivery{Message: id}
		if err := t.row(sqlLaneOf, []any{delivery}, &lane.Name, &lane.Inbound, &d.Number); err != nil {
			return err
		}
		return t.hold(message.Hold{Target: lane, Reason: "delivery " + d.Name() + ": " + reason})
	})
}

// deliver commits a change to a delivery that is ready. One whose place is still reserved has no body that could have
// been sent, so a caller that names it is wrong, and is told so.
func (s *Store) deliver(ctx context.Context, verb string, delivery int64, do func(*tx, message.ID) error) error {
	err := s.commit(ctx, 0, func(t *tx) error {
		var id message.ID
		var state message.DeliveryState
		switch err := t.row(sqlDeliveryState, []any{delivery}, &id, &state); {
		case errors.Is(err, sql.ErrNoRows):
			return fmt.Errorf("%w delivery", store.ErrNotFound)
		case err != nil:
			return err
		case state == message.Reserved:
			return errors.New("its place is reserved and holds nothing yet")
		case state != message.Ready:
			return fmt.Errorf("%w: the delivery is %s", store.ErrStale, state)
		}
		return do(t, id)
	})
	if err != nil {
		return fmt.Errorf("%s delivery %d: %w", verb, delivery, err)
	}
	return nil
}
