// Package sqlite implements the store on SQLite in WAL mode. The SQLite library is compiled
// in; the services that fill the outbox may use another version.
//
// # The file
//
// The relay works on the database file of the services and never creates one. The journal
// mode must be WAL, so that readers do not block the services and an append to the WAL
// signals a commit. The relay switches a file in another mode to WAL, permanently. SQLite
// requires a writable directory on a local file system.
//
// No other part of the program may open the file, not even to read it. Closing any
// descriptor of the file releases the POSIX locks that SQLite holds for the whole process.
//
// # Connections
//
// A [Store] has one connection for all writes, because SQLite has one writer at a time.
// Concurrent calls wait for each other inside the process, in order and without delay. The
// first call opens the connection. A call that fails closes it, and the next call reopens
// it.
//
// A [store.View] has its own connection. So has each call that only reads: CountFailed,
// Failed, Leader, and the calls that read the relay's records (see package ledger).
// They need no lock that a writer or another relay may hold. The ping of the lock keeps a
// connection too. It checks whether the file changed (PRAGMA data_version) and only then
// reads the number of requests.
//
// SQLite has one write lock for the whole database and no row or table locks. Another
// program that holds it delays everything that writes.
//
// A transaction that finds the database locked retries after 100 µs at first, then with a
// backoff of up to 1 ms. A claim retries for 250 ms and then answers NotYetVisible for its
// rows, so that a service's long transaction is not reported as a fault. All other calls
// retry for 10 s and then fail.
//
// # Without claims
//
// If claims are not written, a claim reads its rows and commits nothing. It reads each row,
// because it cannot distinguish captured rows from rows that were read from the table.
//
// # Fencing
//
// Every write begins with BEGIN IMMEDIATE and first reads the epoch and the holder in the
// leader row. SQLite has a single write lock, so AcquireLeadership cannot run in between.
//
// The relay's lock is a lock on a file beside the database, which the kernel releases with
// the process. A frozen process keeps it, and stays leader.
//
// # Durability
//
// Claims and COMPLETED are committed with synchronous=NORMAL. In WAL mode such a commit
// survives the crash of any process, but a power failure may undo the latest commits.
//
// These are committed with synchronous=FULL, which syncs the WAL file after the commit
// record:
//   - the epoch of a new leader,
//   - FAILED, holds, requeued and discarded rows,
//   - spilled rows and their outcomes,
//   - requests of operators,
//   - replays, except the results of their rows,
//   - the checkpoint.
//
// All connections append their commits to the same WAL file in order, and a WAL checkpoint
// syncs it before it copies pages. So the sync makes every earlier commit durable too. See
// "PRAGMA synchronous" in https://www.sqlite.org/pragma.html and "Performance
// Considerations" in https://www.sqlite.org/wal.html.
//
// # Spilling
//
// Rows are spilled and deleted on the writing connection, 200 to a transaction, so that
// claims, outcomes and services get the write lock in between. A call may therefore fail
// after a part of it was committed; repeating it completes it. Every part is durable by
// itself. A write that changes nothing syncs nothing, but a repeated call that finds its
// rows spilled needs no sync.
//
// Reading spilled rows takes a snapshot and no lock. So does a view, and the rows of its
// pages may be spilled while it is read. SQLite cannot reset the WAL during that time, so
// the WAL grows by everything that is written.
//
// # Retention
//
// Prune searches old delivered rows on its own connection. It takes the write lock only to
// delete the rows it found, and waits for it no longer than a claim does.
//
// # Types
//
// A column may hold values of any type. An id travels as text: an integer in decimal digits,
// a BLOB as x'0a1b'. It is looked up in the type of its column, so that an index on the
// column serves. A REAL number is not a valid id, because its text is not exact. The payload
// is the bytes of a BLOB, or of a text in UTF-8. A kind, a part of a group and an attribute are
// the value as text, of a BLOB its bytes.
//
// Times are written in UTC as "2006-01-02 15:04:05.000", the format of SQLite's own
// functions. If the column is declared as an integer, they are milliseconds since 1970. The
// store reads both formats, and also ISO 8601 with a T, a Z or an offset, and integers in
// seconds.
//
// A row whose status is none of the layout's pending and processing values counts as
// settled, because another program took it over.
package sqlite
