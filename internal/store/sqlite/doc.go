// Package sqlite is the durable queue in one file: a store.Store over SQLite in WAL mode.
//
// One goroutine writes. It takes up to 256 waiting operations into one transaction, each in a savepoint of its own, and
// answers their callers after the commit, so that many producers share one fsync and none is acknowledged before it. A
// separate pool of connections reads, and never waits for the writer.
//
// Durability rests on journal_mode=WAL with synchronous=FULL: "In WAL mode when synchronous is NORMAL [...] a
// transaction committed in WAL mode might roll back following a power loss" (sqlite.org/pragma.html#pragma_synchronous).
// Open reads both settings back and refuses to run without them. The file must not be on a network file system, where
// neither WAL's shared memory nor the lock can be relied on (sqlite.org/wal.html, section 1).
//
// Nothing in the database says "in progress": what a crash cut short is still RECEIVED, PENDING, RESERVED or READY, and
// is taken up again by whoever opens the store next. Opening is all the recovery there is.
//
// A body over 256 KiB is stored in chunks, each by an operation of its own and at most one in a group: what is small waits
// for one chunk and not for all of them. Until the row that refers to it is there, nobody sees it. See bodies.go.
//
// Purge removes in steps of one small operation each, so that nobody who writes waits for more than that.
//
// SQLite's own limit (a little under 1 GB) is the only cap of a body.
package sqlite
