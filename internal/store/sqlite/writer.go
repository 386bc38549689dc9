package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"

	sqlite3 "modernc.org/sqlite/lib"

	"coppice.dev/coppice/internal/store"
)

// A group is closed at so many operations, or when its bodies have so many bytes: the log grows by a whole group before
// any caller is answered.
const (
	maxGroup      = 256
	maxGroupBytes = 8 << 20
)

// op is one operation that waits for the writer. do may run more than once, each time in a transaction where the earlier
// run left no trace, so it sets its results and does not add to them.
type op struct {
	do    func(*tx) error
	bytes int
	state atomic.Int32
	done  chan error // takes the one result
}

// The states of an op. The writer moves it from waiting to picked, its caller from waiting to abandoned.
const (
	opWaiting int32 = iota
	opPicked
	opAbandoned
)

func newOp(bytes int, do func(*tx) error) *op {
	return &op{do: do, bytes: bytes, done: make(chan error, 1)}
}

// finish hands the caller its result; a second one is dropped.
func (o *op) finish(err error) {
	select {
	case o.done <- err:
	default:
	}
}

// commit hands do to the writer and returns when its transaction is on disk, or with the reason why it is not. bytes is
// about how much it writes.
func (s *Store) commit(ctx context.Context, bytes int, do func(*tx) error) error {
	return s.submit(ctx, s.queue, newOp(bytes, do))
}

// submit is commit by one of the writer's two ways in.
func (s *Store) submit(ctx context.Context, queue chan<- *op, o *op) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.gate.enter(); err != nil {
		return err
	}
	defer s.gate.leave()
	select {
	case queue <- o:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-o.done:
		return err
	case <-ctx.Done():
		if o.state.CompareAndSwap(opWaiting, opAbandoned) {
			return ctx.Err()
		}
		return <-o.done
	}
}

// writer owns the connection that writes. All but the counters belongs to its goroutine.
type writer struct {
	conn   *sql.Conn
	tx     *tx
	done   chan struct{} // closed when the loop has ended
	broken error         // set by a panic outside of any operation: nothing is written after it
	commit func() error  // COMMIT; a test puts a failing one here

	ops     atomic.Int64 // operations that were committed
	commits atomic.Int64
}

func newWriter(c *sql.Conn) *writer {
	w := &writer{conn: c, done: make(chan struct{}), tx: &tx{conn: c, stmts: map[string]*sql.Stmt{}, lastRuns: map[string]int64{}}}
	w.commit = func() error { return w.tx.run("COMMIT") }
	return w
}

// loop serves the queue, and the chunks of large bodies, until both are closed and empty.
func (w *writer) loop(queue, chunks <-chan *op) {
	defer close(w.done)
	group := make([]*op, 0, maxGroup)
	for queue != nil || chunks != nil {
		select {
		case first, open := <-queue:
			if !open {
				queue = nil
				continue
			}
			group = fill(group[:0], first, queue, chunks)
		case first, open := <-chunks:
			if !open {
				chunks = nil
				continue
			}
			group = fill(group[:0], first, queue, nil)
		}
		w.serve(group)
		clear(group)
	}
}

// fill picks up the first operation, one chunk, and whatever else is waiting.
func fill(group []*op, first *op, queue, chunks <-chan *op) []*op {
	bytes := 0
	for o := first; ; {
		if o.state.CompareAndSwap(opWaiting, opPicked) {
			group = append(group, o)
			bytes += o.bytes
		}
		if len(group) == maxGroup || bytes >= maxGroupBytes {
			return group
		}
		var open bool
		select {
		case o, open = <-chunks:
			chunks = nil
		default:
			select {
			case o, open = <-queue:
			default:
			}
		}
		if !open {
			return group
		}
	}
}

// serve answers every operation of the group, whatever happens.
func (w *writer) serve(group []*op) {
	defer func() {
		if p := recover(); p != nil {
			w.broken = fmt.Errorf("the store's writer stopped: panic: %v\n%s", p, debug.Stack())
			for _, o := range group {
				o.finish(errors.Join(w.broken, store.ErrUnknown))
			}
		}
	}()
	for len(group) > 0 {
		if w.broken != nil {
			finish(group, w.broken)
			return
		}
		group = w.transact(group)
	}
}

func finish(group []*op, err error) {
	for _, o := range group {
		o.finish(err)
	}
}

// transact runs the group in one transaction and returns the operations that still have no answer: those of a group
// whose transaction was lost to one of them.
func (w *writer) transact(group []*op) []*op {
	if err := w.tx.run("BEGIN IMMEDIATE"); err != nil {
		finish(group, err)
		return nil
	}
	step := w.step
	if len(group) == 1 {
		step = w.only
	}
	results := make([]error, len(group))
	for i, o := range group {
		var lost bool
		if results[i], lost = step(o); lost {
			// "If the transaction is rolled back automatically by an error [full disk, I/O, memory], the ROLLBACK fails
			// with an error, which is harmless" (sqlite.org/lang_transaction.html, section 3).
			_ = w.tx.undo("ROLLBACK")
			o.finish(results[i])
			return append(append([]*op(nil), group[:i]...), group[i+1:]...)
		}
	}
	w.commits.Add(1)
	if err := w.commit(); err != nil {
		_ = w.tx.undo("ROLLBACK")
		finish(group, commitError(err))
		return nil
	}
	for i, o := range group {
		if results[i] == nil {
			w.ops.Add(1)
		}
		o.finish(results[i])
	}
	return nil
}

// step runs one operation in a savepoint. lost says that the whole transaction is gone with it.
func (w *writer) step(o *op) (err error, lost bool) {
	if err := w.tx.run("SAVEPOINT op"); err != nil {
		return err, true
	}
	if err := w.call(o); err != nil {
		undo := w.tx.undo("ROLLBACK TO op")
		if undo == nil {
			undo = w.tx.run("RELEASE op")
		}
		return err, undo != nil
	}
	if err := w.tx.run("RELEASE op"); err != nil {
		return err, true
	}
	return nil, false
}

// only runs an operation that has the transaction to itself, and loses that with it.
func (w *writer) only(o *op) (err error, lost bool) {
	err = w.call(o)
	return err, err != nil
}

// call makes a panic of the operation its caller's error: it must not take the other callers with it.
func (w *writer) call(o *op) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic in the operation: %v\n%s", p, debug.Stack())
		}
	}()
	return o.do(w.tx)
}

// commitError joins store.ErrUnknown unless SQLite certainly wrote no commit record. A failed sync may have left one in
// the log, which the next recovery would take for a commit; waiting for a lock and a violated constraint come before.
func commitError(err error) error {
	err = fmt.Errorf("commit: %w", err)
	switch code(err) {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CONSTRAINT:
		return err
	}
	return fmt.Errorf("%w; %w", err, store.ErrUnknown)
}

// close frees the connection; the loop has ended.
func (w *writer) close() error {
	return errors.Join(w.tx.close(), w.conn.Close())
}

// tx is the transaction that an operation runs in, with the statements that the connection has prepared. It is valid
// within the call alone.
type tx struct {
	conn  *sql.Conn
	stmts map[string]*sql.Stmt // by text; the texts are constants, so it stays small

	// What the rows say, as long as nothing is rolled back: nobody else writes.
	places   places
	streaks  *int             // how many rows; nil: not counted yet
	lastRuns map[string]int64 // by handler, those that were made for it; none: not known
}

// undo rolls back, and forgets what is known of the rows.
func (t *tx) undo(rollback string) error {
	t.places, t.streaks = places{}, nil
	clear(t.lastRuns)
	return t.run(rollback)
}

func (t *tx) stmt(query string) (*sql.Stmt, error) {
	if s, ok := t.stmts[query]; ok {
		return s, nil
	}
	s, err := t.conn.PrepareContext(context.Background(), query)
	if err != nil {
		return nil, err
	}
	t.stmts[query] = s
	return s, nil
}

func (t *tx) exec(query string, args []any) (sql.Result, error) {
	s, err := t.stmt(query)
	if err != nil {
		return nil, err
	}
	return s.Exec(args...)
}

// run executes a statement whose result does not matter.
func (t *tx) run(query string, args ...any) error {
	_, err := t.exec(query, args)
	return err
}

// change executes a statement and returns how many rows it changed.
func (t *tx) change(query string, args ...any) (int64, error) {
	res, err := t.exec(query, args)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// insert executes an INSERT and returns the new row's id.
func (t *tx) insert(query string, args ...any) (int64, error) {
	res, err := t.exec(query, args)
	if err != nil {
		return 0, err
	}
	return res.LastInsertId()
}

// row reads the first row of a query; sql.ErrNoRows if there is none.
func (t *tx) row(query string, args []any, dest ...any) error {
	s, err := t.stmt(query)
	if err != nil {
		return err
	}
	return s.QueryRow(args...).Scan(dest...)
}

// rows calls scan for each row of a query.
func (t *tx) rows(query string, args []any, scan func(*sql.Rows) error) error {
	s, err := t.stmt(query)
	if err != nil {
		return err
	}
	rows, err := s.Query(args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (t *tx) close() error {
	var errs []error
	for _, s := range t.stmts {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}
