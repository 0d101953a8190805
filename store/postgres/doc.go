// Package postgres implements the store on PostgreSQL 14 and later.
//
// # Sessions
//
// A [Store] holds at most nine sessions, each for one kind of call:
//
//   - claims
//   - outcomes, two: the second while a call uses the first
//   - control: epoch, saving the checkpoint, the relay's tables
//   - spilled rows
//   - operator: records and requests, changes to dead letters
//   - replays and their rows
//   - the leader lock
//   - waiting until a table that another session has locked is free
//
// Each session serves one call at a time, so a call never waits for a call of another
// kind. A session is opened by the first call that needs it. A call that fails closes its
// session, and the next call opens it again. Each [store.View], each count and each
// listing of dead letters has a session of its own. Sessions are direct: a transaction
// pooler refuses their settings, and the lock needs a server session of its own.
//
// # Leadership
//
// The leader lock is an advisory lock on a session of its own. The server ends that
// session after store.MinLockLease without a statement. An attempt to lock never blocks,
// because a blocked statement would keep the server from removing old row versions. A
// ping is the one statement that reads the number of requests.
//
// Every write locks the leader row FOR SHARE and compares its epoch and its holder. So
// [Store.AcquireLeadership] can raise the epoch only when no write of an earlier leader
// is in progress. A write that does not end within 250 ms is terminated together with its
// session: the server process of a frozen relay would wait forever for the relay to read
// a response. Terminating it needs no privilege beyond the role that the relays share.
//
// # Claims
//
// One statement per outbox locks the leader row, updates the rows, and classifies the
// rows that it did not update, all in one snapshot. A row that exists, is unsettled and
// was still not updated was changed by another session while the statement ran. It is
// reported as not yet visible, never as settled.
//
// Where claims are not written, the statement locks the leader row and reads only the
// rows that did not come from the log. If an outcome matches no row, the transaction
// number decides whether the row is gone or not visible yet. The log is ahead of
// statement snapshots; behind a synchronous standby it stays ahead until that standby
// confirms the commit.
//
// A row whose status is neither the layout's pending nor its processing value counts as
// settled: another program has taken it over.
//
// # Locks
//
// A lock held by another session delays a claim or an outcome by at most 250 ms, unless
// lock_timeout is set in the URL. From then on the session skips locked rows (SKIP
// LOCKED), until 10 s after it last met a lock, so that a forgotten transaction stops no
// other row. Such a call is one transaction:
//
//   - It locks the leader row.
//   - It requests the lock of each table, for at most 500 ms. EXPLAIN of a write takes
//     the lock and fires no trigger.
//   - It writes the rows of the tables that it could lock. Rows of the other tables get
//     the result for a locked table.
//
// # Spilled rows
//
// The table sluicebox.queue holds spilled rows durably, in the queue without a name. It has
// one index per access path: by lane and n, by n, and by id for spilled rows. A row of a
// transaction that is not visible yet keeps the full 64-bit transaction number, so
// visibility can be decided at any later time. Settling deletes the spilled row in the same
// transaction, if the row is settled by this or another write.
//
// Ids, kinds and groups in the queues are UTF-8 bytes, so a database of any encoding stores
// them. convert_from(id, 'UTF8') shows them. Records are JSON in ASCII.
//
// A view leaves out the ids that were spilled when it was opened: up to 2000 by a hash,
// more by one lookup per row.
//
// # Dead letters
//
// Rows are selected first, without a lock, because that may read a large table. A second
// statement writes the rows that are still FAILED. It checks the leader row and waits for
// a locked row as outcomes do: at most 1 s, unless lock_timeout is set in the URL.
//
// # Replays
//
// Requests are written without an epoch. Each request first writes the record that counts
// them, and locks it until it commits, which orders them. All other writes are fenced. An
// update sends its statements as one batch as far as it needs none of their results. The
// results of rows that were sent commit asynchronously: after a crash of the server these
// rows are sent again.
//
// # Retention
//
// Delivered rows are deleted on the operator session, a few blocks of the table at a
// time. Rows locked by another session are skipped. See Prune. A partition without a row
// that stays is truncated, if the role has the right to.
//
// # Types
//
// The types of the outbox columns are looked up once per session. Values are bound in the
// type of their column, so indexes on the column apply. Ids travel in the type's own text
// form. The payload may be of any type; bytea is returned as raw bytes, every other type
// in its text form.
package postgres
