// Package mongo implements the store on MongoDB 5.0 and later: on replica sets of any
// size, and with weaker promises on a server that is no member of one.
//
// # Documents
//
// An outbox is a collection. The columns of its layout are fields, or paths with dots
// through subdocuments. FlowCatalyst's collections have three forms, [FlowCatalyst],
// [OutboxMessages] and [OutboxMessagesText]; a layout says how its times are written
// (store.Layout.TextTimes), and nothing is guessed. Package document says what the
// values of a document are in an item.
//
// Ids travel as text, which does not tell types apart: a filter names every value that
// has the text ({$in: ["507f…", ObjectId("507f…")]}), and an index serves each. So the
// id of a collection should have one type. Two documents whose ids differ in their type
// alone are refused when they are claimed, by name. Rows with whole numbers for ids, of
// which that may come, are always read before they are written.
//
// # Sessions
//
// A [Store] has one client, which the first call opens, and one session that writes. All
// writes but some outcomes (see below) go through that session one after the other, in the
// order in which they came: most are transactions that begin with the leader document, so that two at a time
// would take each other's turn away. Claims and outcomes that wait at the same time share
// one: it has one leader document to write and one commit to wait for. Where one of them
// fails in it, each has a transaction of its own. While claims come all the time,
// COMPLETED waits up to 10 ms for the next one, and for no turn of its own. Reads have a
// causally consistent session each, which sees what the store has written, and read what
// a majority has. A command that is not answered within store.MinLockLease fails.
//
// # One leader
//
// The lock is a lease of 5 s by the primary's clock, in a document of its own; a ping
// extends it. It is a second longer than store.MinLockLease, by which the clocks of two
// members may differ. A relay that dies without a word keeps it until it ends. A ping that
// has extended it reads how many wishes there are: in the lease's document a wish, which
// is a transaction, could hold a ping up.
//
// The first operation of each write is an update of the leader document by its epoch and
// its holder: {_id, epoch, holder}, {$inc: {n: 1}}. It finds nothing once another relay
// has raised the epoch, and while another transaction has the document it conflicts
// (WriteConflict), so of two writes one commits first and the other sees it. A plain read
// of the epoch would let a write land that began before the change of leader.
//
// A few new rows, and outcomes that say COMPLETED, are written without a transaction
// while the store has the lock: a transaction is three commands one after the other, and
// such an update is one. Outcomes have a session of their own for it, so that no claim
// waits for them. Each document stands for itself, and what keeps a stale leader out is
// time. With the lock, and with each ping, comes a grant: until the lease ends by the
// primary's clock ($$NOW), and for as long by the time that all members agree on
// ($$CLUSTER_TIME), which every write pushes on and no election sets back. Every update
// names both moments, less a second, in its filter: the server itself finds nothing once
// one of them has come. Nobody else gets the lock before both have (the lease's fence is
// the second), so members whose clocks differ cannot make two leaders. An update takes a
// quarter of a second on the server at the most; what still runs is ended, and waited
// for, before the epoch is raised: $currentOp shows it, to the same user. A lock that is
// released gives the grant back, unless an update is under way or was not answered: that
// might still come. Where an update does not find every document as expected, the
// transaction does the work. It does it always for ids that more than one value may have,
// ObjectIds among them: an update might change both of two documents. A mongos gives no
// grants, and neither does a set whose time is ahead of its primary's clock. Whoever
// deletes the lease's document while a relay leads takes that fence away.
//
// The leader document also names the session of the leader's writes, which the next
// leader kills before it raises the epoch: a transaction that a frozen relay left open
// would keep the document until the server ends it, a minute and more later
// (transactionLifetimeLimitSeconds). A user may kill its own sessions only, so relays of one
// name should log in as one user.
//
// # Commits
//
// Every commit waits until a majority has it on disk. One whose answer is lost is asked
// for again until the server tells, for at most 4 s: the same commit, which a new primary
// answers too. Only what is known not to be committed runs again
// (TransientTransactionError). If nobody can tell by then the call fails, and writing the
// same again is safe.
//
// A claim's answer is good only together with its commit. So a primary that was deposed,
// and does not know it, can call no document gone: its commits reach no majority. What a
// change stream brings was committed by a majority, and a document that the transaction
// does not find then is gone. [Store.Settled], which has no transaction, writes a document
// of its own first, for the same reason.
//
// # Claims
//
// Rows that are pending and were never tried are claimed by one update, which counts
// them; only where it finds fewer, or somebody else's claims count, are the documents
// read.
//
// # Documents that another session changes
//
// A document that another session keeps changed in an open transaction conflicts with a
// claim or an outcome of it. After a short wait, 40 and 250 ms, the call is split until
// that document stands alone: a claim calls it not yet visible, an outcome locked. For
// 10 s after that, calls write it apart from the others, without a wait, and in at most 16
// transactions that fail: each tells only that one of its documents still conflicts.
//
// A document whose status is none of the layout's pending and processing values counts
// as settled: somebody took it out of the relay's hands.
//
// # Views
//
// A view is a session with snapshot reads. Its atClusterTime is View.Position, see
// [SnapshotPosition]. Where payloads are left out, the size of one that is no text is that of
// its BSON. The server keeps the snapshot for 5 minutes
// (minSnapshotHistoryWindowInSeconds), which bounds how long a backlog may take to read,
// parking included: it is enough for about three million rows. Times that are texts sort
// as texts, so their writers should give all of them the same digits.
//
// # Own collections
//
// They stand in the database of the URL, and their names begin with sluicebox_. Every _id
// begins with the relay's name, but for that of the version in sluicebox_meta.
//
// # Replays
//
// A wish is a transaction of its own, which no leader has part in. Its count, in
// sluicebox_wish, comes first and puts the wishes in an order. All else is the leader's
// and goes through its one session. The rows of a replay are found by their n, which is
// part of their _id, and by lane and n. The lanes that come next are found by going
// through the rows by n: what lies before a lane's first row there is asked for.
//
// # Without a replica set
//
// A server that is no member of a replica set has no transactions, no snapshots and no
// change streams. The store works there too, for a relay that polls, and these are
// weaker:
//
//   - The fence: a write looks at the leader document first and then writes. A relay that
//     is frozen between the two, and wakes when another leads, writes once more. It
//     claims or settles documents that the other has too, so a row may be sent twice, and
//     a FAILED one may read COMPLETED or the other way round.
//   - Calls: a crash in the middle of one leaves a part of it. Outcomes come before the
//     holds and parked rows that go with them, so no row is lost: a parked row that is
//     settled is found out when it is claimed, but a lane may go on that a FAILED row was
//     to block.
//   - Replays: rows may be there that are not counted, and a count may lack rows that are
//     gone. What is left to send is what the rows say.
//   - Views: each page is read as the collection is then.
package mongo
