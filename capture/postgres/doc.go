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
package postgres
