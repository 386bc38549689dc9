package sqlite

// schemaHolds adds holds that outlive the engine, failures in a row, replay and resubmission. Columns that are added to a
// table cost no rewrite of its rows (sqlite.org/lang_altertable.html, section 4).
const schemaHolds = `
CREATE TABLE holds (
	kind    TEXT NOT NULL CHECK (kind IN ('inbound','handler','outbound')),
	name    TEXT NOT NULL,
	inbound TEXT NOT NULL, -- of an outbound: the lane that is held; empty for all of them
	reason  TEXT NOT NULL,
	since   INTEGER NOT NULL,
	PRIMARY KEY (kind, name, inbound)
) WITHOUT ROWID;

CREATE TABLE streaks (
	kind     TEXT NOT NULL CHECK (kind IN ('inbound','handler')),
	name     TEXT NOT NULL,
	failures INTEGER NOT NULL, -- in a row, up to now; no row: the last run went well
	PRIMARY KEY (kind, name)
) WITHOUT ROWID;

ALTER TABLE messages ADD COLUMN resubmits INTEGER;
ALTER TABLE messages ADD COLUMN duplicates INTEGER NOT NULL DEFAULT 0;
CREATE INDEX messages_resubmits ON messages (resubmits) WHERE resubmits IS NOT NULL;

-- When a new attempt took the place of this one; what is replayed no longer counts for the disposition.
ALTER TABLE runs ADD COLUMN replayed INTEGER;
ALTER TABLE deliveries ADD COLUMN replayed INTEGER;

-- Dead letters, by the message that they belong to.
CREATE INDEX runs_dead ON runs (message) WHERE state = 'ERROR' AND replayed IS NULL;
CREATE INDEX deliveries_dead ON deliveries (message) WHERE state = 'DEAD' AND replayed IS NULL;
`
