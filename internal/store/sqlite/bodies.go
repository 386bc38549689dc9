package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// maxChunk is how much of a body one operation writes. A larger body is stored in chunks, of which a commit group takes one
// at most, so that those who receive small messages meanwhile wait for a chunk and not for a whole body.
const maxChunk = 256 << 10

const (
	sqlInsertBody  = `INSERT INTO bodies (data) VALUES (?)`
	sqlInsertLarge = `INSERT INTO bodies (data, size) VALUES (x'', ?)`
	sqlLoosen      = `INSERT INTO loose (body) VALUES (?)`
	sqlInsertChunk = `INSERT INTO chunks (body, n, data) VALUES (?, ?, ?)`
	sqlTake        = `DELETE FROM loose WHERE body = ? RETURNING body`

	sqlMessageBody  = `SELECT ` + bodyColumns + ` FROM messages m JOIN bodies b ON b.id = m.body WHERE m.id = ?`
	sqlDeliveryBody = `SELECT ` + bodyColumns + ` FROM deliveries d LEFT JOIN bodies b ON b.id = d.body WHERE d.id = ?`

	// By the row that refers to the body, since its id never comes back, while a body's may after a purge.
	sqlMessageChunks  = `SELECT c.data FROM messages m JOIN chunks c ON c.body = m.body WHERE m.id = ? ORDER BY c.n`
	sqlDeliveryChunks = `SELECT c.data FROM deliveries d JOIN chunks c ON c.body = d.body WHERE d.id = ? ORDER BY c.n`
)

// staged is a body whose chunks are stored, or being stored, and that no row refers to yet.
type staged struct{ id int64 }

// staging are the bodies on their way in: loose, but not to be swept.
type staging struct {
	mu  sync.Mutex
	all map[*staged]struct{}
}

func (s *staging) add(b *staged, id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.id = id
	s.all[b] = struct{}{}
}

func (s *staging) drop(b *staged) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, b)
}

func (s *staging) has(id int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for b := range s.all {
		if b.id == id {
			return true
		}
	}
	return false
}

// stage stores a large body, chunk by chunk, for a row to take; nil for a body that the row can bring along. The caller drops
// it in the end. What no row has taken by then is swept by Purge, in this life of the store or the next.
func (s *Store) stage(ctx context.Context, b []byte) (*staged, error) {
	if len(b) <= maxChunk {
		return nil, nil
	}
	body := &staged{}
	for n, rest := 0, b; len(rest) > 0; n++ {
		chunk := rest[:min(maxChunk, len(rest))]
		rest = rest[len(chunk):]
		err := s.submit(ctx, s.chunks, newOp(len(chunk), func(t *tx) error {
			if n == 0 {
				if err := t.beginBody(body, len(b), &s.staging); err != nil {
					return err
				}
			}
			return t.run(sqlInsertChunk, body.id, n, chunk)
		}))
		if err != nil {
			s.staging.drop(body)
			return nil, err
		}
	}
	return body, nil
}

// inOneOp is how many bytes of a body go into one operation with its row.
func inOneOp(b []byte) int {
	if len(b) > maxChunk {
		return 0
	}
	return len(b)
}

// beginBody makes the row of a body in chunks. It is known to be on its way in before another operation can see it.
func (t *tx) beginBody(body *staged, size int, on *staging) error {
	id, err := t.insert(sqlInsertLarge, size)
	if err != nil {
		return err
	}
	on.add(body, id)
	return t.run(sqlLoosen, id)
}

// body stores what is small, and takes what is staged.
func (t *tx) body(b []byte, large *staged) (int64, error) {
	if large == nil {
		return t.insert(sqlInsertBody, blob(b))
	}
	var id int64
	if err := t.row(sqlTake, []any{large.id}, &id); err != nil {
		return 0, fmt.Errorf("take body %d: %w", large.id, err)
	}
	return id, nil
}

// bodyCols reads a body's row, of bodies as b: all of it, or how long the chunks are together.
type bodyCols struct {
	data []byte
	size sql.NullInt64
}

const bodyColumns = `b.data, b.size`

func (c *bodyCols) dest() []any { return []any{bytesCol{&c.data}, &c.size} }

// errNotWhole is returned for a body whose chunks are not what its row says.
var errNotWhole = errors.New("a body is not whole")

// asker calls scan for each row of a query.
type asker func(query string, args []any, scan func(scanner) error) error

// whole returns the body, whose chunks, if it is in chunks, the query has for the owner's id.
func (c *bodyCols) whole(ask asker, chunks string, owner int64) ([]byte, error) {
	if !c.size.Valid {
		return c.data, nil
	}
	if c.size.Int64 < 0 || c.size.Int64 > maxBody {
		return nil, fmt.Errorf("%w: it is to have %d bytes", errNotWhole, c.size.Int64)
	}
	b := make([]byte, 0, c.size.Int64)
	err := ask(chunks, []any{owner}, func(row scanner) error {
		var chunk sql.RawBytes
		if err := row.Scan(&chunk); err != nil {
			return err
		}
		b = append(b, chunk...)
		return nil
	})
	if err == nil && int64(len(b)) != c.size.Int64 {
		err = fmt.Errorf("%w: it is to have %d bytes and has %d", errNotWhole, c.size.Int64, len(b))
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

// ownedBody returns the body that a row refers to, nil if to none; store.ErrNotFound without the row.
func ownedBody(ask asker, query, chunks string, owner int64) ([]byte, error) {
	var body bodyCols
	found := false
	err := ask(query, []any{owner}, func(row scanner) error {
		found = true
		return row.Scan(body.dest()...)
	})
	switch {
	case err != nil:
		return nil, err
	case !found:
		return nil, store.ErrNotFound
	}
	return body.whole(ask, chunks, owner)
}

// asks returns the asker of the reader's own connections.
func (r *reader) asks(ctx context.Context) asker {
	return func(query string, args []any, scan func(scanner) error) error { return r.each(ctx, query, args, scan) }
}

const sqlRunSum = `SELECT m.sha256 FROM runs r JOIN messages m ON m.id = r.message WHERE r.id = ? AND r.state = 'PENDING'`

// stageSends stages the large bodies among a run's sends, each once, and not the message's own, which is stored. sums are
// their hashes. A run that cannot end has nothing staged. The caller drops them in the end, also after an error.
func (s *Store) stageSends(ctx context.Context, run int64, sends []message.Send, sums []string) (map[string]*staged, error) {
	all := map[string]*staged{}
	own := ""
	for i, send := range sends {
		if len(send.Body) <= maxChunk || all[sums[i]] != nil {
			continue
		}
		if own == "" {
			if pending, err := s.one(ctx, sqlRunSum, []any{run}, &own); err != nil || !pending {
				return nil, err
			}
		}
		if sums[i] == own {
			continue
		}
		large, err := s.stage(ctx, send.Body)
		if err != nil {
			return all, err
		}
		all[sums[i]] = large
	}
	return all, nil
}

func (s *Store) dropAll(large map[string]*staged) {
	for _, b := range large {
		s.staging.drop(b)
	}
}
