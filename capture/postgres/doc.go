// Package postgres reads a PostgreSQL server's log through a logical
// replication slot with the pgoutput plugin. It needs PostgreSQL 14 or later.
//
// # What it keeps on the server
//
// A publication and a slot, both of the relay's name. The publication holds the
// outbox tables and publishes inserts only, so that the relay's own updates
// produce no output. It is made before the slot: a slot that is older than its
// publication cannot be read on some versions and silently misses rows on
// others.
//
// # The stream
//
// One goroutine owns the replication connection, for reading and for writing. A
// read is bounded by the time at which the next status is due; Acknowledge and
// the end of the context wake it by moving that bound into the past. Half-read
// messages survive that.
//
// A status carries one position, the highest acknowledged, as written, flushed
// and applied: the server gives the log before it away. While a receiver lets a
// batch wait, nothing is read and a status goes out each second; the server
// reads statuses also while its own send is blocked.
//
// # Positions
//
// A position is an LSN in the server's text form: the end of a commit, or the
// place that a keepalive names while no transaction is open. The latter moves
// while only other tables are written. Where nothing at all is written, a
// heartbeat message moves it.
//
// # What is refused
//
// A message that cannot be decoded, a NULL id and a missing column end the run:
// no row is left out silently. Truncate, Update and Delete messages are not
// rows of an outbox and mean nothing here.
//
// # A lost log
//
// The publication and the tables are known by their OIDs and by the transactions
// that wrote the publication, so that what was changed and changed back is seen
// too. This is part of the origin: it is compared when a source opens, when it
// connects again, and each 5 s beside the stream. Rows that were inserted while
// they were not published are in the tables, where a cut finds them. A table that
// bears another name for a while is the same table.
//
// Whatever passes by itself is an ordinary error: a connection, a server that
// starts or ends, for 10 s a slot or walsender that somebody else uses, and a few
// times a place in the log that cannot be read. What does not pass becomes a
// *capture.LostError or a *capture.NoStreamError by then.
//
// # Another timeline
//
// A promoted standby and a server that was restored go on in a timeline of their
// own. A run ends there, and Open goes on from the checkpoint without a cut if the
// slot is there and stands no further, and if the checkpoint lies before the place
// where the timelines parted: up to there both logs are the same. What comes
// after it is then read as this server has it, in commit order. Anything else is
// a cut.
//
// The slot is made as a failover slot where the server knows them (version 17). A
// standby takes it over with sync_replication_slots = on, hot_standby_feedback =
// on, primary_slot_name, and a dbname in primary_conninfo. With an asynchronous
// standby, rows may have been delivered that the promoted server does not have;
// synchronized_standby_slots on the primary holds them back until it has.
//
// A slot that came with the files of a backup will do as well. Its log and the
// catalog rows that it needs behind the checkpoint are there: the server that was
// backed up kept them for as long as that checkpoint was in its tables. What it
// needs before the checkpoint may be gone, which is an error at most: nothing of
// that is sent.
//
// # Making a slot
//
// The server makes a slot only when every transaction has ended that was open
// before, in any of its databases. One that is older than Config.SlotTimeout is
// not waited for: see [OldTransactionError].
//
// # The past
//
// The relay's own slot lets the log go that is settled. Log is kept for a checkpoint
// (RetainLog) by a copy of that slot, made before the checkpoint and never moved; it is
// read once more (Again) through a temporary copy of the copy. The checkpoint's origin
// is compared as Open does: what was published another way since cannot be read.
//
// A kept slot holds back the catalogs' old rows too, and max_slot_wal_keep_size and
// idle_replication_slot_timeout take it like any other: RetainedSlots tells.
//
// # The server's shutdown
//
// A fast shutdown waits for the receivers of the log until they have acknowledged
// everything. So a session that only listens goes with each run: when the server
// ends it, the replication session is closed at once.
package postgres
