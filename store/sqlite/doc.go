// Package sqlite implements the store on SQLite, in WAL mode. The library is
// compiled in; the services that fill the outbox may use any SQLite of their
// own.
//
// # The file
//
// The relay works on the services' own database file and never makes one. Its
// journal mode must be WAL, so that reading does not stop the services and an
// append tells of a commit; a file in another mode is changed, which lasts.
// SQLite needs the directory to be writable, and no network file system.
//
// No other part of a program may open the file itself, not even to look at it:
// closing any descriptor of it gives up the locks that SQLite holds for the
// whole process.
//
// # Connections
//
// A [Store] has one connection for everything that writes: SQLite has one writer
// at a time, and calls that wait for each other inside the process do so in
// order and without delay. It is opened by the first call that needs it; a call
// that fails closes it and the next one opens it again. A [store.View] has a
// connection of its own, and so has each call that only reads: LoadHolds,
// CountFailed, Failed, Parked, SpilledLanes, Leader, and what shows and reads replays. Those need no lock that a
// writer or another relay may hold. A ping of the lock keeps one, too: it asks whether
// the file was changed (PRAGMA data_version), and reads how many wishes there are if so.
//
// SQLite has one write lock for the whole database and none for rows or tables: another
// program that keeps it holds up everything that writes.
//
// A transaction that finds the database locked tries again, after 100 µs at
// first and 1 ms at last. A claim does so for 250 ms and then answers that its
// rows are not yet visible, so that nobody's long transaction looks like a fault;
// all other calls do it for 10 s and then fail.
//
// # Without claims
//
// Where claims are not written, a claim reads its rows and commits nothing. It looks
// at each: nothing tells those of the log from those that were read from the table.
//
// # The fence
//
// Every write begins with BEGIN IMMEDIATE and reads the epoch and the holder in
// the leader row first: whoever holds SQLite's one write lock cannot be overtaken
// by a Lead.
//
// The lock is that of a file beside the database, which the kernel gives up with
// the process. A frozen process keeps it, and with it the lead.
//
// # Durability
//
// Claims and COMPLETED are committed with synchronous=NORMAL: in WAL mode that
// survives the death of any process, and a power failure may take the last
// commits back, newest first. Lead, FAILED, holds, requeued and discarded rows,
// parked rows and their outcomes, wishes, all of a replay but what became of its rows,
// and the checkpoint are committed with synchronous=FULL, which syncs the WAL file after the commit record is in it.
// Commits are appended to that one file in order, whichever connection makes
// them, and a checkpoint of the WAL syncs it before it copies anything; so the
// sync carries everything that was committed before. See "PRAGMA synchronous" in
// https://www.sqlite.org/pragma.html and "Performance Considerations" in
// https://www.sqlite.org/wal.html.
//
// # Parking
//
// Rows are parked, and forgotten, on the writing connection like all else, but a
// few hundred to a transaction: claims, outcomes and services get the write lock
// in between. So a call may fail with a part of it written; asking again
// completes it. A write that changes nothing syncs nothing, so every part is
// durable by itself, and a repeat that finds its rows parked need not be.
//
// Reading parked rows takes a snapshot and no lock. So does a view: what it reads
// page by page may be parked meanwhile. The WAL cannot be begun anew for so long
// and grows by all that is written.
//
// # Retention
//
// Old delivered rows are looked for on a connection of its own; the write lock is
// taken only to delete what was found, and waited for no longer than by a claim:
// see Prune.
//
// # Types
//
// The values of a column may have any type. An id travels as text: an integer
// in digits, a BLOB as x'0a1b'. It is looked up in the type of its column, so an
// index on the column serves. A REAL number is no id: its text is not exact. The
// payload is given as the bytes of a BLOB or of a text in UTF-8.
//
// Times are written as "2006-01-02 15:04:05.000" in UTC, as SQLite's own
// functions write them, or in milliseconds since 1970 where the column is
// declared as an integer. Both are read, and so are ISO 8601 forms with a T, a Z
// or an offset, and integers in seconds.
//
// A row whose status is none of the layout's pending and processing values
// counts as settled: somebody took it out of the relay's hands.
package sqlite
