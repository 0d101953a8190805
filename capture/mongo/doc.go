// Package mongo reads the documents of outboxes out of MongoDB's change stream.
//
// # Positions
//
// A position is a time in the oplog (seconds since 1970 and an increment), and behind
// slashes a hash of the stream's filter and the resume token of an event:
// 1795338000.5/9ae16a3b2f90404f/8267C867A2000000192B…. Without a token it stands just
// before everything of its time: so a cut has it. Positions are compared by their times
// and then by their tokens, which sort as their events do. The origin is the replica
// set's name and id and the database; the id is left out where the role may not see it.
//
// # Open
//
// Open checks that the server is a member of a replica set, of version 5.0 or later,
// that the outboxes are ordinary collections, and that the role of the stream may read
// it, and names all that is wrong in one *capture.NoStreamError. Sharded clusters are
// not read. Whether the log is intact is found out by opening the stream behind the
// checkpoint and asking once. Nothing is made or kept on the server for the relay: the
// oplog goes by its size.
//
// The role of the stream needs find and changeStream on all collections of the database
// (the role read has both), since one stream serves all outboxes. To read
// local.oplog.rs, and replSetGetConfig, are good to have: by the one the relay knows how
// much log is behind it, by the other it tells two sets of one name apart. The other
// role writes the collection of the markers, one of the store's own.
//
// # The cut
//
// The view of the collections is a snapshot read, which tells its time
// (atClusterTime). Opening.From is that time plus one increment: what the view shows is
// below, and what comes is above, exactly.
//
// # The stream
//
// A stream watches the database for inserts of the outboxes' collections. It asks for no
// state of a document, which would make the server look up each one that the relay
// updates, and lets a little more through than it needs (documents that are written
// anew, markers of other relays), since a narrower filter costs the server more. The
// cursor is the relay's own, opened and read by commands: the driver's
// change stream opens itself anew where it likes, and what is lost is then found out
// late or not at all. Events come once a majority has them.
//
// A resume token names the very event, also inside a transaction, and the stream goes
// on right behind it. So every batch has a position, that of its last event, whether it
// holds a part of a transaction or parts of several: nothing waits for the end of a
// transaction, which a change stream does not announce. Item.Txn is 0: a document that
// the claim does not find is gone.
//
// The filter changes with the outboxes. The server finds a token only in the stream of
// the filter that it came from (it answers ChangeStreamFatalError, 280): behind any
// other the stream begins at the token's time, and what is not behind the token is left
// out here.
//
// An answer without events has a token too. Each 10 s it makes a position without rows,
// which keeps the token of an idle outbox from growing older than the oplog.
//
// # What takes the log away
//
// A dropped or renamed collection, one that is put in the place of an outbox's, and a
// dropped database end the run with a *capture.LostError: the cut reads what is there
// now. So do an oplog that no longer reaches back (ChangeStreamHistoryLost, 286), a
// server of another set, one that was restored to an earlier state, and a document
// without an id that could be claimed.
//
// An event may be no larger than a document may be (BSONObjectTooLarge, 10334). Where
// one is, the stream begins anew behind what was sent and leaves payloads of more than
// 15 MiB out for an answer: Item.Payload is nil, and the claim reads it.
//
// # Pausing and silence
//
// While a send waits for more than 10 s the cursor is closed, as the server forgets one
// that is not used. When the batch is received, and all that was read with it, another
// is opened behind them. Run does that inside: for Follow nothing was lost.
//
// A server may read its oplog for minutes before it comes to an event. So a silence of
// 2.5 s is no end: the server is then asked, on another connection, whether it is there
// and still the primary.
//
// # Acknowledge and Mark
//
// Acknowledge has nobody to tell: the checkpoint holds the position. Mark writes the
// token into the relay's document in a collection of the store's, by majority; the
// stream brings it back in commit order.
package mongo
