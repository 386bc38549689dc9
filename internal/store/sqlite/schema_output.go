package sqlite

// schemaOutput has what handlers print. Most print nothing and have no row; it goes with the message. There is no foreign key to runs,
// since removing a run would then look through all rows for one that refers to it.
const schemaOutput = `
CREATE TABLE printed (
	message  INTEGER NOT NULL REFERENCES messages (id),
	run      INTEGER NOT NULL,
	stream   TEXT NOT NULL,
	text     TEXT NOT NULL,    -- the last of it
	left_out INTEGER NOT NULL, -- bytes before that
	PRIMARY KEY (message, run, stream)
);
`
