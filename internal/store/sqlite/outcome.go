package sqlite

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

const (
	// A row for each of its places; a run that may send nowhere has one without.
	sqlPendingRun = `SELECT r.message, r.handler, r.state, m.inbound, m.sha256, m.body,
			coalesce(d.id, 0), coalesce(d.outbound, ''), coalesce(d.place, 0)
		FROM runs r JOIN messages m ON m.id = r.message
		LEFT JOIN deliveries d ON d.message = r.message AND d.run = r.id AND d.sub = 0
		WHERE r.id = ? ORDER BY d.number`
	sqlEndRun = `UPDATE runs SET state = ?, reason = ?, fault_kind = ?, fault_type = ?, fault_text = ?, traceback = ?,
		attempts = ?, code = ?, took_ns = ?, ended = ? WHERE id = ?`
	sqlTag = `INSERT INTO tags (message, name, value) VALUES (?, ?, ?)
		ON CONFLICT (message, name) DO UPDATE SET value = excluded.value`
	sqlFill       = `UPDATE deliveries SET state = 'READY', body = ? WHERE id = ?`
	sqlClose      = `UPDATE deliveries SET state = 'CLOSED', ended = ? WHERE id = ?`
	sqlLastNumber = `SELECT max(number) FROM deliveries WHERE message = ?`
	sqlAppend     = `INSERT INTO deliveries (message, number, run, inbound, outbound, place, sub, state, body)
		VALUES (?, ?, ?, ?, ?, ?, ?, 'READY', ?)`
)

// EndRun commits a run's outcome; see store.Store. Besides store.ErrStale and store.ErrNotFound, an outcome with a send
// to an outbound that the plan does not have is refused, and nothing is committed. A tag set before is overwritten.
func (s *Store) EndRun(ctx context.Context, run int64, out message.Outcome) error {
	err := checkOutcome(out, message.RunSent, message.RunFiltered, message.RunError)
	bytes := 0
	sums := make([]string, len(out.Sends))
	for i, send := range out.Sends {
		err = errors.Join(err, checkBody(send.Body))
		sum := sha256.Sum256(send.Body)
		sums[i] = hex.EncodeToString(sum[:])
		bytes += inOneOp(send.Body)
	}
	var large map[string]*staged
	if err == nil {
		large, err = s.stageSends(ctx, run, out.Sends, sums)
		defer s.dropAll(large)
	}
	if err == nil {
		err = s.commit(ctx, bytes, func(t *tx) error { return t.endHandler(run, out, sums, large) })
	}
	if err != nil {
		return fmt.Errorf("end run %d: %w", run, err)
	}
	return nil
}

// endHandler ends a handler's run; sums are the hashes of the sends' bodies, and large those that are stored already.
func (t *tx) endHandler(run int64, out message.Outcome, sums []string, large map[string]*staged) error {
	f := filling{tx: t, run: run, large: large}
	if err := f.load(); err != nil {
		return err
	}
	for i, send := range out.Sends {
		if f.place(send.To) == nil {
			return fmt.Errorf("handler %q may not send to %q: it is not among the outbounds of its plan", f.handler, send.To)
		}
		if err := f.send(send, sums[i]); err != nil {
			return err
		}
	}
	if err := f.closeRest(); err != nil {
		return err
	}
	if err := t.endRun(f.message, run, out); err != nil {
		return err
	}
	if err := t.streak(message.Target{Kind: message.KindHandler, Name: f.handler}, out); err != nil {
		return err
	}
	if len(out.Sends) > 0 {
		return nil // the message is open in what is to be delivered
	}
	return t.settle(f.message)
}

// endRun writes the outcome itself.
func (t *tx) endRun(id message.ID, run int64, out message.Outcome) error {
	var kind, typ, text, trace any
	if f := out.Fault; f != nil {
		kind, typ, text, trace = f.Kind, f.Type, f.Text, f.Traceback
	}
	err := t.run(sqlEndRun, string(out.State), oneLine(out.Reason, maxDetail), kind, typ, text, trace,
		out.Attempts, out.Code, int64(out.Took), micros(time.Now()), run)
	if err != nil {
		return err
	}
	for name, value := range out.Tags {
		if err := t.run(sqlTag, id, name, value); err != nil {
			return err
		}
	}
	return t.printed(id, run, out.Printed)
}

// filling puts one run's sends into its places.
type filling struct {
	tx      *tx
	run     int64
	handler string
	message message.ID
	inbound string
	places  []*place         // as they were reserved
	bodies  map[string]int64 // the bodies that are stored already, by hash
	large   map[string]*staged
	number  int // the last one given out; 0: not looked up yet
}

// place is one reserved place and how many sends it has taken.
type place struct {
	delivery int64
	outbound string
	place    int64
	sends    int
}

// load reads what is to be filled; store.ErrNotFound if there is no such run, store.ErrStale if it has ended.
func (f *filling) load() error {
	var state message.RunState
	err := f.tx.rows(sqlPendingRun, []any{f.run}, func(rows *sql.Rows) error {
		var p place
		var ownSum string
		var ownBody int64
		err := rows.Scan(&f.message, &f.handler, &state, &f.inbound, &ownSum, &ownBody, &p.delivery, &p.outbound, &p.place)
		f.bodies = map[string]int64{ownSum: ownBody}
		if p.delivery != 0 {
			f.places = append(f.places, &p)
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case state == "":
		return fmt.Errorf("%w run", store.ErrNotFound)
	case state != message.RunPending:
		return fmt.Errorf("%w: the run is %s", store.ErrStale, state)
	}
	return nil
}

// place is the one that the run has at an outbound; nil if there is none.
func (f *filling) place(outbound string) *place {
	for _, p := range f.places {
		if p.outbound == outbound {
			return p
		}
	}
	return nil
}

// send fills the outbound's place, or stands right behind what the run has sent there before.
func (f *filling) send(s message.Send, sum string) error {
	body, err := f.body(s.Body, sum)
	if err != nil {
		return err
	}
	p := f.place(s.To)
	p.sends++
	if p.sends == 1 {
		return f.tx.run(sqlFill, body, p.delivery)
	}
	if f.number == 0 {
		if err := f.tx.row(sqlLastNumber, []any{f.message}, &f.number); err != nil {
			return err
		}
	}
	f.number++
	return f.tx.run(sqlAppend, f.message, f.number, f.run, f.inbound, p.outbound, p.place, p.sends-1, body)
}

// body stores bytes once: those of the message itself, or of an earlier send of the run, are there already.
func (f *filling) body(b []byte, sum string) (int64, error) {
	if id, ok := f.bodies[sum]; ok {
		return id, nil
	}
	id, err := f.tx.body(b, f.large[sum])
	f.bodies[sum] = id
	return id, err
}

// closeRest closes the places where nothing was sent.
func (f *filling) closeRest() error {
	now := micros(time.Now())
	for _, p := range f.places {
		if p.sends > 0 {
			continue
		}
		if err := f.tx.run(sqlClose, now, p.delivery); err != nil {
			return err
		}
	}
	return nil
}
