package sqlite

import (
	"errors"
	"fmt"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// Reasons why a database cannot be opened; each comes inside an *OpenError. Test with errors.Is.
var (
	// ErrForeign is returned for a file that is no SQLite database, or somebody else's.
	ErrForeign = errors.New("not a coppice database")
	// ErrSchema is returned for a database whose schema version this program does not handle.
	ErrSchema = errors.New("schema version does not match")
	// ErrCorrupt is returned when the check after an unclean end finds damage.
	ErrCorrupt = errors.New("the database is damaged")
	// ErrPragma is returned when SQLite did not take a setting that the store depends on.
	ErrPragma = errors.New("SQLite did not take a setting")
)

// OpenError tells why a database could not be opened and what to do about it.
type OpenError struct {
	Path string
	Err  error
	Hint string // one sentence for people; may be empty
}

func (e *OpenError) Error() string {
	s := fmt.Sprintf("open store %s: %v", e.Path, e.Err)
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

func (e *OpenError) Unwrap() error { return e.Err }

// code returns the primary result code of a SQLite error, 0 for any other error.
func code(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code() & 0xff // the rest is the extended code: sqlite.org/rescode.html
	}
	return 0
}

func isForeign(err error) bool { return code(err) == sqlite3.SQLITE_NOTADB }
