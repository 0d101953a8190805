// Package capture defines sources. A source reads the log of a database and emits the rows
// that were inserted into the outboxes, in commit order. Each batch carries its position in
// the log.
//
// # Model
//
// A relay opens a source at its checkpoint ([Source.Open]). If the log is intact from there,
// the source resumes. Otherwise the source takes a snapshot: a position and a view of the
// tables as of that position. Then the relay runs the source ([Source.Run]), which sends
// batches until the context ends. [Follow] keeps a source running when its connection is
// lost. [Resume] records the last batch that was sent, so no row is sent twice.
//
// # Pausing
//
// A relay pauses a source by not receiving from its channel. While a send blocks, the source
// must not go silent, because the server would drop the connection. It either keeps the
// connection alive, or closes it and reconnects at the last received batch. A source buffers
// a bounded amount while it is paused.
//
// # Acknowledging
//
// [Source.Acknowledge] releases the log up to a position. It returns at once; the source
// reports the position to its server with its next message. A source never acknowledges
// anything by itself. It emits positions without rows too, so that an idle outbox does not
// retain log; the relay acknowledges them like any other. [Source.Retained] works while the
// source is paused, because log accumulates then.
//
// # History
//
// A [HistoryReader] reads a part of the log again, beside a running relay, as long as the
// server still has it. A [SlotRetainer] makes the server retain that part. To record a start
// point:
//
//	slot, err := retainer.RetainLog(ctx, "friday") // optional; before the marker
//	err = source.Mark(ctx, token)                  // returned in Batch.Marks, with its position
//	at := StartPoint{Checkpoint: marked, Slot: slot}
//
// To read from there up to a later marker, use a separate source:
//
//	err = history.CheckReachable(ctx, at) // *LostError, *OriginError: read the tables instead
//	go func() { done <- history.ReadRange(ctx, at, until, batches) }()
//	for b := range received(batches, done) {
//		at.Skip += len(b.Items)
//		if b.Position != "" {
//			at.Position, at.Skip = b.Position, 0
//		}
//		save(b.Items, at) // in one transaction, so that a successor resumes at it
//	}
//	err = <-done // nil: the range is complete; unless IsFinal(err), retry with another source
//	err = retainer.ReleaseLog(ctx, "friday")
//
// # Partial transactions
//
// A transaction larger than a batch arrives in several batches. Only the last one carries a
// position, so no checkpoint can fall inside a transaction.
//
// # Errors
//
// Three errors end a run for good ([IsFinal]):
//   - a [*LostError] or [*OriginError]: take a snapshot,
//   - a *store.SetupError: an operator has to act,
//   - store.ErrInterrupted: call Open again, which returns the position to continue from.
//
// Any other error is a lost connection, and Run can be called again. A source never skips a
// message that it cannot decode: the run ends.
package capture
