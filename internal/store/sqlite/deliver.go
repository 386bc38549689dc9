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
	sqlDeliveryState = `SELECT state FROM deliveries WHERE id = ?`
	sqlLaneOf        = `SELECT outbound, inbound, number FROM deliveries WHERE id = ?`
	ifReady          = ` WHERE id = ? AND state = 'READY' RETURNING message`
	sqlDelivered     = `UPDATE deliveries SET state = 'DONE', attempts = attempts + 1, next_try = NULL, receipt = ?,
		ended = ?` + ifReady
	sqlRetry = `UPDATE deliveries SET attempts = attempts + 1, rejected = rejected + ?, reason = ?, next_try = ?` + ifReady
	sqlBury  = `UPDATE deliveries SET state = 'DEAD', attempts = attempts + 1, rejected = rejected + 1, next_try = NULL,
		reason = ?, ended = ?` + ifReady
)

// Delivered ends a delivery that the receiver took; see store.Store. It counts one attempt.
func (s *Store) Delivered(ctx context.Context, delivery int64, r message.Receipt) error {
	return s.deliver(ctx, "record as delivered", delivery, func(t *tx) error {
		return t.endDelivery(delivery, sqlDelivered, oneLine(r.Text, maxDetail), micros(time.Now()))
	})
}

// Retry keeps a delivery at the head of its lane; see store.Store. It counts one attempt.
func (s *Store) Retry(ctx context.Context, delivery int64, reason string, rejected bool, next time.Time) error {
	return s.deliver(ctx, "retry", delivery, func(t *tx) error {
		_, err := t.changeReady(delivery, sqlRetry, rejected, oneLine(reason, maxDetail), microsOrNull(next))
		return err
	})
}

// Bury ends a delivery that was rejected for good; see store.Store. It counts one attempt and one rejection.
func (s *Store) Bury(ctx context.Context, delivery int64, reason string) error {
	return s.deliver(ctx, "bury", delivery, func(t *tx) error {
		return t.endDelivery(delivery, sqlBury, oneLine(reason, maxDetail), micros(time.Now()))
	})
}

// Park keeps a delivery that was rejected for good at the head of its lane, and holds that lane; see store.Store.
func (s *Store) Park(ctx context.Context, delivery int64, reason string) error {
	return s.deliver(ctx, "park", delivery, func(t *tx) error {
		id, err := t.changeReady(delivery, sqlRetry, true, oneLine(reason, maxDetail), nil)
		if err != nil {
			return err
		}
		lane, d := message.Target{Kind: message.KindOutbound}, message.Delivery{Message: id}
		if err := t.row(sqlLaneOf, []any{delivery}, &lane.Name, &lane.Inbound, &d.Number); err != nil {
			return err
		}
		return t.hold(message.Hold{Target: lane, Reason: "delivery " + d.Name() + ": " + reason})
	})
}

// deliver commits a change to a delivery.
func (s *Store) deliver(ctx context.Context, verb string, delivery int64, do func(*tx) error) error {
	if err := s.commit(ctx, 0, do); err != nil {
		return fmt.Errorf("%s delivery %d: %w", verb, delivery, err)
	}
	return nil
}

// endDelivery changes a delivery that is ready to one that has ended, and with it perhaps its message.
func (t *tx) endDelivery(delivery int64, change string, args ...any) error {
	id, err := t.changeReady(delivery, change, args...)
	if err != nil {
		return err
	}
	return t.settle(id)
}

// changeReady changes a delivery that is ready, and returns its message. One whose place is still reserved has no body that
// could have been sent, so a caller that names it is wrong, and is told so.
func (t *tx) changeReady(delivery int64, change string, args ...any) (id message.ID, err error) {
	err = t.row(change, append(args, delivery), &id)
	if !errors.Is(err, sql.ErrNoRows) {
		return id, err
	}
	var state message.DeliveryState
	switch err := t.row(sqlDeliveryState, []any{delivery}, &state); {
	case errors.Is(err, sql.ErrNoRows):
		return 0, fmt.Errorf("%w delivery", store.ErrNotFound)
	case err != nil:
		return 0, err
	case state == message.Reserved:
		return 0, errors.New("its place is reserved and holds nothing yet")
	default:
		return 0, fmt.Errorf("%w: the delivery is %s", store.ErrStale, state)
	}
}
