// Package store is the contract between the relay and the tables it works on:
// what a row is, which states it goes through, how a relay claims rows and
// writes their outcomes, and how its checkpoint is kept.
//
// # Model
//
// An outbox is a table (or collection) that a service fills in the same
// transaction as its business data. A [Layout] maps such a table onto an
// [Item]: which columns hold the id, the kind, the message group and the
// payload, and how the state of a row is kept.
//
// A row goes PENDING → PROCESSING → COMPLETED or FAILED. [Claimer] moves rows
// to PROCESSING, [Settler] writes outcomes. A row is settled when COMPLETED or
// FAILED is durably written (or, where delivered rows are deleted, when it is
// gone).
//
// # Without claims
//
// Where [Layout.Unclaimed] is set a claim writes nothing: it is the fenced read of
// the leader row, and a row stays PENDING until its outcome. It looks only at rows
// whose payload is wanted and at those without a Txn: they were read from their
// table, and may have been settled since. Of all others it takes the log's word, so
// that a row which somebody has cancelled in the table is Claimed as well. Such a row
// may not even be visible: then its outcome comes [TooEarly]. After a change of
// leader nobody can tell which rows were in flight, and all of them are sent again.
//
// # Fencing
//
// A relay is the one leader of its outboxes. Each start raises the [Epoch] in
// the leader row of the relay's name. Every write is made under a lock on that
// row and only while it still holds the writer's epoch; otherwise nothing is
// written and the call returns [ErrNotLeader]. A plain subquery on the epoch is
// not enough: a write that began before the change of leader would still land.
//
// # Durability
//
// Claims and COMPLETED may be committed asynchronously: a server crash may take
// them back. FAILED is always committed synchronously, because the next row of
// its group leaves on the strength of it, and so are [Holds] and what is done to
// [OpenDeadLetters]. [Checkpoints.SaveCheckpoint] is synchronous and is the barrier:
// once it returns, everything that had been written before it began survives a
// crash. Only then may the log be acknowledged.
//
// # Locks of other sessions
//
// A session that keeps rows or a table locked must not hold up other rows. [Claimer] and
// [Settler] wait for a lock a short while; then they answer for the locked rows, or for
// all rows of the locked table, and write the rest. The caller waits for a locked table
// with [TableAwaiter] and asks again for a locked row.
//
// # Where this is implemented
//
// One folder per database. Package storetest holds one suite that every
// implementation passes, once for each kind of state.
package store
