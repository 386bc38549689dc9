package sqlite

// schemaBodies lets a body be stored in chunks. A body of before stays the one blob that it is: size is NULL for it, as for
// every body that is small enough.
//
// A loose body is one that no row refers to: not yet, while its chunks come in, or no more. Nothing has to be searched for
// what a crash left half stored.
const schemaBodies = `
ALTER TABLE bodies ADD COLUMN size INTEGER; -- of a body in chunks, whose data is empty

CREATE TABLE chunks (
	body INTEGER NOT NULL,
	n    INTEGER NOT NULL,
	data BLOB NOT NULL,
	PRIMARY KEY (body, n)
);

CREATE TABLE loose (
	body INTEGER PRIMARY KEY
);
`
