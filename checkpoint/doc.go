// Package checkpoint tracks the progress of a relay: the log position below which
// every row is settled or spilled, the part of it that survives a crash, and the log
// that the database can discard. It also starts a relay from its checkpoint.
//
// # Model
//
// Batches enter the [Tracker] in commit order and get a [Ticket]. Their rows settle
// in any order. The checkpoint is the low watermark: the position below which no
// ticket is open. A maximum would be wrong, because groups are delivered in parallel
// and an earlier row may still be in flight.
//
// # The barrier
//
// Settled rows may have been committed asynchronously. The [Saver]
// therefore works in this order:
//
//   - It reads the watermark.
//   - It writes the checkpoint row synchronously. That also flushes everything that
//     was committed before it.
//   - It acknowledges that watermark. Rows that settle after the read wait for the
//     next round.
//
// # Failures
//
// A watermark that is too low costs duplicates, and the claim filters them out: it
// finds the rows settled. A watermark that is too high loses rows. So in doubt the
// watermark stays:
//
//   - A failed save acknowledges nothing.
//   - A part of a transaction has no position.
//   - A batch that is never done retains the log until a restart.
//
// # Marks of legs
//
// A leg of an outbox with routes has a watermark of its own; see Trackers. Its saved mark passes no row
// that the leg never had, because:
//
//   - Every batch enters the tracker of every leg, with the number of rows that the join gives the
//     leg, before these are appended to lanes. A batch that could not be joined enters none.
//   - The join leaves a row out for a leg only if its routes do not match it, its mark of the start has
//     passed it, or the row's record or its settled state says that the leg has ended or spilled it.
//   - A leg whose mark is ahead while others read again keeps the position of its mark. Only a batch
//     behind that position moves it. Where the position of a transaction is not known, nothing is
//     passed: the leg gets such rows again.
//   - A mark is the position and the seq of one batch, read under one lock. The checkpoint is the
//     least mark, so the log is read from it for all.
//   - The end of a leg of a row that has a record is in the record before the row counts as done here.
//     So after a restart a mark and the records never contradict each other.
//   - A leg without a saved mark, because its route is new or its outbox comes back, starts at the
//     checkpoint. It gets no rows from before, and none that the other legs have settled.
//   - A renamed leg keeps its mark. If it takes over a leg with a mark, it starts at the checkpoint.
//   - After a snapshot no mark holds, and none is saved before the backlog is done for each leg.
package checkpoint
