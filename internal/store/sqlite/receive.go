package sqlite

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// maxBody is SQLite's own default limit (sqlite.org/limits.html, SQLITE_MAX_LENGTH), less room for the row. It is checked
// here because the driver passes lengths as 32 bits: a body over 2 GiB would not reach SQLite's check as what it is.
const maxBody = 1_000_000_000 - 1024

func checkBody(b []byte) error {
	if len(b) > maxBody {
		return fmt.Errorf("body of %d bytes is over the store's limit of %d", len(b), maxBody)
	}
	return nil
}

const (
	sqlInsertMessage = `INSERT INTO messages (inbound, peer, type, control_id, received, size, sha256, disposition, body,
		resubmits) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, nullif(?, 0))`
	// The first message of a file keeps it: it is the one that was processed.
	sqlInsertSource = `INSERT INTO sources (path, size, mtime, sha256, message, seen) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT DO NOTHING`
)

// Receive commits one message and returns its id. Ids ascend in commit order. A zero in.Received means now. An in.Resubmits
// that the store does not have is store.ErrNotFound. A duplicate, as in.Once says, is message.ErrDuplicate with the id of the
// message that it repeats; the newest thousand with its control id and bytes are looked at.
func (s *Store) Receive(ctx context.Context, in message.Incoming) (message.ID, error) {
	id, _, err := s.ReceiveRouted(ctx, in, nil)
	return id, err
}

// ReceiveRouted is Receive and Route in one transaction; see store.Store.
func (s *Store) ReceiveRouted(ctx context.Context, in message.Incoming, plans []store.Plan) (message.ID, []message.Pending, error) {
	r, err := s.prepare(ctx, in, plans)
	if err == nil {
		defer s.staging.drop(r.large)
		err = s.commit(ctx, inOneOp(in.Body), r.do)
	}
	switch {
	case err != nil:
		return 0, nil, fmt.Errorf("receive: %w", err)
	case r.repeats:
		return message.ID(r.id), nil, message.ErrDuplicate
	}
	return message.ID(r.id), r.pending(), nil
}

// prepare does what need not be done on the writer, which everyone waits for. The caller drops what is staged.
func (s *Store) prepare(ctx context.Context, in message.Incoming, plans []store.Plan) (*receiving, error) {
	if err := errors.Join(checkBody(in.Body), checkPlans(plans)); err != nil {
		return nil, err
	}
	if in.Received.IsZero() {
		in.Received = time.Now()
	}
	sum := sha256.Sum256(in.Body)
	large, err := s.stage(ctx, in.Body)
	return &receiving{in: in, plans: plans, sum: hex.EncodeToString(sum[:]), large: large}, err
}

// receiving is one message on its way in.
type receiving struct {
	in    message.Incoming
	plans []store.Plan
	sum   string // of the body, which is large if it is stored already
	large *staged

	id      int64
	repeats bool      // the message with this id
	runs    []madeRun // if it was routed
}

// pending is what NextRuns has of the runs.
func (r *receiving) pending() (all []message.Pending) {
	if len(r.runs) == 0 {
		return nil
	}
	m := message.Message{ID: message.ID(r.id), Inbound: r.in.Inbound, Peer: r.in.Peer, Type: r.in.Type, ControlID: r.in.ControlID,
		Size: int64(len(r.in.Body)), SHA256: r.sum, Disposition: message.Routed, Resubmits: r.in.Resubmits,
		Received: time.UnixMicro(micros(r.in.Received)).UTC()}
	for i, run := range r.runs {
		all = append(all, message.Pending{On: m, Before: run.before, Run: message.Run{ID: run.id, Message: m.ID,
			Handler: r.plans[i].Handler, To: r.plans[i].To, State: message.RunPending}})
	}
	return all
}

// do is what the writer does.
func (r *receiving) do(t *tx) error {
	before, err := t.repeat(r.in, r.sum)
	if r.repeats = before != 0; r.repeats || err != nil {
		r.id = before
		return err
	}
	stands := message.Received
	routed, err := t.mayRoute(r.in.Inbound, r.plans)
	if err != nil {
		return err
	}
	if routed {
		stands = message.Routed
	}
	r.runs = nil
	if r.id, err = t.receive(r.in, r.sum, r.large, stands); err != nil || !routed {
		return err
	}
	r.runs, err = t.reserve(message.ID(r.id), r.in.Inbound, r.plans, 0)
	return err
}

const sqlWaitsForRoute = `SELECT EXISTS (SELECT 1 FROM messages INDEXED BY messages_open
		WHERE inbound = ?1 AND disposition = 'RECEIVED' AND ended IS NULL)
	OR EXISTS (SELECT 1 FROM holds WHERE kind = 'inbound' AND name = ?1)`

// mayRoute says whether a message that comes now can be routed at once: it has somewhere to go, its inbound is not held, and
// it overtakes none of those that came before.
func (t *tx) mayRoute(inbound string, plans []store.Plan) (bool, error) {
	if len(plans) == 0 {
		return false, nil
	}
	var waits bool
	err := t.row(sqlWaitsForRoute, []any{inbound}, &waits)
	return !waits, err
}

// mostRepeats bounds the look for a duplicate. Some senders give all messages one control id, so a part of the hash stands in the
// index; what is left are messages with the same bytes that came long ago, or by other inbounds.
const mostRepeats = 1000

const (
	sqlRepeats = `SELECT id, received, inbound FROM messages INDEXED BY messages_by_control_id
		WHERE control_id = ?1 AND substr(sha256, 1, 8) = substr(?2, 1, 8) AND sha256 = ?2 ORDER BY id DESC LIMIT ?3`
	sqlCountRepeat = `UPDATE messages SET duplicates = duplicates + 1 WHERE id = ?`
)

// repeat counts a duplicate at the message that it repeats, and returns that one's id; 0 if it is none.
func (t *tx) repeat(in message.Incoming, sum string) (before int64, err error) {
	if in.Once == 0 || in.ControlID == "" {
		return 0, nil
	}
	since := micros(in.Received.Add(-in.Once))
	// No end at the first that is too old: the clock may have jumped.
	err = t.rows(sqlRepeats, []any{in.ControlID, sum, mostRepeats}, func(rows *sql.Rows) error {
		if before != 0 {
			return nil
		}
		var id, received int64
		var inbound string
		err := rows.Scan(&id, &received, &inbound)
		if received >= since && (inbound == in.Inbound || slices.Contains(in.Was, inbound)) {
			before = id
		}
		return err
	})
	if before == 0 || err != nil {
		return 0, err
	}
	if err := t.run(sqlCountRepeat, before); err != nil {
		return 0, err
	}
	return before, t.source(in, before)
}

func (t *tx) receive(in message.Incoming, sum string, large *staged, stands message.Disposition) (int64, error) {
	if in.Resubmits != 0 {
		if err := t.exists(in.Resubmits); err != nil {
			return 0, err
		}
	}
	body, err := t.body(in.Body, large)
	if err != nil {
		return 0, err
	}
	id, err := t.insert(sqlInsertMessage, in.Inbound, in.Peer, in.Type, in.ControlID, micros(in.Received),
		len(in.Body), sum, string(stands), body, in.Resubmits)
	if err != nil {
		return 0, err
	}
	return id, t.source(in, id)
}

// source records the file that a message came in, if it came in one.
func (t *tx) source(in message.Incoming, id int64) error {
	f := in.File
	if f == nil {
		return nil
	}
	return t.run(sqlInsertSource, f.Path, f.Size, micros(f.ModTime), f.SHA256, id, micros(time.Now()))
}

const (
	sqlInsertRefusal = `INSERT INTO refusals (inbound, peer, reason, size, at) VALUES (?, ?, ?, ?, ?)`
	sqlTrimRefusals  = `DELETE FROM refusals WHERE id <= ?`
)

// Refuse records what an inbound turned away, and forgets the oldest refusals over Options.KeepRefusals. A zero r.At
// means now.
func (s *Store) Refuse(ctx context.Context, r message.Refusal) error {
	if r.At.IsZero() {
		r.At = time.Now()
	}
	err := s.commit(ctx, 0, func(t *tx) error {
		id, err := t.insert(sqlInsertRefusal, r.Inbound, r.Peer, oneLine(r.Reason, maxDetail), r.Size, micros(r.At))
		return errors.Join(err, t.run(sqlTrimRefusals, id-int64(s.keep)))
	})
	if err != nil {
		return fmt.Errorf("record a refusal: %w", err)
	}
	return nil
}
