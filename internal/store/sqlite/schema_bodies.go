package sqlite

// schemaBodies bounds what one transaction takes, and what the store keeps: it lets a body be stored in chunks, and has what a
// purge looks for. A body of before stays the one blob that it is: size is NULL for it, as for every body that is small enough.
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

CREATE INDEX messages_by_end ON messages (disposition, ended) WHERE ended IS NOT NULL;
CREATE INDEX deliveries_by_run ON deliveries (run); -- without it, removing a run would look through all deliveries for one

-- When the file was last known to lie there.
ALTER TABLE sources ADD COLUMN seen INTEGER NOT NULL DEFAULT 0;
UPDATE sources SET seen = coalesce((SELECT received FROM messages WHERE id = sources.message), 0);
CREATE INDEX sources_by_seen ON sources (seen);
`
