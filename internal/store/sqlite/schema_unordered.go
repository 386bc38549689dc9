package sqlite

// schemaUnordered lets what is ready at an outbound that keeps no order be found among any number of places that are still
// reserved. Which outbounds those are is a table, and triggers mark their deliveries: whatever makes one ready need not know. A
// strict lane has no entry in these indexes, and pays for them with a look at a table that is empty.
const schemaUnordered = `
CREATE TABLE unordered (
	outbound TEXT PRIMARY KEY
) WITHOUT ROWID;

ALTER TABLE deliveries ADD COLUMN unordered INTEGER; -- 1 if it is ready at one of those; tells nothing of one that is not ready

CREATE INDEX deliveries_unordered ON deliveries (outbound, inbound, place, sub) WHERE state = 'READY' AND unordered = 1;
CREATE INDEX deliveries_tried ON deliveries (outbound, inbound, place, sub) WHERE state = 'READY' AND unordered = 1 AND attempts > 0;

CREATE TRIGGER deliveries_made_ready AFTER UPDATE OF state, outbound ON deliveries
WHEN NEW.state = 'READY' AND (NEW.unordered IS NOT NULL) <> EXISTS (SELECT 1 FROM unordered WHERE outbound = NEW.outbound)
BEGIN
	UPDATE deliveries SET unordered = CASE WHEN NEW.unordered IS NULL THEN 1 END WHERE id = NEW.id;
END;

CREATE TRIGGER deliveries_born_ready AFTER INSERT ON deliveries
WHEN NEW.state = 'READY' AND EXISTS (SELECT 1 FROM unordered WHERE outbound = NEW.outbound)
BEGIN
	UPDATE deliveries SET unordered = 1 WHERE id = NEW.id;
END;
`
