package sqlite

import (
	"context"
	"fmt"

	"coppice.dev/coppice/internal/message"
)

// What a name of each kind has that has not ended, and what is held by it. An inbound's name is also that of its lanes.
func renames(kind string) []string {
	switch kind {
	case message.KindInbound:
		return []string{
			`UPDATE messages INDEXED BY messages_open SET inbound = ?2 WHERE inbound = ?1 AND ended IS NULL`,
			`UPDATE deliveries INDEXED BY deliveries_open SET inbound = ?2 WHERE inbound = ?1 AND ended IS NULL`,
			`UPDATE OR REPLACE holds SET inbound = ?2 WHERE inbound = ?1`,
		}
	case message.KindHandler:
		return []string{`UPDATE runs SET handler = ?2 WHERE handler = ?1 AND state = 'PENDING'`}
	}
	return []string{`UPDATE deliveries INDEXED BY deliveries_open SET outbound = ?2 WHERE outbound = ?1 AND ended IS NULL`}
}

const (
	sqlRenameHolds   = `UPDATE OR REPLACE holds SET name = ? WHERE kind = ? AND name = ?`
	sqlRenameStreaks = `UPDATE OR REPLACE streaks SET name = ? WHERE kind = ? AND name = ?`
)

// Rename gives the unfinished work of former names to those of now; see store.Store. It is one transaction, however much that is:
// a part of the names would belong to no configuration.
func (s *Store) Rename(ctx context.Context, names message.Names) (total int64, err error) {
	err = s.commit(ctx, 0, func(t *tx) error {
		total = 0
		for from, to := range formerNames(names) {
			if to == "" || from.Name == "" {
				return fmt.Errorf("%s %q to %q: a target has no name", from.Kind, from.Name, to)
			}
			n, err := t.rename(from.Kind, from.Name, to)
			if err != nil {
				return fmt.Errorf("%s to %q: %w", from, to, err)
			}
			total += n
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("rename: %w", err)
	}
	return total, nil
}

// formerNames are the names that stand for another one, with that.
func formerNames(names message.Names) map[message.Target]string {
	all := map[message.Target]string{}
	add := func(kind, from, to string) {
		if from != to {
			all[message.Target{Kind: kind, Name: from}] = to
		}
	}
	for from, to := range names.Inbounds {
		add(message.KindInbound, from, to)
	}
	for from, plan := range names.Handlers {
		add(message.KindHandler, from, plan.Handler)
	}
	for from, to := range names.Outbounds {
		add(message.KindOutbound, from, to)
	}
	return all
}

// rename returns how much work of its own the former name had: an inbound's is what waits for its router, and not its lanes.
func (t *tx) rename(kind, from, to string) (n int64, err error) {
	clear(t.lastRuns)
	for i, query := range renames(kind) {
		changed, err := t.change(query, from, to)
		if err != nil {
			return 0, err
		}
		if i == 0 {
			n = changed
		}
	}
	if err := t.run(sqlRenameHolds, to, kind, from); err != nil {
		return 0, err
	}
	return n, t.run(sqlRenameStreaks, to, kind, from)
}
