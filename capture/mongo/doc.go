// Package mongo reads outbox documents from MongoDB's change stream.
//
// # Positions
//
// A position is an oplog time (seconds since 1970 and an increment), followed by a hash of
// the stream's filter and the resume token of an event:
// 1795338000.5/9ae16a3b2f90404f/8267C867A2000000192B…. Without a token it is just before
// everything of its time; a snapshot yields such a position. Positions compare by time and
// then by token, because tokens sort as their events do. The origin consists of the replica
// set's name and id and the database. The id is left out if the role may not read it.
//
// # Open
//
// Open checks that:
//
//   - the server is a member of a replica set, version 5.0 or later,
//   - the stream's role may read the stream.
//
// It reports all faults in one *capture.NoStreamError. Sharded clusters are not supported.
// To check that the log is intact, Open opens the stream after the checkpoint and requests
// one answer. The relay creates and retains nothing on the server: the oplog is truncated
// by its size.
//
// The stream's role needs find and changeStream on all collections of the database (the
// role read has both), because one stream serves all outboxes. Two more privileges are
// useful. Reading local.oplog.rs shows how much log follows the relay's position;
// replSetGetConfig distinguishes two replica sets with the same name. The other role writes
// the marker collection, which belongs to the store.
//
// # The snapshot
//
// The view of the collections is a snapshot read with a known time (atClusterTime).
// OpenResult.From is that time plus one increment, so the view shows exactly the events
// below it, and the stream brings the rest.
//
// # The stream
//
// The stream watches the database for inserts into the outbox collections. It requests no
// current document state, because the server would have to look up each document that the
// relay updates. It passes slightly more than needed (replaced documents, other relays'
// markers), because a narrower filter costs the server more. The relay opens and reads the
// cursor with commands of its own: the driver's change stream reopens itself, which hides a
// lost log or reports it late. Events arrive once they are majority-committed.
//
// A resume token identifies a single event, even inside a transaction, and the stream
// resumes right after it. So every batch has a position, that of its last event, whether it
// holds a part of a transaction or parts of several. Nothing waits for the end of a
// transaction, because a change stream does not announce it. Item.Txn is 0: a document that
// the claim does not find is gone.
//
// The filter changes with the outboxes. The server finds a token only in a stream with the
// filter that it came from (otherwise it answers ChangeStreamFatalError, 280). After a
// filter change the stream therefore starts at the token's time, and the source drops the
// events up to the token.
//
// An answer without events also has a token. Every 10 s it becomes a position without rows,
// so that the position of an idle outbox does not become older than the oplog.
//
// # Losing the log
//
// These end the run with a *capture.LostError, and the next snapshot reads the current
// collections:
//
//   - an outbox's collection is dropped or renamed, another collection takes its place,
//     or the database is dropped
//   - the oplog no longer reaches back far enough (ChangeStreamHistoryLost, 286)
//   - the server belongs to another replica set, or was restored to an earlier state
//   - a document has no id to claim it by, or the stream stays unreadable at one position
//
// An event is limited to the size of a document (BSONObjectTooLarge, 10334). If one is
// larger, the stream reopens after the last sent event and leaves out payloads of more than
// 15 MiB for one answer. Item.Payload is then nil, and the claim reads the payload.
//
// # Pausing and silence
//
// If a send waits for more than 10 s the cursor is closed, because the server discards an
// idle one. Once the receiver has taken the batch and everything read with it, another
// cursor is opened after them. Run does this internally, so Follow sees no loss.
//
// A server may scan its oplog for minutes before it reaches an event. So after 2.5 s of
// silence the relay asks on another connection whether the server is alive and still the
// primary.
//
// # Acknowledge and Mark
//
// Acknowledge sends nothing to the server: the checkpoint holds the position. Mark writes
// the token into the relay's document in one of the store's collections, with majority
// write concern. The stream returns it in commit order.
package mongo
