package sqlite

// schemaDismissals has the dead letters that somebody has seen to without a new attempt. They are a table of their own, so that the
// statements of messages under way know nothing of them.
const schemaDismissals = `
CREATE TABLE dismissals (
	message INTEGER NOT NULL REFERENCES messages (id),
	kind    TEXT NOT NULL CHECK (kind IN ('run','delivery')),
	part    INTEGER NOT NULL, -- the id of the run or the delivery
	at      INTEGER NOT NULL,
	reason  TEXT NOT NULL,
	PRIMARY KEY (message, kind, part)
);
`
