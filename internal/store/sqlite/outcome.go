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
	sqlPendingRun = `SELECT r.message, r.handler, r.state, m.inbound, m.sha256, m.body
		FROM runs r JOIN messages m ON m.id = r.message WHERE r.id = ?`
	sqlPlaces = `SELECT id, outbound, place FROM deliveries WHERE message = ? AND run = ? AND sub = 0 ORDER BY number`
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
	var handler, ownSum string
	var state message.RunState
	var ownBody int64
	switch err := t.row(sqlPendingRun, []any{run}, &f.message, &handler, &state, &f.inbound, &ownSum, &ownBody); {
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("%w run", store.ErrNotFound)
	case err != nil:
		return err
	case state != message.RunPending:
		return fmt.Errorf("%w: the run is %s", store.ErrStale, state)
	}
	f.bodies = map[string]int64{ownSum: ownBody}
	if err := f.load(); err != nil {
		return err
	}
	for i, send := range out.Sends {
		if f.places[send.To] == nil {
			return fmt.Errorf("handler %q may not send to %q: it is not among the outbounds of its plan", handler, send.To)
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
	if err := t.streak(message.Target{Kind: message.KindHandler, Name: handler}, out); err != nil {
		return err
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
	return nil
}

// filling puts one run's sends into its places.
type filling struct {
	tx      *tx
	run     int64
	message message.ID
	inbound string
	places  map[string]*place
	order   []*place         // as they were reserved
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

func (f *filling) load() error {
	f.places = map[string]*place{}
	return f.tx.rows(sqlPlaces, []any{f.message, f.run}, func(rows *sql.Rows) error {
		var p place
		if err := rows.Scan(&p.delivery, &p.outbound, &p.place); err != nil {
			return err
		}
		f.places[p.outbound] = &p
		f.order = append(f.order, &p)
		return nil
	})
}

// send fills the outbound's place, or stands right behind what the run has sent there before.
func (f *filling) send(s message.Send, sum string) error {
	body, err := f.body(s.Body, sum)
	if err != nil {
		return err
	}
	p := f.places[s.To]
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
	for _, p := range f.order {
		if p.sends > 0 {
			continue
		}
		if err := f.tx.run(sqlClose, now, p.delivery); err != nil {
			return err
		}
	}
	return nil
}
