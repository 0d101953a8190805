// Package mongo is the place of the source that reads MongoDB change streams.
// This page says how a change stream fits the contract of a source, and what its
// store does on the other side.
//
// # Open
//
// A position is a resume token in its hexadecimal text (_data), or, at a cut, an
// operation time, marked as such. The origin is the replica set's id and the
// database; for a sharded cluster the cluster's. Open checks that the server is a
// replica set or a cluster and that the role may run changeStream and find, and
// names all that is wrong in one *capture.NoStreamError. Whether the log is
// intact is found out by opening the stream after the token and asking once:
// error 286 says that the oplog no longer reaches back, 280 that the token does
// not fit the pipeline any more (the checkpoint keeps a hash of the pipeline;
// then startAtOperationTime takes the token's time). Nothing is kept on the
// server for the relay, so Discard is nil.
//
// At a cut views.View(ctx, "") opens a session with a snapshot read first. Its
// atClusterTime is View.Position, and Opening.From is that time plus one
// increment: what the view shows is below, what comes is above, and Overlap is
// false.
//
// # Run
//
// A stream watches the database for inserts of the outbox collections, after the
// token that capture.Resume names. It takes no status into its filter, which
// would make the server look up every document that the relay itself updates.
// A resume token names the very event, also inside a transaction, and the stream
// goes on right behind it. So every batch may carry a position, the token of its
// last event; a batch is what one answer of the server held, up to the bounds,
// and no batch is in part: nothing waits for the end of a transaction, which a
// change stream does not announce, and Resume never has rows to skip.
//
// The source asks with a bounded wait at the server (TryNext and a maxAwaitTime
// of 1 s), never with a context that expires, which kills the stream. The
// post-batch token of an empty answer is a position without rows: saved now and
// then, it keeps the token of an idle collection from aging out of the oplog. A
// stream that ends, an election among the causes, is an ordinary error; 286 and
// a dropped collection are a *capture.LostError and never tried again with the
// same token.
//
// Compare orders tokens by their bytes, which the server makes sortable, and
// operation times by their number. Item.Txn is 0: events are majority-committed,
// so a document that the claim does not find is gone.
//
// # Pausing
//
// While a send waits for more than a few seconds the cursor is closed, because
// the server would time it out; when the batch is received, a stream opens with
// resumeAfter the last event that was sent. Run does that inside.
//
// # Acknowledge and Mark
//
// Acknowledge has nobody to tell: the checkpoint holds the token and the oplog
// goes by size. checkpoint.max-hold is a share of the oplog's window. Mark writes
// nothing: it makes a majority read and remembers its operationTime with the
// token; the marker comes back once the stream has passed that time, which an
// idle stream does by its post-batch tokens.
//
// # The store's side
//
// Claims and outcomes are transactions with majority concern, one writer for
// both. The first operation is updateOne({_id: name, epoch: e}, {$inc: {n: 1}})
// on the leader document: it conflicts with any other leader's, so no read of the
// epoch can leak. A claim is one updateMany by ids, and a read only where the
// count differs. Before a new leader raises the epoch, it kills the old writer's
// session: the open transaction of a frozen one would hold the document. Every
// commit is by majority, so SaveCheckpoint needs no barrier of its own: what
// committed before it is as durable as it is. Leadership is a lease of 5 s in
// server time.
package mongo
