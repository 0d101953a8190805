// Package mysql implements the store on MySQL 8.0.20 and later and on MariaDB 10.6 and
// later. server.go holds the differences between the two.
//
// # Sessions
//
// A [Store] opens at most nine sessions, each for one kind of call:
//
//   - claims
//   - outcomes, two: the second while a call uses the first
//   - control: epoch, saving the checkpoint, the relay's tables
//   - spilled rows
//   - operator actions: holds, changes to dead letters, requests, named checkpoints
//   - replays
//   - the leader's lock
//   - waiting until another session unlocks a table
//
// Stores beside one share all of them but control and the lock; see [Store.Beside]. Each
// session serves one call at a time, and calls of different kinds never wait for
// each other. The first call that needs a session opens it. A call that fails drops its
// session, and the next call opens a new one. Each [store.View], and each count or
// listing of dead letters, has a session of its own.
//
// The server ends a session that is idle for store.MinLockLease (wait_timeout) and rolls
// back its open transaction, so a relay that is frozen or cut off keeps no row locked for
// longer. The sessions for claims, control and the first for outcomes are kept alive with pings; the
// others are reopened on demand. A call whose session has ended runs once more, unless it
// was at its COMMIT. Repeating a claim is harmless. An outcome that cannot know whether
// it was written returns an error that says so.
//
// Sessions use UTF-8 and UTC and reject values that do not fit (sql_mode), whatever the
// server's defaults are. Their transactions are READ COMMITTED because that level locks
// rows but no gaps: an application's INSERT never waits for the relay.
//
// # One leader
//
// The lock is GET_LOCK on a session of its own, under a name derived from the database's
// and the relay's. It is refused where several servers accept writes (Galera,
// multi-primary groups), because the lock of one server does not exclude relays on
// another. A ping is the single statement that reads the request counter, so this is the
// only session with autocommit on.
//
// Every write locks the leader row in share mode and checks its epoch and holder before
// it commits. AcquireLeadership can therefore raise the epoch only while no write of an
// earlier leader is open. A write locks its rows first and the leader row last, so that a
// new leader never waits for the row locks that a claim waits for.
//
// # Claims
//
// A claim locks its rows (SELECT … FOR UPDATE), which waits for transactions that are
// inserting or changing them. It then locks the leader row, updates the rows and commits.
// The binlog is ahead of what statements see, and a plain UPDATE skips rows whose insert
// has not committed. A row that the locking read does not find is gone.
//
// Rows fresh from the binlog need no locking read: each exists, is unsettled and was
// never tried. The UPDATE repeats these facts as conditions, and the claim commits only
// if it found every row. Otherwise it rolls back and claims again with the locking read.
// Triggers on the outbox also fire for the UPDATE that is rolled back. Where two rows may
// share an id, every claim and every outcome starts with the locking read.
//
// These statements usually travel as one packet, COMMIT included, and so do the outcomes
// of delivered rows: one round trip in place of three or four. The server stops at the
// first statement that fails, and the check of the leader row fails when another relay
// leads, so a fenced claim never reaches its COMMIT (see script). Three cases run step by
// step, one statement per round trip: a script that failed, a claim with a row that is
// gone, and every claim when the claims of other processors count (TakeoverTimeout).
//
// # Locks
//
// A row lock of another session delays a claim by at most 2 s and an outcome by at most 1
// s (innodb_lock_wait_timeout, which MySQL checks once a second). For the next 10 s after
// it meets a locked row, the session waits for no row lock:
//
//   - A locking read of a claim uses NOWAIT. If it meets a lock it is split until the
//     locked row is alone; that row is reported NotYetVisible.
//   - An outcome skips locked rows (SKIP LOCKED) and then reads the missing rows without
//     a lock: a row found that way is locked. A claim cannot use SKIP LOCKED because a
//     row whose insert has not committed would look gone.
//
// A lock on the whole table delays a claim by 1 s (lock_wait_timeout). On MySQL an outcome
// waits once more, because it must ask whether the lock is on the table. Row and table
// locks report the same error; a claim distinguishes them by the time it waited.
//
// All statements on rows name the index on the id. Otherwise the optimizer may scan a
// table that it considers small, and lock rows outside the call.
//
// A row whose status is neither the layout's pending nor its processing value counts as
// settled: someone took it out of the relay's hands.
//
// # Without claims
//
// Where claims are not written, or the table has no status for them, a claim locks and
// reads its rows and changes nothing, because it cannot distinguish rows of the binlog from
// rows that were read from the table.
//
// # Durability
//
// The server, not the session, decides how durable a commit is. With
// innodb_flush_log_at_trx_commit = 1, and sync_binlog = 1 where there is a binlog, every
// commit survives a crash of the machine. With other values a crash loses the newest
// commits: InnoDB may have lost them, or recovery rolls them back because the binlog lost
// them. In that case only the session that acquired leadership can save a checkpoint.
// MariaDB's default for sync_binlog is 0.
//
// # Views
//
// A view is a consistent snapshot. On MariaDB the snapshot comes with its binlog position
// (Binlog_snapshot_file and Binlog_snapshot_position, converted to a GTID set by
// BINLOG_GTID_POS), which View.Position returns. MySQL does not report it: the source
// reads gtid_executed first and then opens the view.
//
// # The relay's records
//
// Package ledger keeps them, in four tables: the leader, the records, the queue of spilled
// rows, and the queues of replays. They are in the database of the URL, and their names
// begin with sluicebox_. Keys are bytes, and lanes their SHA-256, so that no collation
// treats two keys as equal and no group is too long for a key.
//
// A queue has an index by lane and number and one by number, and every statement names the
// one that it uses. An index by id tells whether a row is spilled. The rows of replays need
// none, and the servers have no partial index: therefore they have a table of their own.
//
// Rows are added by a plain INSERT. If a row exists already, the server undoes that
// statement alone, and a read finds out which rows are missing.
//
// Requests are written without an epoch. Each one first increments the version of a record,
// which also orders them.
//
// # Types
//
// Each session looks up the column types of an outbox once, and again before it reports a
// row as gone, because the table may have been altered. Values are bound in the type of
// their column, so that indexes on the column can be used.
//
// An id travels as text:
//
//   - an integer or a decimal in digits
//   - BINARY and VARBINARY as 0x0a1b
//   - a UUID in lower case
//   - text in UTF-8, without the blanks that pad a CHAR
//
// Ids match byte for byte. A condition that can use the index finds the rows as the
// column compares, and a second condition, or the program, excludes rows that only a
// collation treats as equal. The payload is raw bytes where the column holds bytes,
// otherwise text in UTF-8. A NULL payload is empty.
//
// A kind, a part of a group and an attribute are texts like an id. A group over several columns
// is joined from their bytes, because the columns may have different collations.
//
// A DATETIME is read as UTC, a TIMESTAMP is an instant. Times are truncated to the
// precision of their column.
package mysql
