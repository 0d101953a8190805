// Package postgres implements the store on PostgreSQL 14 and later.
//
// # Sessions
//
// A [Store] holds at most eight sessions: for claims, for outcomes, for control (epoch,
// checkpoint, own tables), for parked rows, for what an operator asks (holds, changes
// to dead letters, wishes), for the rows of replays, for the lock, and for waiting until
// a table that another session keeps locked is free. Each serves one call at a time, and
// no call waits for a call of another kind. They are opened by the first call that needs them; a call that
// fails closes its session and the next one opens it again. A [store.View] has a
// session of its own, and so has each count or reading of dead letters. Sessions
// are direct: a transaction pooler refuses their settings.
//
// # One leader
//
// The lock is an advisory lock on a session of its own, which the server ends when
// it has heard nothing for store.MinLockLease. A try never waits: a statement that does
// would keep the server from removing old row versions. A ping is the one statement
// that reads how many wishes there are.
//
// Every write locks the leader row FOR SHARE and looks at its epoch and its holder,
// so [Store.Lead] can only raise the epoch when no write of an earlier leader is
// under way. One that does not end within 250 ms is ended with its session: the
// server process of a frozen relay would wait for ever for the relay to read an
// answer. That needs no more than the role that the relays share.
//
// # Claims
//
// One statement for each outbox locks the leader row, updates the rows, and
// tells from its own snapshot what became of those that it did not update. A row
// that is there, unsettled and still not updated was changed by somebody else
// under the statement; it is answered as not yet visible, never as settled.
//
// Where claims are not written, the statement locks the leader row and looks at those
// rows alone that did not come from the log. An outcome that finds no row is told by
// the transaction's number whether the row is gone or not visible yet: the log is
// ahead of what statements see, behind a synchronous standby by as long as that takes.
//
// A row whose status is none of the layout's pending and processing values
// counts as settled: somebody took it out of the relay's hands.
//
// # Locks
//
// A lock that another session holds delays a claim or an outcome by 250 ms at most
// (lock_timeout in the URL says otherwise). After that, and until 10 s after it last
// met a lock, the session passes over locked rows (SKIP LOCKED), so that a forgotten
// transaction stops no other row. Such a call is one transaction: it locks the leader row,
// then asks for the lock on each table (EXPLAIN of a write takes it and fires no trigger),
// for 500 ms at most, and then writes the rest. Rows of a table that it does not get
// are answered as such.
//
// # Parked rows
//
// The table parked holds them, durably, with one index for each way to look for
// them: by lane and seq, by id, and by seq. The whole number of a transaction that
// was not visible yet is kept with its row, so that it can be told for ever. An
// outcome looks whether its row is settled by what it and others have written, and
// forgets the parked row in the same transaction if so.
//
// The ids, kinds and groups of the own tables are bytes, in UTF-8, so that a database
// of any encoding takes all of them; convert_from(id, 'UTF8') shows them. An index has
// the first 512 bytes of an id, since it takes none of more than about 2700.
//
// A view leaves out the ids that were parked when it was opened: up to 2000 by
// a hash, more by a lookup for each row.
//
// # Dead letters
//
// Rows are chosen first, without a lock, because that may read a large table. A
// second statement writes those that are still FAILED, looks at the leader row
// and waits for a locked row as outcomes do: 1 s at most (lock_timeout in the
// URL says otherwise).
//
// # Replays
//
// Wishes are written without an epoch: each adds 1 to the relay's row of the table
// wish first, which puts them in an order. All else is fenced as every write is. The
// rows of a replay stand in replay_row with an index for each way to look for them:
// by lane and n, and by n alone, which finds the lanes in the order of their first
// rows. What is sent is deleted and counted in one statement, asynchronously: after a
// crash of the server these rows are sent again.
//
// # Retention
//
// Delivered rows are deleted on the operator's session, a few blocks of the table
// at a time, past rows that somebody has locked: see Prune.
//
// # Types
//
// The types of the outbox's columns are looked up once for each session. Values
// are bound in the type of their column, so indexes on the column serve. Ids
// travel as the type's own text. The payload may be of any type; bytea is given
// as raw bytes, everything else as the type's text.
package postgres
