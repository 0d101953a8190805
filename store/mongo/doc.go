// Package mongo implements the store on MongoDB 5.0 and later. It needs a replica set of
// any size; a standalone server works with weaker guarantees (see Without a replica set).
//
// # Documents
//
// An outbox is a collection. The columns of its layout are fields, or dotted paths through
// subdocuments. FlowCatalyst's collections have three layouts: [FlowCatalyst],
// [OutboxMessages] and [OutboxMessagesText]. A layout says how times are written
// (store.Layout.TextTimes); nothing is guessed. Package document defines how BSON values
// map to an item.
//
// Ids travel as text, which does not keep the BSON type. A filter therefore names every
// value with that text ({$in: ["507f…", ObjectId("507f…")]}), and an index serves each of
// them. The ids of a collection should have one type: a claim refuses two documents whose
// ids differ only in type, and names them. Whole-number ids are the usual cause, so such
// rows are always read before they are written.
//
// # Sessions
//
// A [Store] has one client, opened by the first call, and one writing session. All writes
// except some outcomes (see below) run in that session, one after the other in arrival
// order. Most are transactions that begin by updating the leader document, so two at a time
// would only conflict.
//
// Claims and outcomes that wait at the same time share a transaction: one leader update and
// one commit. If one of them fails, each gets its own transaction. While claims keep
// arriving, COMPLETED outcomes wait up to 10 ms for the next claim instead of taking a turn
// of their own.
//
// Each read has its own causally consistent session with majority read concern, so it sees
// everything the store has written. A read of records and queues sees one snapshot. If that
// is older than the store's writes, as on a new primary, it waits in such a session and
// reads again. A command without an answer within store.MinLockLease fails.
//
// # One leader
//
// The lock is a lease of 5 s by the primary's clock, in its own document, and each ping
// extends it. The lease is a second longer than store.MinLockLease because the clocks of
// two members may differ by that much. A relay that crashes keeps the lease until it
// expires. After extending it, a ping reads the number of requests. The count is not in the
// lease document because a request is a transaction, and a ping would have to wait for it.
//
// Every write starts by updating the leader document, matched by epoch and holder: {_id,
// epoch, holder}, {$inc: {n: 1}}. The update matches nothing once another relay has raised
// the epoch. It conflicts (WriteConflict) while another transaction has changed the
// document, so of two writes one commits first and the other sees it. A plain read of the
// epoch would not fence: a write that began before the change of leader could still land.
//
// # Writes without a transaction
//
// While the store holds the lock, small claims and small groups of COMPLETED and PENDING outcomes
// skip the transaction, because a transaction is three round trips and a single update is one.
// Outcomes use a second session for this, so claims do not wait for them. Each document is
// updated independently, and time keeps out a stale leader:
//
//   - Grant: the lock, and each ping, brings a grant. It ends with the lease by the
//     primary's clock ($$NOW). It lasts equally long by the cluster time
//     ($$CLUSTER_TIME), which every write advances and no election sets back.
//   - Fence: every update names both ends, less a second, in its filter. The server
//     itself matches nothing once either has passed. Nobody else gets the lock before
//     both have passed (the lease's fence is the second), so skewed clocks cannot
//     produce two leaders.
//   - Running updates: an update takes at most 250 ms on the server. A new leader ends
//     updates that still run and waits for them before it raises the epoch. $currentOp
//     shows them to the same user.
//   - Release: releasing the lock revokes the grant, unless an update is in flight or
//     was not answered, because it might still arrive.
//   - Fallback: if an update does not match every expected document, the transaction
//     does the work. The transaction is always used for ids that several values may
//     have, e.g. ObjectIds, because one update could change both documents.
//   - Other processors: with a takeover timeout, claims and PENDING outcomes always use the
//     transaction. After an update and the transaction of the fallback, a row would become
//     PENDING twice, the second time after another processor has claimed it.
//   - No grants: a mongos gives none, and neither does a replica set whose cluster time
//     is ahead of its primary's clock.
//
// Deleting the lease document while a relay leads removes this fence.
//
// # Frozen leaders
//
// The leader document also names the sessions of the leader's writes. The next leader kills
// them before it raises the epoch. Otherwise a transaction left open by a frozen relay
// would hold the document until the server ends it, a minute or more later
// (transactionLifetimeLimitSeconds). A user may kill only its own sessions, so relays with
// the same name should log in as the same user.
//
// # Commits
//
// Every commit waits until a majority has it on disk. If the answer is lost, the store
// repeats the same commit for at most 4 s; a new primary answers it too. Only a transaction
// known to be uncommitted is retried (TransientTransactionError). If the result stays
// unknown the call fails, and writing the same again is safe.
//
// A claim's answer is valid only once its transaction commits. A deposed primary that has
// not noticed therefore cannot report a document as gone: its commits reach no majority. A
// change stream delivers only majority-committed inserts, so a document that the
// transaction does not find is gone. [Store.ReadSettled] has no transaction, so it first
// writes a document of its own for the same reason.
//
// # Claims
//
// One update claims the open rows that have the same retry count, as the caller knows it, and its
// match count confirms them. So the claim of a row that is retried costs no more than its first
// one. The store reads the documents only if the count is short, or if other sessions' claims must
// be respected.
//
// A document whose status is neither pending nor processing counts as settled: another
// program took it out of the relay's hands. A missing boolean is false, because services often
// add the field with the delivery.
//
// # Contended documents
//
// A document changed in another session's open transaction conflicts with a claim or an
// outcome. After a short wait (40 ms for claims, 250 ms for outcomes) the call bisects
// until that document is alone. The claim then answers not yet visible; the outcome answers
// locked. For the next 10 s, calls write that document separately, without waiting, in at
// most 16 failing transactions, because each failure identifies just one contended
// document.
//
// # Views
//
// A view is a session with snapshot reads, and its atClusterTime is View.Position. If payloads
// are left out, the size of a payload that is not text is its BSON size. A view excludes lanes
// on the server as far as their groups are texts and a few conditions select them. The server keeps the snapshot for 5 minutes
// (minSnapshotHistoryWindowInSeconds). That limits how long an initial backlog may take to
// read and spill: enough for about three million rows. Times stored as text sort as text,
// so writers should use the same number of digits for all of them.
//
// # The relay's collections
//
// They are in the database of the URL, and their names begin with sluicebox_. Every _id
// begins with the relay's name, except that of the version in sluicebox_meta.
//
//   - sluicebox_leader and sluicebox_lease: the leader and the lock.
//   - sluicebox_record: the records of package ledger. The body is JSON text, so that it is
//     read as it was written. In mongosh, JSON.parse(doc.body) shows it.
//   - sluicebox_queue: the spilled rows, whose queue is "", and the rows of replays. Their
//     attributes are JSON text too.
//   - sluicebox_marker: written by the source.
//
// A request runs in a transaction of its own, without the leader. It first increments the
// version of the record that counts requests, which orders them. The leader writes
// everything else, in its one session.
//
// The _id of a row contains its number. An index finds the rows of a lane and counts the
// rows of all lanes, and another tells which rows are spilled; both answer without a
// document. To find the heads of lanes, the store walks the rows by number and checks for
// each new lane whether it has earlier rows.
//
// Several writes of records travel as one command. The next batch of a replay does not read
// the record that the last one wrote: it compares the version when it writes.
//
// # Without a replica set
//
// A standalone server has no transactions, snapshots or change streams. The store still
// works for a relay that polls, with these weaker guarantees:
//
//   - Fence: a write checks the leader document first and then writes. A relay frozen
//     in between, which wakes after another became leader, writes once more. It may
//     claim or settle documents that the new leader also has, so a row may be sent
//     twice, and a FAILED row may read COMPLETED or vice versa.
//   - Calls: a crash or an error in the middle of a call leaves a part of it written.
//     Outcomes are written before their holds and spilled rows, so no row is lost: a claim
//     detects that a spilled row is settled. But a lane may continue although a FAILED row
//     should block it.
//   - Replays: after a crash the counts may differ from the stored rows. The rows
//     decide what is left to send.
//   - Views: each page shows the collection as of the time it is read.
package mongo
