package sqlite

// schemaOpen has a message that moves on change one short index, and get into the long ones once, when it ends: they grow with
// the store, and each page of them that a hand-over touches is written with it. ended stands in the short one, NULL each time, so
// that what asks for it needs no look at the rows.
const schemaOpen = `
DROP INDEX messages_by_inbound;
DROP INDEX messages_by_disposition;
CREATE INDEX messages_open ON messages (inbound, disposition, ended) WHERE ended IS NULL;
CREATE INDEX messages_by_inbound ON messages (inbound, disposition) WHERE ended IS NOT NULL;

-- As before, but what many senders' messages share, an id of no meaning, does not hide which of them has the same bytes.
DROP INDEX messages_by_control_id;
CREATE INDEX messages_by_control_id ON messages (control_id, substr(sha256, 1, 8));

-- As before, but a place that is filled stays where it is.
DROP INDEX deliveries_open;
CREATE INDEX deliveries_open ON deliveries (outbound, inbound, place, sub, ended) WHERE ended IS NULL;
`
