package sqlite

import (
	"bytes"
	"context"
	"fmt"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// The deliveries of a message that carry something else than what came; one for each body.
const sqlOtherBodies = `SELECT min(d.id), min(d.number) FROM deliveries d JOIN messages m ON m.id = d.message
	WHERE d.message = ? AND d.body IS NOT NULL AND d.body <> m.body GROUP BY d.body ORDER BY 2`

// Contains looks for a text in a message's bodies; see store.Reader. Each body is a question of its own, so that no read keeps the
// engine from checkpointing for longer than one takes. bytes.Contains is many times as fast as instr() of SQLite without cgo.
func (r *reader) Contains(ctx context.Context, id message.ID, text []byte) (store.Hit, error) {
	h, err := r.contains(ctx, id, text)
	if err != nil {
		return store.Hit{}, fmt.Errorf("search message %d: %w", id, err)
	}
	return h, nil
}

func (r *reader) contains(ctx context.Context, id message.ID, text []byte) (h store.Hit, err error) {
	look := func(query, chunks string, owner int64) error {
		b, err := ownedBody(r.asks(ctx), query, chunks, owner)
		h.Bytes += int64(len(b))
		h.Found = err == nil && bytes.Contains(b, text)
		return err
	}
	if err := look(sqlMessageBody, sqlMessageChunks, int64(id)); err != nil || h.Found {
		return h, err
	}
	type other struct {
		id     int64
		number int
	}
	var others []other
	err = r.each(ctx, sqlOtherBodies, []any{id}, func(row scanner) error {
		var o other
		err := row.Scan(&o.id, &o.number)
		others = append(others, o)
		return err
	})
	for _, o := range others {
		if err != nil || h.Found {
			break
		}
		if err = look(sqlDeliveryBody, sqlDeliveryChunks, o.id); h.Found {
			h.Delivery = o.number
		}
	}
	return h, err
}
