package sqlite

import (
	"context"
	"fmt"

	"coppice.dev/coppice/internal/message"
)

// ReceiveAll commits several messages in one transaction, all or none; see store.Store. They are one operation, for which
// others wait: what is large of them is stored before, as in Receive.
func (s *Store) ReceiveAll(ctx context.Context, all []message.Incoming) ([]message.Taken, error) {
	taken, err := s.receiveAll(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("receive %d messages: %w", len(all), err)
	}
	return taken, nil
}

func (s *Store) receiveAll(ctx context.Context, all []message.Incoming) ([]message.Taken, error) {
	list, bytes := make([]*receiving, len(all)), 0
	for i, in := range all {
		var err error
		if list[i], err = s.prepare(ctx, in, nil); err != nil {
			return nil, err
		}
		defer s.staging.drop(list[i].large)
		bytes += inOneOp(in.Body)
	}
	err := s.commit(ctx, bytes, func(t *tx) error {
		for _, r := range list {
			if err := r.do(t); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	taken := make([]message.Taken, len(all))
	for i, r := range list {
		taken[i] = message.Taken{ID: message.ID(r.id), Duplicate: r.repeats}
	}
	return taken, nil
}
