package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// applicationID marks the file as ours in its header, where file(1) finds it too: "Copp".
const applicationID = 0x436f7070

// migrations lists the steps of the schema: step i takes a database from user_version i to i+1. A released step is
// never edited; a change is a new one.
func migrations() []string {
	return []string{schema1, schemaHolds, schemaBodies, schemaOpen, schemaUnordered, schemaOutput, schemaDismissals, schemaPlans}
}

// schemaVersion is what the last migration leads to.
func schemaVersion() int { return len(migrations()) }

// States and times are kept readable in the sqlite3 shell: states as words, times as microseconds since 1970 UTC.
//
// Bodies sit apart from the rows that lists and queues walk, so that these stay short, and are shared: a delivery that
// passes a message through points at the message's own body. There is no foreign key to bodies, since removing a body
// would then scan every delivery for a reference.
//
// AUTOINCREMENT on messages, runs and deliveries because an id is never to name two things, also after a purge.
const schema1 = `
CREATE TABLE meta (
	name  TEXT PRIMARY KEY,
	value INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO meta VALUES
	('clean', 1), -- 0 while an engine has the store open
	('place', 0); -- the last place that was given out

CREATE TABLE bodies (
	id   INTEGER PRIMARY KEY,
	data BLOB NOT NULL
);

CREATE TABLE messages (
	id          INTEGER PRIMARY KEY AUTOINCREMENT,
	inbound     TEXT NOT NULL,
	peer        TEXT NOT NULL,
	type        TEXT NOT NULL,
	control_id  TEXT NOT NULL,
	received    INTEGER NOT NULL,
	ended       INTEGER,
	size        INTEGER NOT NULL,
	sha256      TEXT NOT NULL,
	disposition TEXT NOT NULL CHECK (disposition IN ('RECEIVED','ROUTED','UNROUTED','FILTERED','PROCESSED','ERROR')),
	reason      TEXT NOT NULL DEFAULT '',
	body        INTEGER NOT NULL
);
CREATE INDEX messages_by_inbound ON messages (inbound, disposition);
CREATE INDEX messages_by_disposition ON messages (disposition);
CREATE INDEX messages_by_type ON messages (type);
CREATE INDEX messages_by_control_id ON messages (control_id);

CREATE TABLE runs (
	id         INTEGER PRIMARY KEY AUTOINCREMENT,
	message    INTEGER NOT NULL REFERENCES messages (id),
	handler    TEXT NOT NULL, -- empty for the router
	state      TEXT NOT NULL CHECK (state IN ('PENDING','SENT','FILTERED','ERROR')),
	reason     TEXT NOT NULL DEFAULT '',
	fault_kind TEXT,          -- with the three below: NULL where there was no fault
	fault_type TEXT,
	fault_text TEXT,
	traceback  TEXT,
	attempts   INTEGER NOT NULL DEFAULT 0,
	code       TEXT NOT NULL DEFAULT '',
	took_ns    INTEGER NOT NULL DEFAULT 0,
	ended      INTEGER
);
CREATE INDEX runs_by_message ON runs (message);
CREATE INDEX runs_pending ON runs (handler) WHERE state = 'PENDING';

CREATE TABLE deliveries (
	id       INTEGER PRIMARY KEY AUTOINCREMENT,
	message  INTEGER NOT NULL REFERENCES messages (id),
	number   INTEGER NOT NULL,
	run      INTEGER NOT NULL REFERENCES runs (id),
	inbound  TEXT NOT NULL,
	outbound TEXT NOT NULL,
	place    INTEGER NOT NULL,
	sub      INTEGER NOT NULL, -- 0 for the reserved place, 1.. for further sends of the same run behind it
	state    TEXT NOT NULL CHECK (state IN ('RESERVED','READY','DONE','CLOSED','DEAD')),
	attempts INTEGER NOT NULL DEFAULT 0,
	rejected INTEGER NOT NULL DEFAULT 0,
	next_try INTEGER,
	reason   TEXT NOT NULL DEFAULT '',
	receipt  TEXT NOT NULL DEFAULT '',
	ended    INTEGER,
	body     INTEGER,
	UNIQUE (message, number)
);
CREATE INDEX deliveries_open ON deliveries (outbound, inbound, place, sub) WHERE state IN ('RESERVED','READY');

CREATE TABLE sources (
	path    TEXT NOT NULL,
	size    INTEGER NOT NULL,
	mtime   INTEGER NOT NULL,
	sha256  TEXT NOT NULL,
	message INTEGER NOT NULL,
	PRIMARY KEY (path, size, mtime, sha256)
) WITHOUT ROWID;

CREATE TABLE tags (
	message INTEGER NOT NULL REFERENCES messages (id),
	name    TEXT NOT NULL,
	value   TEXT NOT NULL,
	PRIMARY KEY (message, name)
) WITHOUT ROWID;
CREATE INDEX tags_by_value ON tags (name, value);

CREATE TABLE refusals (
	id      INTEGER PRIMARY KEY,
	inbound TEXT NOT NULL,
	peer    TEXT NOT NULL,
	reason  TEXT NOT NULL,
	size    INTEGER NOT NULL,
	at      INTEGER NOT NULL
);
`

// state is what a database file says of itself.
type state struct {
	application int
	version     int
	tables      int
}

// inspect reads what the file is, without changing it. ErrForeign if it is no SQLite database.
func inspect(ctx context.Context, c *sql.Conn) (state, error) {
	var s state
	err := c.QueryRowContext(ctx, `SELECT
		(SELECT application_id FROM pragma_application_id),
		(SELECT user_version FROM pragma_user_version),
		(SELECT count(*) FROM sqlite_schema)`).Scan(&s.application, &s.version, &s.tables)
	if isForeign(err) {
		return s, ErrForeign
	}
	return s, err
}

// empty says that nothing was ever made in the file: it is new, or its creation was cut short before the first commit.
func (s state) empty() bool { return s.application == 0 && s.version == 0 && s.tables == 0 }

// migrate brings the schema up to date in one transaction, so that a crash leaves the old schema or the new one.
func migrate(ctx context.Context, c *sql.Conn, from int) error {
	steps := migrations()
	if from == len(steps) {
		return nil
	}
	if _, err := c.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	for i := from; i < len(steps); i++ {
		if _, err := c.ExecContext(ctx, steps[i]); err != nil {
			_, rollbackErr := c.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
			return fmt.Errorf("migrate the schema from version %d to %d: %w", i, i+1, errors.Join(err, rollbackErr))
		}
	}
	_, err := c.ExecContext(ctx, fmt.Sprintf("PRAGMA application_id=%d; PRAGMA user_version=%d; COMMIT",
		applicationID, len(steps)))
	return err
}
