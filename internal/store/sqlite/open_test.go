package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// The settings that durability rests on, as the writer's connection has them. Red when any is left out of
// writerPragmas, or set after the first page was written (auto_vacuum).
func TestSettings(t *testing.T) {
	s := openAt(t, newPath(t), Options{})
	for name, want := range map[string]string{
		"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "auto_vacuum": "2", "busy_timeout": "5000",
		"journal_size_limit": "67108864", "temp_store": "2", "application_id": "1131376752", "user_version": strconv.Itoa(schemaVersion()),
	} {
		var got string
		must(t, s.commit(t.Context(), 0, func(tx *tx) error { return tx.row("PRAGMA "+name, nil, &got) }))
		if got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	if _, err := s.db.ExecContext(t.Context(), "DELETE FROM messages"); err == nil {
		t.Error("a reading connection can write")
	}
}

// A store that an older program made goes on under this one: what waits is there, what ended can be read, and what failed
// can be replayed. Red when a step of migrations is left out.
func TestMigration(t *testing.T) {
	path := newPath(t)
	must(t, os.MkdirAll(filepath.Dir(path), 0o700))
	execRaw(t, path, "PRAGMA auto_vacuum=INCREMENTAL; PRAGMA journal_mode=WAL")
	execRaw(t, path, schema1+fmt.Sprintf("PRAGMA application_id=%d; PRAGMA user_version=1;", applicationID)+`
		INSERT INTO bodies VALUES (1, CAST('old body' AS BLOB)), (2, CAST('waits' AS BLOB));
		INSERT INTO messages VALUES (1, 'adt', '', 'ADT^A01', '17', 0, 5, 8, 'sum', 'ERROR', 'raised', 1),
			(2, 'adt', '', 'ADT^A01', '18', 0, NULL, 5, 'sum', 'RECEIVED', '', 2);
		INSERT INTO runs (id, message, handler, state, reason, attempts, ended) VALUES (1, 1, 'h', 'ERROR', 'raised', 1, 5);
		INSERT INTO deliveries (message, number, run, inbound, outbound, place, sub, state, ended)
			VALUES (1, 1, 1, 'adt', 'a', 1, 0, 'CLOSED', 5);
		UPDATE meta SET value = 1 WHERE name = 'place';`)
	s := openAt(t, path, Options{})
	if n := queryInt(t, s, "SELECT user_version FROM pragma_user_version"); n != schemaVersion() {
		t.Errorf("the schema has version %d, want %d", n, schemaVersion())
	}
	m, err := s.NextReceived(t.Context(), "adt")
	must(t, err)
	if m == nil || m.ID != 2 || string(m.Body) != "waits" {
		t.Errorf("next is %+v, want message 2", m)
	}
	dead, err := s.DeadLetters(t.Context(), store.DeadLetters{})
	must(t, err)
	if len(dead) != 1 || dead[0].Message != 1 || dead[0].Reason != "raised" {
		t.Errorf("dead letters are %+v, want message 1's", dead)
	}
	_, err = s.Replay(t.Context(), 1, message.Names{Handlers: map[string]message.Plan{"h": {Handler: "h", To: []string{"a"}}}})
	must(t, err)
	run, of := nextRun(t, s, "h")
	if of.ID != 1 || string(of.Body) != "old body" {
		t.Errorf("next run is %+v of %+v, want message 1's", run, of)
	}
}

// A setting that SQLite did not take is found out. Red when setUp does not read back.
func TestSettingsAreReadBack(t *testing.T) {
	weak := []pragma{}
	for _, p := range writerPragmas() {
		if p.name == "synchronous" {
			p.value = "1" // NORMAL, which loses what was acknowledged in a power cut
		}
		weak = append(weak, p)
	}
	for what, name := range map[string]string{
		"synchronous=NORMAL": dsn(newPath(t), "rwc", weak),
		"no WAL in memory":   dsn("/memory", "memory", writerPragmas()),
	} {
		t.Run(what, func(t *testing.T) {
			db, err := sql.Open("sqlite", name)
			must(t, err)
			defer db.Close()
			c, err := db.Conn(t.Context())
			must(t, err)
			defer c.Close()
			if _, err := setUp(t.Context(), c); !errors.Is(err, ErrPragma) {
				t.Errorf("got error %v, want %v", err, ErrPragma)
			}
		})
	}
}

// Red when Open does not acquire the lock, and, for the second name, when the path's links are not resolved.
func TestLockedByThisProcess(t *testing.T) {
	path := newPath(t)
	s := openAt(t, path, Options{})
	_, err := Open(t.Context(), path, Options{})
	wantLocked(t, err, "pid "+strconv.Itoa(os.Getpid()))
	if runtime.GOOS != "windows" { // links need a privilege there
		link := filepath.Join(t.TempDir(), "link.db")
		must(t, os.Symlink(path, link))
		_, err = Open(t.Context(), link, Options{})
		wantLocked(t, err, "this process")
	}
	must(t, s.Close())
	openAt(t, path, Options{})
}

// Red when createFile makes the file 0644, whose mode the log then takes too, and when the folder is made 0755.
func TestFileModes(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("missing: mode bits of files")
	}
	dir := filepath.Join(t.TempDir(), "a", "b c?#%41")
	path := filepath.Join(dir, "coppice.db")
	s := openAt(t, path, Options{})
	receive(t, s, "adt", "x")
	for name, want := range map[string]fs.FileMode{
		dir: 0o700, path: 0o600, path + "-wal": 0o600, path + "-shm": 0o600, path + ".lock": 0o600,
	} {
		info, err := os.Stat(name)
		must(t, err)
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", name, got, want)
		}
	}
	must(t, s.Close())
	if _, err := os.Stat(path + "-wal"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the log is still there after Close: %v", err)
	}
}

// Red when the check of application_id is left out: setUp then makes its tables in somebody else's database.
func TestForeignFiles(t *testing.T) {
	text := filepath.Join(t.TempDir(), "notes.txt")
	must(t, os.WriteFile(text, bytes.Repeat([]byte("not a database, but long enough for its header\n"), 100), 0o600))
	other := filepath.Join(t.TempDir(), "other.db")
	execRaw(t, other, "CREATE TABLE notes (x); PRAGMA user_version=1")
	for _, path := range []string{text, other} {
		before := readFile(t, path)
		for what, err := range openBoth(t, path) {
			if !errors.Is(err, ErrForeign) {
				t.Errorf("%s %s: got error %v, want %v", what, filepath.Base(path), err, ErrForeign)
			}
		}
		if !bytes.Equal(readFile(t, path), before) {
			t.Errorf("%s was changed", filepath.Base(path))
		}
	}
}

// Red when check does not compare the version.
func TestNewerSchema(t *testing.T) {
	path := newPath(t)
	must(t, openAt(t, path, Options{}).Close())
	execRaw(t, path, fmt.Sprintf("PRAGMA user_version=%d", schemaVersion()+1))
	for what, err := range openBoth(t, path) {
		var open *OpenError
		if !errors.Is(err, ErrSchema) || !errors.As(err, &open) || open.Hint == "" {
			t.Errorf("%s: got error %v, want %v with a hint", what, err, ErrSchema)
		}
	}
}

// openBoth opens a path that cannot be opened, as a store and as a reader.
func openBoth(t *testing.T, path string) map[string]error {
	t.Helper()
	s, storeErr := Open(t.Context(), path, Options{})
	if storeErr == nil {
		_ = s.Close()
	}
	r, readErr := OpenReader(t.Context(), path)
	if readErr == nil {
		_ = r.Close()
	}
	return map[string]error{"Open": storeErr, "OpenReader": readErr}
}

// A file that was made and never written, or whose first transaction was cut short, is a new store.
func TestOpenAfterCrashInCreation(t *testing.T) {
	path := newPath(t)
	must(t, os.WriteFile(path, nil, 0o600))
	must(t, openAt(t, path, Options{}).Close())

	path = newPath(t)
	execRaw(t, path, "PRAGMA auto_vacuum=INCREMENTAL; PRAGMA journal_mode=WAL")
	s := openAt(t, path, Options{})
	receive(t, s, "adt", "x")
}

// Whether the last owner closed the store is told by the next. Red when Close does not mark it, and when Open does not.
func TestUnclean(t *testing.T) {
	path := newPath(t)
	s := openAt(t, path, Options{})
	if s.Unclean() {
		t.Error("a new store is said to be unclean")
	}
	receive(t, s, "adt", "x")
	copied := newPath(t)
	must(t, os.MkdirAll(filepath.Dir(copied), 0o700))
	for _, part := range []string{"", "-wal"} { // as a crash would leave them
		must(t, os.WriteFile(copied+part, readFile(t, path+part), 0o600))
	}
	if c := openAt(t, copied, Options{}); !c.Unclean() {
		t.Error("a store that nobody closed is said to be clean")
	}
	must(t, s.Close())
	if s = openAt(t, path, Options{}); s.Unclean() {
		t.Error("a store that was closed is said to be unclean")
	}
}

// Damage is found at the next open, if nobody closed the store. Red when checkIfUnclean does not check, and when Open
// does not mark the store as open.
func TestDamageAfterUncleanEnd(t *testing.T) {
	path := newPath(t)
	s := openAt(t, path, Options{})
	for range 200 {
		receive(t, s, "adt", "some body")
	}
	root := queryInt(t, s, "SELECT rootpage FROM sqlite_schema WHERE name = 'messages_by_inbound'")
	size := queryInt(t, s, "PRAGMA page_size")
	if n := queryInt(t, s, "SELECT value FROM meta WHERE name = 'clean'"); n != 0 {
		t.Errorf("an open store is marked as clean")
	}
	must(t, s.Close())
	must(t, openAt(t, path, Options{}).Close()) // it is sound

	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	_, err = f.WriteAt(make([]byte, size/2), int64((root-1)*size))
	must(t, errors.Join(err, f.Close()))
	execRaw(t, path, "UPDATE meta SET value = 0 WHERE name = 'clean'")
	_, err = Open(t.Context(), path, Options{})
	var open *OpenError
	if !errors.Is(err, ErrCorrupt) || !errors.As(err, &open) || open.Hint == "" {
		t.Errorf("got error %v, want %v with a hint", err, ErrCorrupt)
	}
}

// Close is the end: the lock is free, a second Close says so, the log is in the database.
func TestClose(t *testing.T) {
	path := newPath(t)
	s := openAt(t, path, Options{})
	id := receive(t, s, "adt", "x")
	must(t, s.Close())
	if err := s.Close(); !errors.Is(err, store.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
	copied := newPath(t)
	must(t, os.WriteFile(copied, readFile(t, path), 0o600)) // the one file is all
	tl, err := openAt(t, copied, Options{}).Timeline(t.Context(), id)
	if err != nil || string(tl.Message.Body) != "x" {
		t.Errorf("in a copy of the file the message is %q, %v", tl.Message.Body, err)
	}
}

// execRaw runs SQL on a file, past the store.
func execRaw(t *testing.T, path, query string) {
	t.Helper()
	db, err := sql.Open("sqlite", dsn(path, "rwc", nil))
	must(t, err)
	_, err = db.ExecContext(context.Background(), query)
	must(t, errors.Join(err, db.Close()))
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return b
}
