// Package postgres reads a PostgreSQL server's WAL through a logical replication slot
// with the pgoutput plugin. It needs PostgreSQL 14 or later.
//
// # Server objects
//
// The relay keeps a publication and a slot, both of its name. The publication contains
// the outbox tables and publishes inserts only, so that the relay's own updates produce
// no output. It is created before the slot. A slot older than its publication cannot be
// read on some versions and silently misses rows on others.
//
// # The stream
//
// One goroutine owns the replication connection, for reading and for writing. A read ends
// when the next status is due. Acknowledge and the end of the context wake it by moving
// the read deadline into the past. Half-read messages survive that.
//
// A status carries one position, the highest acknowledged one, as written, flushed and
// applied: the server can then discard the WAL before it. While the receiver does not
// accept a batch, the source reads nothing and sends a status each second. The server
// reads statuses even while its own send is blocked.
//
// # Messages
//
// An outbox without a table has the transactional logical messages with its prefix as rows. The
// members of their content are their columns; see store.MessageLayout. The server sends messages
// of every prefix, whatever the publication has. A message that is not as its layout says would be
// the same in every read of the WAL, so it does not end the run: it is a row with the attribute
// store.AttributeUnreadable, which is not sent and becomes FAILED.
//
// # Positions
//
// A position is an LSN in the server's text form. It is the end of a commit, or the
// position of a keepalive while no transaction is open. Keepalives advance it while only
// other tables are written. If nothing at all is written, a heartbeat message advances
// it.
//
// # Rejected input
//
// A message that cannot be decoded, a NULL id and a missing column end the run: no row is
// skipped silently. Truncate, Update and Delete messages are ignored, because they are
// not inserts into an outbox.
//
// # A lost log
//
// The source identifies the publication and the tables by their OIDs and by the
// transactions that wrote the publication, so a change that was reverted is detected too.
// They are part of the origin. It is compared when a source opens, when it reconnects,
// and every 5 s during the stream. Rows inserted while they were not published are in the
// tables, where a snapshot finds them. Rows that only the log has are read from the old slot
// before a new one replaces it, if a change of the publication is the only reason for the
// snapshot. A table that is renamed for a while remains the same table.
//
// Conditions that resolve by themselves are ordinary errors:
//
//   - a lost connection
//   - a server that starts or shuts down
//   - for 10 s, a slot or walsender used by another session
//   - a few times, an unreadable position in the WAL
//
// If such a condition persists, the error becomes a *capture.LostError or a
// *capture.NoStreamError.
//
// # Another timeline
//
// A promoted standby and a restored server continue on a new timeline. A run ends there.
// Open continues from the checkpoint without a snapshot if all of these hold:
//
//   - The slot exists and has not advanced past the checkpoint.
//   - The checkpoint lies before the point where the timelines diverged, because the WAL
//     is the same up to there.
//
// Later WAL is then read as this server has it, in commit order. In every other case Open
// takes a snapshot.
//
// Since version 17 the slot is created as a failover slot. A standby synchronizes it with
// sync_replication_slots = on, hot_standby_feedback = on, primary_slot_name, and a dbname
// in primary_conninfo. With an asynchronous standby, the relay may have delivered rows
// that the promoted server does not have. synchronized_standby_slots on the primary
// delays deliveries until the standby has the rows.
//
// A slot restored with a file-level backup works too. The WAL and the catalog rows it
// needs after the checkpoint are in the backup, because the original server retained them
// as long as that checkpoint was in its tables. WAL before the checkpoint may be missing.
// At worst that is an error, because nothing before the checkpoint is sent.
//
// # Creating a slot
//
// The server finishes a new slot only after every transaction that was open before, in
// any database, has ended. The source waits for no transaction older than
// Config.SlotTimeout: see [OldTransactionError].
//
// # History
//
// The relay's own slot retains only WAL that is not settled. RetainLog retains WAL for a
// named checkpoint with a copy of that slot, which is made before the checkpoint and
// never advances. ReadRange reads it through a temporary copy of the copy. The
// checkpoint's origin is compared as Open does: rows published differently since then
// cannot be read.
//
// A retained slot also holds back the catalogs' old rows. max_slot_wal_keep_size and
// idle_replication_slot_timeout invalidate it like any other slot; RetainedSlots reports
// that.
//
// # Server shutdown
//
// A fast shutdown waits until every walsender's client has acknowledged everything. So
// each run has a listening session besides the stream. When the server ends that session,
// the source closes the replication session at once.
package postgres
