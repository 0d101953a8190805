// Package mysql implements the store on MySQL 8.0.20 and later and on MariaDB 10.6 and
// later. What they do differently stands in one file, flavour.go.
//
// # Sessions
//
// A [Store] holds at most eight sessions: for claims, for outcomes, for control (epoch,
// checkpoint, own tables), for parked rows, for what an operator asks (holds, changes
// to dead letters, wishes), for replays, for the lock, and for waiting until a table that
// another session keeps locked is free. Each serves one call at a time, and no
// call waits for a call of another kind. They are opened by the first call that needs
// them; a call that fails gives its session up and the next one opens it again. A
// [store.View] has a session of its own, and so has each count or reading of dead
// letters.
//
// The server ends a session that has said nothing for store.MinLockLease (wait_timeout),
// and takes back what it left unfinished: a relay that is frozen or cut off keeps no
// rows locked for longer. So the sessions for claims, outcomes and control are asked
// for nothing now and then, and the others are opened again when they are needed. A
// call whose session is gone runs once more, but for one that was at its COMMIT. A claim
// does no harm twice; an outcome that cannot tell what it wrote says so.
//
// Sessions speak UTF-8, count time in UTC and refuse values that do not fit
// (sql_mode), whatever the server's own settings are. Their transactions are READ
// COMMITTED: those lock rows and no gaps between them, so no application that inserts
// ever waits for the relay.
//
// # One leader
//
// The lock is GET_LOCK of a session of its own, under a name made of the database's and
// the relay's. It is refused where several servers take writes (Galera, multi-primary
// groups): the lock of one of them keeps nobody else out. A ping is the one statement
// that reads how many wishes there are, so this session alone has autocommit on.
//
// Every write locks the leader row in share mode and looks at its epoch and its holder
// before it commits, so [Store.Lead] can only raise the epoch when no write of an
// earlier leader is under way. The rows come first, and the leader row last: whoever is
// to lead must not wait for what a claim waits for.
//
// # Claims
//
// A claim locks its rows (SELECT … FOR UPDATE), which waits for whoever inserts or
// changes them just now, locks the leader row, updates the rows and commits. The
// binlog is ahead of what statements see, and a plain update passes over rows whose
// insert has not ended. A row that is not there then is gone.
//
// Rows that the log has just brought need no look: each is there, open and was never
// tried. Their update says so in its conditions, and the claim goes on only if it has
// found as many rows as there are. Else it is taken back, and looks. Triggers on the
// outbox see the update that was taken back, too. Where two rows may have one id, every
// claim and every outcome looks first.
//
// These statements travel as one packet as a rule, its COMMIT included, and so do the
// outcomes of delivered rows: a round trip in place of four or three. The server stops
// at the first statement that fails, and the look at the leader row fails where another
// one leads, so a fenced claim does not reach its COMMIT (see script). Whatever fails is
// taken back and done again step by step, and so is a claim that finds a row gone, and
// every claim where the claims of others count.
//
// # Locks
//
// A row that another session keeps locked delays a claim by 2 s at most, and an outcome by
// 1 s (innodb_lock_wait_timeout; MySQL looks at it once a second). After that, and until
// 10 s after it last met a locked row, the session waits for no row. A claim's statement
// that meets a lock (NOWAIT) is split until the locked row stands alone, which is not yet
// visible. An outcome's passes over locked rows (SKIP LOCKED) and then reads those that
// are left without a lock: what is there is locked. A claim cannot do that: a row whose
// insert has not ended would seem gone.
//
// A table that is locked whole delays a call by 1 s (lock_wait_timeout), on MySQL once
// more where the call is for several outboxes, to tell which table it is. Both have one
// error; a claim tells them apart by the time that it has waited.
//
// All statements on rows name the index on the id. A server that thinks a table small
// would else read all of it, and lock rows that nobody asked for.
//
// A row whose status is none of the layout's pending and processing values counts as
// settled: somebody took it out of the relay's hands.
//
// # Without claims
//
// Where claims are not written, a claim locks and reads its rows and changes nothing:
// nothing tells those of the log from those that were read from the table.
//
// # Durability
//
// How durable a commit is belongs to the server and not to a session. With
// innodb_flush_log_at_trx_commit = 1, and sync_binlog = 1 where there is a binlog, every
// commit survives a crash of the machine. With other values a crash takes the last ones
// back, newest first: those that InnoDB has lost, and those that the binlog has lost,
// which recovery rolls back. A checkpoint is then saved only by the session that took
// the lead, see [Store.SaveCheckpoint]. sync_binlog is 0 on MariaDB unless it is set.
//
// # Views
//
// A view is a consistent snapshot. On MariaDB it comes with its place in the binlog
// (Binlog_snapshot_file and _position, as a GTID set by BINLOG_GTID_POS), which is
// View.Position. MySQL does not tell that: the source reads gtid_executed first, and
// then opens the view.
//
// # Replays
//
// Wishes are written without an epoch: each counts itself in sluicebox_wish first, which
// puts them in an order. What adds rows to a replay or takes them from it locks its row
// in sluicebox_replay first. The rows have one index for each way to look for them, by
// lane and n and by n alone, and every statement names the one that it is to use.
//
// # Own tables
//
// They stand in the database of the URL, and their names begin with sluicebox_. Keys
// are kept as bytes, lanes by their SHA-256, so that no collation takes two for one and
// no group is too long for a key.
//
// # Types
//
// The types of the outbox's columns are looked up once for each session, and again
// before a row is called gone: somebody may have altered the table. Values are
// bound in the type of their column, so indexes on the column serve. An id travels as
// text: an integer or a decimal in digits, BINARY and VARBINARY as 0x0a1b, a UUID in
// small letters, a text in UTF-8 without the blanks that fill a CHAR. It matches byte
// for byte: a condition that an index serves finds the rows as the column compares, and
// a second one, or the program, leaves out what a collation takes for the same. The
// payload is given as raw bytes where the column holds bytes, and as text in UTF-8 else.
//
// A DATETIME is taken for UTC, a TIMESTAMP is an instant. Times are cut to the digits
// that their column holds.
package mysql
