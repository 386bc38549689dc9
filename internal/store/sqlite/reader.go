package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	sqlite3 "modernc.org/sqlite/lib"

	"coppice.dev/coppice/internal/store"
)

// reader answers questions over connections of its own, each seeing the last commit before its statement began.
type reader struct {
	gate gate
	db   *sql.DB

	mu    sync.Mutex
	stmts map[string]*sql.Stmt // by text, of the constant queries
}

var _ store.Reader = (*reader)(nil)

// newReader opens connections to a database that exists. mode is SQLite's: "ro", or "rw" for the owner of the store,
// who needs no connection that could not close the log after itself.
func newReader(ctx context.Context, path, mode string, conns int) (*reader, error) {
	db, err := sql.Open("sqlite", dsn(path, mode, readerPragmas()))
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns) // the default of 2 would reconnect all the time
	if err := db.PingContext(ctx); err != nil {
		return nil, errors.Join(foreignOr(err), db.Close())
	}
	return &reader{db: db, stmts: map[string]*sql.Stmt{}}, nil
}

// OpenReader opens the store at path for reading alone, beside the engine that owns it or while none does. It takes no
// lock on the store, never changes the database, and creates nothing but SQLite's -wal and -shm beside it where they are
// missing. It does not keep the engine from checkpointing for longer than one of its questions takes.
//
// Errors are of type *OpenError, around fs.ErrNotExist, ErrForeign, ErrSchema or the cause. ctx bounds the opening alone.
func OpenReader(ctx context.Context, path string) (store.Reader, error) {
	r, err := openReader(ctx, path)
	if err != nil {
		return nil, openError(path, err)
	}
	return r, nil
}

func openReader(ctx context.Context, path string) (*reader, error) {
	switch info, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fs.ErrNotExist
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, fmt.Errorf("%w: it is a folder", ErrForeign)
	}
	full, err := resolve(path)
	if err != nil {
		return nil, err
	}
	r, err := newReader(ctx, full, "ro", 2)
	if err != nil {
		return nil, readError(err)
	}
	if err := r.checkFile(ctx); err != nil {
		return nil, errors.Join(readError(err), r.db.Close())
	}
	return r, nil
}

// checkFile says whether the file is a store that this program can read.
func (r *reader) checkFile(ctx context.Context) error {
	c, err := r.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	st, err := inspect(ctx, c)
	if err != nil {
		return err
	}
	if err := st.check(); err != nil {
		return err
	}
	if want := schemaVersion(); st.version < want {
		return fmt.Errorf("%w: the database has version %d and is brought to %d by the next engine that opens it",
			ErrSchema, st.version, want)
	}
	return nil
}

// readError names the cause that people meet: SQLite has to make its shared memory beside the database, even to read.
func readError(err error) error {
	switch code(err) {
	case sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM:
		return fmt.Errorf("%w: %w", fs.ErrPermission, err)
	}
	return err
}

// Close waits for the questions that were asked before it. It must be called once; another call, like every other
// method afterwards, returns store.ErrClosed.
func (r *reader) Close() error {
	if !r.gate.shut() {
		return store.ErrClosed
	}
	return r.closePool()
}

func (r *reader) closePool() error {
	errs := make([]error, 0, len(r.stmts)+1)
	for _, s := range r.stmts {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, r.db.Close())...)
}

// stmt returns the prepared statement of a constant query.
func (r *reader) stmt(ctx context.Context, query string) (*sql.Stmt, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s, ok := r.stmts[query]; ok {
		return s, nil
	}
	s, err := r.db.PrepareContext(ctx, query)
	if err == nil {
		r.stmts[query] = s
	}
	return s, err
}

// one reads the first row of a constant query into dest, and says whether there was one.
func (r *reader) one(ctx context.Context, query string, args []any, dest ...any) (bool, error) {
	if err := r.gate.enter(); err != nil {
		return false, err
	}
	defer r.gate.leave()
	s, err := r.stmt(ctx, query)
	if err != nil {
		return false, err
	}
	err = s.QueryRowContext(ctx, args...).Scan(dest...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// each calls scan for every row of a constant query.
func (r *reader) each(ctx context.Context, query string, args []any, scan func(scanner) error) error {
	if err := r.gate.enter(); err != nil {
		return err
	}
	defer r.gate.leave()
	s, err := r.stmt(ctx, query)
	if err != nil {
		return err
	}
	rows, err := s.QueryContext(ctx, args...)
	return scanAll(rows, err, scan)
}

// errEnough is what a scan returns that wants no further row; it is no error.
var errEnough = errors.New("enough rows")

// scanAll takes the result of a Query.
func scanAll(rows *sql.Rows, err error, scan func(scanner) error) error {
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); errors.Is(err, errEnough) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return rows.Err()
}
