package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// What one step of a purge may take, so that whoever receives meanwhile hardly waits: it is one operation among others.
const (
	purgeRows  = 64      // messages, files or refusals
	purgeBytes = 1 << 20 // of bodies, but for the last message's
	purgePages = 256     // to give back
)

// Free pages are used again before the file grows, so a store that is purged all the time needs them soon. More than one in
// keepFree pages, and more than freePages, are given back.
const (
	keepFree  = 10
	freePages = 1024
)

const (
	sqlPurgeable = `SELECT count(*), coalesce(sum(size), 0) FROM messages WHERE disposition = ? AND ended < ?`
	sqlEnded     = `SELECT id, size FROM messages WHERE disposition = ? AND ended < ? ORDER BY ended LIMIT ?`
	sqlBodiesOf  = `SELECT body FROM messages WHERE id = ?1
		UNION SELECT body FROM deliveries WHERE message = ?1 AND body IS NOT NULL`
	sqlBodySize       = `SELECT size, length(data) FROM bodies WHERE id = ?`
	sqlRemoveBody     = `DELETE FROM bodies WHERE id = ?`
	sqlRemoveTags     = `DELETE FROM tags WHERE message = ?`
	sqlRemoveSent     = `DELETE FROM deliveries WHERE message = ?`
	sqlRemoveRuns     = `DELETE FROM runs WHERE message = ?`
	sqlRemoveMessage  = `DELETE FROM messages WHERE id = ?`
	sqlLoose          = `SELECT body FROM loose ORDER BY body`
	sqlRemoveChunks   = `DELETE FROM chunks WHERE rowid IN (SELECT rowid FROM chunks WHERE body = ? LIMIT ?)`
	sqlTight          = `DELETE FROM loose WHERE body = ?`
	sqlRemoveRefusals = `DELETE FROM refusals WHERE id IN (SELECT id FROM refusals ORDER BY id LIMIT ?) AND at < ?`
	sqlOldSources     = `SELECT path, size, mtime, sha256 FROM sources WHERE seen < ? ORDER BY seen LIMIT ?`
	sqlSawSource      = `UPDATE sources SET seen = ? WHERE path = ? AND size = ? AND mtime = ? AND sha256 = ?`
	sqlRemoveSource   = `DELETE FROM sources WHERE path = ? AND size = ? AND mtime = ? AND sha256 = ?`
	sqlFreePages      = `SELECT (SELECT freelist_count FROM pragma_freelist_count), (SELECT page_count FROM pragma_page_count)`
)

// Purge takes one bounded step; see store.Store. First goes what nobody refers to, such as a large body whose receive was cut
// short; then messages, those that ended first before the others; then refusals, and what is known of files; in the end the
// file gets shorter.
//
// A file is known for as long as it lies where it was found, and from then on for as long as a message that ended is kept, of
// the two times the shorter: the same file may come again.
func (s *Store) Purge(ctx context.Context, r store.PurgeRequest) (store.Purged, error) {
	var out store.Purged
	err := s.commit(ctx, purgeBytes, func(t *tx) (err error) {
		out, err = t.purge(r, &s.staging)
		return err
	})
	if err == nil && !out.More {
		out.More, err = s.purgeSources(ctx, r)
	}
	if err == nil && !out.More {
		err = s.commit(ctx, purgeBytes, func(t *tx) (err error) {
			out.More, err = t.giveBack()
			return err
		})
	}
	if err != nil {
		return store.Purged{}, fmt.Errorf("purge: %w", err)
	}
	return out, nil
}

func (t *tx) purge(r store.PurgeRequest, in *staging) (store.Purged, error) {
	if swept, err := t.sweep(in); swept || err != nil {
		return store.Purged{More: swept}, err
	}
	p := purging{tx: t}
	for _, ended := range purgeable(r) {
		if err := p.messages(ended); err != nil {
			return store.Purged{}, err
		}
	}
	p.out.More = p.out.Messages > 0
	if before := r.Earlier(); !p.out.More && !before.IsZero() {
		n, err := t.change(sqlRemoveRefusals, purgeRows, micros(before))
		p.out.More = n > 0
		return p.out, err
	}
	return p.out, nil
}

// ended are messages that may go.
type ended struct {
	disposition message.Disposition
	before      time.Time // zero: none of them
}

func purgeable(r store.PurgeRequest) []ended {
	return []ended{{message.Processed, r.DoneBefore}, {message.Filtered, r.DoneBefore}, {message.Unrouted, r.DoneBefore},
		{message.Error, r.DeadBefore}}
}

// Purgeable counts what Purge would remove; see store.Reader.
func (r *reader) Purgeable(ctx context.Context, req store.PurgeRequest) (store.Purged, error) {
	out := store.Purged{}
	for _, e := range purgeable(req) {
		var n, bytes int64
		if _, err := r.one(ctx, sqlPurgeable, []any{string(e.disposition), microsOrNull(e.before)}, &n, &bytes); err != nil {
			return store.Purged{}, fmt.Errorf("count what may be purged: %w", err)
		}
		out.Messages += n
		out.Bytes += bytes
	}
	out.More = out.Messages > 0
	return out, nil
}

// purging is one step's removal of messages.
type purging struct {
	tx    *tx
	out   store.Purged
	bytes int64 // that were removed, where the bodies are not in chunks
}

func (p *purging) messages(e ended) error {
	type row struct{ id, size int64 }
	var list []row
	args := []any{string(e.disposition), microsOrNull(e.before), purgeRows - p.out.Messages}
	err := p.tx.rows(sqlEnded, args, func(rows *sql.Rows) error {
		var r row
		err := rows.Scan(&r.id, &r.size)
		list = append(list, r)
		return err
	})
	for _, r := range list {
		if err != nil || p.bytes >= purgeBytes {
			return err
		}
		p.out.Messages++
		p.out.Bytes += r.size
		err = p.message(r.id)
	}
	return err
}

// message removes one message with all that belongs to it. No body is another message's, too.
func (p *purging) message(id int64) error {
	var bodies []int64
	err := p.tx.rows(sqlBodiesOf, []any{id}, func(rows *sql.Rows) error {
		var body int64
		err := rows.Scan(&body)
		bodies = append(bodies, body)
		return err
	})
	for _, body := range bodies {
		if err == nil {
			err = p.body(body)
		}
	}
	for _, remove := range []string{sqlRemoveTags, sqlRemovePrinted, sqlRemoveDismissals, sqlRemoveSent, sqlRemoveRuns, sqlRemoveMessage} {
		if err == nil {
			err = p.tx.run(remove, id)
		}
	}
	return err
}

// body removes a body, or leaves one in chunks to the steps that come.
func (p *purging) body(id int64) error {
	var chunked sql.NullInt64
	var size int64
	if err := p.tx.row(sqlBodySize, []any{id}, &chunked, &size); err != nil {
		return err
	}
	if chunked.Valid {
		return p.tx.run(sqlLoosen, id)
	}
	p.bytes += size
	return p.tx.run(sqlRemoveBody, id)
}

// sweep removes some chunks of a loose body that is not on its way in, in the end the body itself, and says whether there
// was one.
func (t *tx) sweep(in *staging) (bool, error) {
	var body int64
	err := t.rows(sqlLoose, nil, func(rows *sql.Rows) error {
		var id int64
		err := rows.Scan(&id)
		if body == 0 && !in.has(id) {
			body = id
		}
		return err
	})
	if err != nil || body == 0 {
		return false, err
	}
	n, err := t.change(sqlRemoveChunks, body, purgeBytes/maxChunk)
	if err != nil || n == purgeBytes/maxChunk {
		return true, err
	}
	if err := t.run(sqlRemoveBody, body); err != nil {
		return true, err
	}
	return true, t.run(sqlTight, body)
}

// purgeSources forgets some of the files that have not been there for long, and says whether there were any that old. The
// question whether a file is there is not asked on the writer, as a file system may take its time over it.
func (s *Store) purgeSources(ctx context.Context, r store.PurgeRequest) (bool, error) {
	before := r.Earlier()
	if before.IsZero() {
		return false, nil
	}
	var old []message.Source
	err := s.each(ctx, sqlOldSources, []any{micros(before), purgeRows}, func(row scanner) error {
		var src message.Source
		err := row.Scan(&src.Path, &src.Size, timeCol{&src.ModTime}, &src.SHA256)
		old = append(old, src)
		return err
	})
	if err != nil || len(old) == 0 {
		return false, err
	}
	there := make([]bool, len(old))
	for i, src := range old {
		there[i] = r.Lies != nil && r.Lies(src.Path)
	}
	saw := max(micros(time.Now()), micros(before)) // also where before is still to come: each file is looked at once
	return true, s.commit(ctx, 0, func(t *tx) (err error) {
		for i, src := range old {
			key := []any{src.Path, src.Size, micros(src.ModTime), src.SHA256}
			if there[i] {
				err = t.run(sqlSawSource, append([]any{saw}, key...)...)
			} else {
				err = t.run(sqlRemoveSource, key...)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// giveBack shortens the file by some of its free pages, and says whether there are more.
func (t *tx) giveBack() (bool, error) {
	surplus := func() (bool, error) {
		var free, pages int64
		err := t.row(sqlFreePages, nil, &free, &pages)
		return free > max(pages/keepFree, freePages), err
	}
	if many, err := surplus(); err != nil || !many {
		return false, err
	}
	// A row a page: it has done all of them when all rows are read.
	err := t.rows(fmt.Sprintf("PRAGMA incremental_vacuum(%d)", purgePages), nil, func(*sql.Rows) error { return nil })
	if err != nil {
		return false, err
	}
	return surplus()
}
