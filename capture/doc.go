// Package capture is the contract of a source: it emits the rows of the
// outboxes out of a database's log, in commit order, each batch with its
// position in that log.
//
// # Model
//
// A relay opens a source at its checkpoint ([Source.Open]). Either the log is
// intact from there, or a cut is made: a position and a view of the tables that
// match. Then it runs the source ([Source.Run]), which sends batches until the
// context ends. [Follow] keeps a source running over lost connections; its
// [Resume] remembers what was sent, so that nothing is sent twice.
//
// # Pausing
//
// A relay pauses a source by not receiving from its channel. A pause is not a
// silence: while a send waits, the source keeps its connection alive, or gives
// it up and takes it up again at the last batch that was received. What is
// buffered meanwhile is bounded.
//
// # Acknowledging
//
// [Source.Acknowledge] says that the log up to a position is no longer needed.
// It returns at once and the source tells its server when it next speaks to it.
// A source never acknowledges anything by itself. So that idle databases keep
// no log, it emits positions without rows, which the relay acknowledges like
// any other.
//
// [Source.Retained] tells how much log has piled up behind the acknowledged
// position, and how much the database keeps at most. It works while the source
// is paused, which is when it matters.
//
// # The past
//
// A source that is a [Past] reads a part of its log once more, beside a relay that
// runs, for as long as the server has it. A [SlotRetainer] has it kept. To name a place:
//
//	kept, err := keeper.RetainLog(ctx, "friday")        // before the marker, if it is to be kept
//	err = source.Mark(ctx, token)                     // comes back in Batch.Marks, with its position
//	at := Place{Checkpoint: marked, Kept: kept}
//
// And to read from there up to a later marker, with a source that does nothing else:
//
//	err = past.Reach(ctx, at)                         // *LostError, *OriginError: read the tables
//	go func() { done <- past.Again(ctx, at, until, batches) }()
//	for b := range received(batches, done) {
//		at.Skip += len(b.Items)
//		if b.Position != "" {
//			at.Position, at.Skip = b.Position, 0
//		}
//		save(b.Items, at)                         // in one transaction: a successor goes on at it
//	}
//	err = <-done                                      // nil: all of it came; unless Final(err), try another source
//	err = keeper.ReleaseLog(ctx, "friday")
//
// # Rows in part
//
// A transaction larger than a batch comes in several batches. All but the last
// carry no position, so no checkpoint can fall inside a transaction.
//
// # Trust
//
// An error that is a [*LostError] or a *store.SetupError explains is final for the
// run, and so is store.ErrInterrupted, after which Open says from where to go on.
// Every other error is a lost connection, and running again mends it. A message
// that cannot be decoded is never skipped: it ends the run.
package capture
