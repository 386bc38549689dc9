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
			`UPDATE messages SET inbound = ?2 WHERE inbound = ?1 AND disposition IN ('RECEIVED','ROUTED')`,
			`UPDATE deliveries INDEXED BY deliveries_open SET inbound = ?2 WHERE inbound = ?1 AND state IN ('RESERVED','READY')`,
			`UPDATE OR REPLACE holds SET inbound = ?2 WHERE inbound = ?1`,
		}
	case message.KindHandler:
		return []string{`UPDATE runs SET handler = ?2 WHERE handler = ?1 AND state = 'PENDING'`}
	}
	return []string{`UPDATE deliveries INDEXED BY deliveries_open SET outbound = ?2 WHERE outbound = ?1 AND state IN ('RESERVED','READY')`}
}

const (
	sqlRenameHolds   = `UPDATE OR REPLACE holds SET name = ? WHERE kind = ? AND name = ?`
	sqlRenameStreaks = `UPDATE OR REPLACE streaks SET name = ? WHERE kind = ? AND name = ?`
)

// Rename gives the unfinished work of one name to another; see store.Store. It is one transaction, however much that is.
func (s *Store) Rename(ctx context.Context, kind, from, to string) (n int64, err error) {
	for _, name := range []string{from, to} {
		if err := checkTarget(message.Target{Kind: kind, Name: name}); err != nil {
			return 0, fmt.Errorf("rename %s %q: %w", kind, from, err)
		}
	}
	err = s.commit(ctx, 0, func(t *tx) error {
		n = 0
		for i, query := range renames(kind) {
			changed, err := t.change(query, from, to)
			if err != nil {
				return err
			}
			if i == 0 {
				n = changed
			}
		}
		if err := t.run(sqlRenameHolds, to, kind, from); err != nil {
			return err
		}
		return t.run(sqlRenameStreaks, to, kind, from)
	})
	if err != nil {
		return 0, fmt.Errorf("rename %s %q to %q: %w", kind, from, to, err)
	}
	return n, nil
}
