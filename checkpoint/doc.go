// Package checkpoint knows how far a relay has come: below which place in the
// log every row is settled or parked, what of that survives a crash, and what may be given
// back to the database.
//
// # Model
//
// Batches enter the [Tracker] in commit order and get a [Ticket]; their rows
// settle in any order. The low watermark, the position below which no ticket is
// open, is the checkpoint. A maximum would not do: with groups in parallel a row
// in the middle may still be in flight.
//
// # The barrier
//
// Settled rows may have been committed asynchronously. The [Keeper] therefore
// reads the watermark first, then writes the checkpoint row synchronously, which
// carries to disk all that was committed before it, and only then acknowledges
// that watermark. What settled after the watermark was read waits for the next
// round.
//
// # Trust and failure
//
// A watermark that is too low costs duplicates that the claim filters out: rows
// that the log brings again are found settled. One that is too high loses rows.
// So every doubt keeps it where it is: a failed save acknowledges nothing, a
// transaction in part has no position, and a batch that nobody reports done
// holds the log until a restart.
package checkpoint
