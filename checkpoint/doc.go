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
package checkpoint
