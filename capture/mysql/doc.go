// Package mysql is the place of the source that reads the binlog of MySQL and
// MariaDB. This page says how the binlog fits the contract of a source, and what
// its store does on the other side.
//
// # Open
//
// A position is a GTID set in the server's text form. The origin is the flavour
// and the server's UUID (MySQL) or domain and server id (MariaDB). Open checks
// log_bin, binlog_format=ROW, binlog_row_image=FULL, an empty
// binlog_row_value_options, a retention of a day or more and the grants
// (REPLICATION SLAVE, and REPLICATION CLIENT or BINLOG MONITOR), and names all
// that is wrong in one *capture.NoStreamError. The log is intact if the server
// has purged nothing that the checkpoint's set lacks (gtid_purged on MySQL; the
// oldest binlog's GTID list on MariaDB). Nothing is kept on the server for the
// relay: its binlog expires by time, so Discard is nil.
//
// A cut differs between the two. MariaDB opens START TRANSACTION WITH CONSISTENT
// SNAPSHOT in the view, which takes binlog file and position with the snapshot;
// BINLOG_GTID_POS makes a GTID set of them. So views.View(ctx, "") comes first,
// Opening.From is View.Position and Overlap is false. Reading gtid_binlog_pos
// instead loses rows: the binlog is written before a row is visible. MySQL has no
// such pair. There gtid_executed is read first, then the view is opened: nothing
// is lost, but rows committed in between are in both, so Overlap is true and the
// relay drops from the backlog what the stream brings up to a marker that it
// writes after the view was read.
//
// # Run
//
// A BinlogSyncer without its own retries is made for each run, from the position
// that capture.Resume names, with heartbeats, a read time-out and a small event
// buffer. The server sends from a GTID set on exactly, so no transaction at or
// below From comes again; one sent in part comes whole and Resume skips the rows
// by count. A GTID event opens a transaction, rows events of other tables are
// left out while they are still encoded, the XID event ends it: the position is
// the set with this GTID added. The last part of a transaction keeps at least
// one row back, as Resume asks. Transactions of other tables give positions
// without rows. A purged log (error 1236 with that text, since the same number
// also stands for a duplicate replica) is a *capture.LostError.
//
// Compare takes a as before b if b's set contains a's and more; sets of one
// origin that a relay emits are nested. Item.Txn is 0: the claim locks rows and
// so finds out by itself.
//
// # Pausing
//
// A dump that is not read dies by net_write_timeout. So a send that waits for
// 10 s closes the connection, and when the batch is received at last, the dump
// opens again after it. Run does that inside: for Follow nothing was lost. A pause inside a
// transaction goes on by row count, the same way.
//
// # Acknowledge and Mark
//
// Acknowledge has nobody to tell: the checkpoint row holds the position and the
// server keeps its log by time. A relay that falls behind the retention finds the
// log lost. Mark writes the token into a column of the relay's own marker row;
// the binlog brings the update back in commit order. The store's own tables need
// no publication for that: the binlog holds every table.
//
// Two relays with one server_id evict each other or, with different UUIDs, do
// not notice each other. Neither fences: the lease and the epoch do.
//
// # The store's side
//
// Claims run at READ COMMITTED: SELECT … WHERE id IN (…) FOR UPDATE, which waits
// for inserts that are not committed yet whatever the plan is (a bare UPDATE may
// skip them), then the leader row LOCK IN SHARE MODE with its epoch, UPDATE,
// commit. innodb_lock_wait_timeout is 2 s; error 1205 splits the claim in
// halves, and what is still locked is NotYetVisible. SKIP LOCKED would turn a
// locked row into one that seems gone. Outcomes check the epoch under the same
// lock. How durable a commit is belongs to the server, not to a session: with
// innodb_flush_log_at_trx_commit=1 and sync_binlog=1 every commit is, and
// SaveCheckpoint is a barrier by itself; Check says so where they are not. Sessions
// have wait_timeout=4, so that those of a frozen leader die.
package mysql
