package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"sync"

	_ "modernc.org/sqlite" // registers the driver "sqlite"

	"coppice.dev/coppice/internal/connect/mllp"
	"coppice.dev/coppice/internal/message"
)

// The floor: a queue in one SQLite table that makes the commits of Coppice, received and routed -> outbound -> done, one
// transaction each, and nothing else: with no router to ask, Coppice routes a message in the transaction that receives it. No
// sandbox, no handler but one that passes the message on, no history, no places, no holds. One writer takes what waits into one transaction, with synchronous=FULL.
const bareSchema = `
CREATE TABLE messages (id INTEGER PRIMARY KEY, lane INTEGER NOT NULL, state INTEGER NOT NULL, control TEXT NOT NULL, body BLOB NOT NULL);
CREATE INDEX open ON messages (lane, state, id) WHERE state < 2;`

const (
	bareReceive = `INSERT INTO messages (lane, state, control, body) VALUES (?, 0, ?, ?)`
	bareMove    = `UPDATE messages SET state = ? WHERE id = ?`
	bareNext    = `SELECT id, control, body FROM messages WHERE lane = ? AND state = ? AND state < 2 ORDER BY id LIMIT 1`
)

type bareQueue struct {
	write, read   *sql.DB
	conn          *sql.Conn
	receive, move *sql.Stmt // of conn
	next          *sql.Stmt
	ops           chan *bareOp
	wake          [][2]chan struct{} // by lane and state
	work          sync.WaitGroup
	done          func(control string)
	failed        chan error // takes the first error of a lane
}

type bareOp struct {
	stmt *sql.Stmt
	args []any
	done chan error
}

// openBare makes the queue with its connections, and starts it.
func openBare(b *bed, dir string) (_ *served, err error) {
	q := &bareQueue{ops: make(chan *bareOp, 256), done: b.done, wake: make([][2]chan struct{}, b.lanes), failed: make(chan error, 1)}
	if err := q.open(filepath.Join(dir, "bare.db")); err != nil {
		return nil, errors.Join(err, q.close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &served{}
	s.onEnd(q.close)
	go q.loop()
	s.onEnd(func() error {
		cancel()
		q.work.Wait()
		select {
		case err := <-q.failed:
			return err
		default:
			return nil
		}
	})
	for lane := range b.lanes {
		for state := range q.wake[lane] {
			q.wake[lane][state] = make(chan struct{}, 1)
		}
		out, err := mllp.NewOutbound(mllp.OutboundConfig{Name: "bare", Connect: b.receivers[lane].Addr()})
		if err != nil {
			return nil, errors.Join(err, s.end())
		}
		s.onEnd(out.Close)
		q.start(ctx, lane, out)
		if err := s.listen("bare", bareSink{q, lane}); err != nil {
			return nil, errors.Join(err, s.end())
		}
	}
	return s, nil
}

func (q *bareQueue) open(path string) (err error) {
	pragmas := url.Values{"_pragma": {"busy_timeout(5000)", "journal_mode(wal)", "synchronous(2)", "journal_size_limit(67108864)",
		"cache_size(-16384)", "temp_store(2)"}}
	dsn := "file:" + path + "?" + pragmas.Encode()
	if q.write, err = sql.Open("sqlite", dsn); err != nil {
		return err
	}
	ctx := context.Background()
	if q.conn, err = q.write.Conn(ctx); err != nil {
		return err
	}
	if _, err = q.conn.ExecContext(ctx, bareSchema); err != nil {
		return err
	}
	var full int
	if err := q.conn.QueryRowContext(ctx, "PRAGMA synchronous").Scan(&full); err != nil || full != 2 {
		return fmt.Errorf("synchronous is %d, not 2: %v", full, err)
	}
	if q.receive, err = q.conn.PrepareContext(ctx, bareReceive); err != nil {
		return err
	}
	if q.move, err = q.conn.PrepareContext(ctx, bareMove); err != nil {
		return err
	}
	if q.read, err = sql.Open("sqlite", dsn); err != nil {
		return err
	}
	q.read.SetMaxOpenConns(4) // as many readers as Coppice has
	q.read.SetMaxIdleConns(4)
	q.next, err = q.read.PrepareContext(ctx, bareNext)
	return err
}

func (q *bareQueue) close() error {
	close(q.ops)
	var errs []error
	if q.read != nil {
		errs = append(errs, q.read.Close())
	}
	if q.conn != nil {
		errs = append(errs, q.conn.Close())
	}
	if q.write != nil {
		errs = append(errs, q.write.Close())
	}
	return errors.Join(errs...)
}

// loop commits what waits, up to 256 at once.
func (q *bareQueue) loop() {
	for first := range q.ops {
		group := []*bareOp{first}
	fill:
		for len(group) < cap(q.ops) {
			select {
			case o, open := <-q.ops:
				if !open {
					break fill
				}
				group = append(group, o)
			default:
				break fill
			}
		}
		err := q.transact(group)
		for _, o := range group {
			o.done <- err
		}
	}
}

func (q *bareQueue) transact(group []*bareOp) error {
	ctx := context.Background()
	if _, err := q.conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	for _, o := range group {
		if _, err := o.stmt.ExecContext(ctx, o.args...); err != nil {
			q.conn.ExecContext(ctx, "ROLLBACK")
			return err
		}
	}
	_, err := q.conn.ExecContext(ctx, "COMMIT")
	return err
}

func (q *bareQueue) commit(stmt *sql.Stmt, args ...any) error {
	o := &bareOp{stmt: stmt, args: args, done: make(chan error, 1)}
	q.ops <- o
	return <-o.done
}

// start runs a lane's two steps, each of which takes the oldest message of its state and moves it on.
func (q *bareQueue) start(ctx context.Context, lane int, out *mllp.Outbound) {
	steps := []func(control string, body []byte) error{
		func(string, []byte) error { return nil }, // handled: it passes the message on
		func(control string, body []byte) error {
			_, err := out.Send(ctx, message.Delivery{Control: control, Body: body})
			return err
		},
	}
	for state, step := range steps {
		q.work.Go(func() {
			if err := q.stage(ctx, lane, state, step); err != nil && ctx.Err() == nil {
				select {
				case q.failed <- fmt.Errorf("the bare queue's lane %d, step %d: %w", lane, state, err):
				default:
				}
			}
		})
	}
}

func (q *bareQueue) stage(ctx context.Context, lane, state int, step func(string, []byte) error) error {
	for {
		var id int64
		var control string
		var body []byte
		err := q.next.QueryRowContext(ctx, lane, state).Scan(&id, &control, &body)
		if errors.Is(err, sql.ErrNoRows) {
			select {
			case <-q.wake[lane][state]:
				continue
			case <-ctx.Done():
				return nil
			}
		}
		if err == nil {
			err = step(control, body)
		}
		if err == nil {
			err = q.commit(q.move, state+1, id)
		}
		if err != nil {
			return err
		}
		if state+1 < len(q.wake[lane]) {
			q.kick(lane, state+1)
		} else {
			q.done(control)
		}
	}
}

func (q *bareQueue) kick(lane, state int) {
	select {
	case q.wake[lane][state] <- struct{}{}:
	default:
	}
}

// bareSink is the queue as its inbounds see it.
type bareSink struct {
	*bareQueue
	lane int
}

func (s bareSink) Receive(_ context.Context, in message.Incoming) (message.ID, error) {
	err := s.commit(s.receive, s.lane, in.ControlID, in.Body)
	s.kick(s.lane, 0)
	return 1, err
}

func (s bareSink) Refuse(_ context.Context, r message.Refusal) error {
	return errors.New("refused by lane " + strconv.Itoa(s.lane) + ": " + r.Reason)
}

func (s bareSink) Seen(context.Context, message.Source) (message.ID, bool, error) {
	return 0, false, nil
}
