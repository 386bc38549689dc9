package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	_ "modernc.org/sqlite" // registers the driver "sqlite"

	sqlite3 "modernc.org/sqlite/lib"

	"coppice.dev/coppice/internal/store"
)

// Options tune a store. The zero value is what an engine wants.
type Options struct {
	// Readers is how many connections answer questions at the same time; 0 means 4.
	Readers int
	// KeepRefusals is how many refusals are kept, the newest ones; 0 means 10,000.
	KeepRefusals int
	// MustExist makes a store that is not there an error, fs.ErrNotExist, in place of a new one.
	MustExist bool
}

// Store is the queue in one SQLite file. It satisfies store.Store: all methods are safe for concurrent use.
//
// A method that writes returns the context's error, and has done nothing, if its context ends before the writer has
// picked it up; from then on it waits for the commit.
type Store struct {
	*reader
	pool    *sql.DB // the writer's; one connection
	writer  *writer
	queue   chan *op
	chunks  chan *op // of large bodies
	staging staging
	lock    *fileLock
	keep    int
	unclean bool
}

var _ store.Store = (*Store)(nil)

// Open opens the store at path, creating the file (0600) and its folder (0700) where they are missing, and owns it until
// Close: a second Open, in this process or another, gets an error that wraps store.ErrLocked and names the owner's pid.
// After an owner that did not close (a crash, a kill) the database is checked first, which reads all of it.
//
// Errors are of type *OpenError, around store.ErrLocked, fs.ErrNotExist (with MustExist), ErrForeign, ErrSchema, ErrCorrupt, ErrPragma or the cause. ctx
// bounds the opening alone.
func Open(ctx context.Context, path string, o Options) (*Store, error) {
	var err error
	if o.MustExist {
		_, err = os.Stat(path)
	}
	var full string
	if err == nil {
		full, err = prepare(path)
	}
	if err != nil {
		return nil, openError(path, err)
	}
	lock, err := acquire(full + ".lock")
	if err != nil {
		return nil, openError(path, err)
	}
	s, err := open(ctx, full, o)
	if err != nil {
		return nil, openError(path, errors.Join(err, lock.release()))
	}
	s.lock = lock
	return s, nil
}

// open is Open under the lock.
func open(ctx context.Context, path string, o Options) (_ *Store, err error) {
	if err := createFile(path); err != nil {
		return nil, err
	}
	pool, err := sql.Open("sqlite", dsn(path, "rw", writerPragmas()))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, pool.Close())
		}
	}()
	// The one connection is held for the store's life, so database/sql cannot replace it behind our back by one whose
	// settings nobody read back.
	pool.SetMaxOpenConns(1)
	conn, err := pool.Conn(ctx)
	if err != nil {
		return nil, foreignOr(err)
	}
	unclean, err := setUp(ctx, conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	r, err := newReader(ctx, path, "rw", cmp.Or(o.Readers, 4))
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	s := &Store{
		reader:  r,
		pool:    pool,
		writer:  newWriter(conn),
		queue:   make(chan *op, maxGroup),
		chunks:  make(chan *op, maxGroup),
		staging: staging{all: map[*staged]struct{}{}},
		unclean: unclean,
		keep:    cmp.Or(o.KeepRefusals, 10_000),
	}
	go s.writer.loop(s.queue, s.chunks)
	return s, nil
}

// setUp makes an opened database ready for the writer: ours, of our schema, with the settings that we need, and sound. unclean is
// what checkIfUnclean says.
func setUp(ctx context.Context, c *sql.Conn) (unclean bool, err error) {
	// Before anything is written: the file may be somebody else's.
	st, err := inspect(ctx, c)
	if err != nil {
		return false, err
	}
	if st.empty() {
		// auto_vacuum is fixed when the first page is written, which journal_mode=WAL does.
		if _, err := c.ExecContext(ctx, "PRAGMA auto_vacuum=INCREMENTAL"); err != nil {
			return false, err
		}
	} else if err := st.check(); err != nil {
		return false, err
	}
	if _, err := c.ExecContext(ctx, "PRAGMA journal_mode=WAL"); err != nil {
		return false, err
	}
	if err := readBack(ctx, c, wantedPragmas()); err != nil {
		return false, err
	}
	if err := migrate(ctx, c, st.version); err != nil {
		return false, err
	}
	return checkIfUnclean(ctx, c)
}

// check says whether a database that is not empty can be used.
func (s state) check() error {
	switch want := schemaVersion(); {
	case s.application != applicationID:
		return ErrForeign
	case s.version > want:
		return fmt.Errorf("%w: the database has version %d, this program knows versions up to %d", ErrSchema, s.version, want)
	}
	return nil
}

// checkIfUnclean checks the database's structure if its last owner did not close it, and marks it as open. A mark of our
// own, since a -wal file is also left behind by a clean close beside a reader, and removed by a reader after a crash.
func checkIfUnclean(ctx context.Context, c *sql.Conn) (unclean bool, err error) {
	if err := c.QueryRowContext(ctx, "SELECT value = 0 FROM meta WHERE name = 'clean'").Scan(&unclean); err != nil {
		return false, err
	}
	if unclean {
		var report string
		err := c.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&report)
		if ctx.Err() != nil {
			return false, err
		}
		if err != nil {
			return false, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		if report != "ok" {
			return false, fmt.Errorf("%w: %s", ErrCorrupt, oneLine(report, maxReason))
		}
	}
	_, err = c.ExecContext(ctx, "UPDATE meta SET value = 0 WHERE name = 'clean'")
	return unclean, err
}

// Unclean says whether the store's last owner ended without closing it, by a crash or a power cut. What it left was found sound.
func (s *Store) Unclean() bool { return s.unclean }

// Close waits for the operations that were called before it, checkpoints the log into the database, and gives the store
// up. It must be called once; another call, like every other method afterwards, returns store.ErrClosed.
func (s *Store) Close() error {
	if !s.gate.shut() {
		return store.ErrClosed
	}
	close(s.queue)
	close(s.chunks)
	<-s.writer.done
	ctx := context.Background()
	_, markErr := s.writer.conn.ExecContext(ctx, "UPDATE meta SET value = 1 WHERE name = 'clean'")
	readErr := s.reader.closePool()
	// Beside a reader of another process the checkpoint may be incomplete, which is reported in its row and is no error:
	// the log stays and is read by the next owner.
	_, checkpointErr := s.writer.conn.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
	err := errors.Join(markErr, readErr, checkpointErr, s.writer.close(), s.pool.Close(), s.lock.release())
	if err != nil {
		return fmt.Errorf("close store: %w", err)
	}
	return nil
}

// prepare makes the folder and resolves the path.
func prepare(path string) (string, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	return resolve(path)
}

// resolve returns the absolute path of the database, symbolic links resolved, so that two names of one file share one
// lock. The file need not exist, its folder must.
func resolve(path string) (string, error) {
	full, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if real, err := filepath.EvalSymlinks(full); err == nil {
		return real, nil
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(full))
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, filepath.Base(full)), nil
}

// createFile makes the database file for us alone, before SQLite makes it with the process's umask; the -wal and -shm
// files take their mode from it (sqlite3 source, findCreateFileMode). An existing file is not even opened: closing it
// would drop the locks that another SQLite connection of this process has on it.
func createFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	if runtime.GOOS == "windows" {
		return nil // a folder cannot be flushed there; NTFS journals its entries
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// dsn builds the driver's name for the file: a URI, so that any character may stand in the path.
func dsn(path, mode string, pragmas []pragma) string {
	p := filepath.ToSlash(path)
	if !strings.HasPrefix(p, "/") {
		p = "/" + p // file:///C:/... (sqlite.org/uri.html, section 3.1)
	}
	q := url.Values{"mode": {mode}}
	for _, pr := range pragmas {
		q.Add("_pragma", fmt.Sprintf("%s(%s)", pr.name, pr.value))
	}
	u := url.URL{Scheme: "file", Path: p, RawQuery: q.Encode()}
	return u.String()
}

// openError adds the hint that belongs to a cause.
func openError(path string, err error) error {
	if code(err) == sqlite3.SQLITE_CORRUPT && !errors.Is(err, ErrCorrupt) {
		err = fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	var hint string
	switch {
	case code(err) == sqlite3.SQLITE_CANTOPEN:
		hint = "is it a folder, or a file that this user may not open?"
	case code(err) == sqlite3.SQLITE_READONLY:
		hint = "the user that runs this needs to write the file and its folder"
	case errors.Is(err, store.ErrLocked):
		hint = "stop that engine, or give this one another store"
	case errors.Is(err, ErrForeign):
		hint = "the path names some other file; choose another path"
	case errors.Is(err, ErrSchema):
		hint = "use the version of the program that last ran this store, or a newer one"
	case errors.Is(err, ErrCorrupt):
		hint = "keep the file and its -wal, and restore a backup or run sqlite3's .recover on a copy"
	case errors.Is(err, ErrPragma):
		hint = "the file system may lack shared memory or locks; put the store on a local disk"
	case errors.Is(err, fs.ErrPermission):
		hint = "the user that runs this needs to read and write the folder"
	case errors.Is(err, fs.ErrNotExist):
		hint = "check the path; a store is there only once an engine has run"
	}
	return &OpenError{Path: path, Err: err, Hint: hint}
}

func foreignOr(err error) error {
	if isForeign(err) {
		return ErrForeign
	}
	return err
}
