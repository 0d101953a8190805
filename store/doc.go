// Package store is the contract between the relay and the tables it works on: the states of
// a row, how a relay claims rows and writes their outcomes, and how it saves its
// checkpoint.
//
// # Model
//
// An outbox is a table (or collection) that a service fills in the same transaction as its
// business data. A [Layout] maps such a table onto an [Item]: it names the columns with the
// id, the kind, the message group and the payload, and how the table stores a row's state.
//
// A row goes PENDING → COMPLETED or FAILED, or by way of PROCESSING if it is claimed. [Claimer]
// moves rows to PROCESSING, [Settler] writes outcomes. A row is settled when COMPLETED or FAILED is
// durably written, or when it is deleted in layouts that delete delivered rows.
//
// # Without claims
//
// With [Layout.Unclaimed] a claim writes nothing: it is only the fenced read of the leader
// row, and a row stays PENDING until its outcome.
//
//   - The claim reads rows whose payload is requested and rows without a Txn. The latter
//     come from a read of the table and may have been settled since.
//   - The claim trusts the log for all other rows. For example, a row that was cancelled in
//     the table is Claimed as well.
//   - A Claimed row may not be visible yet; then its outcome is [TooEarly].
//   - After a change of leader, rows in flight cannot be distinguished from unsent rows, so
//     all of them are sent again.
//
// # Fencing
//
// One relay at a time is the leader of its outboxes. Each change of leader raises the
// [Epoch] in the leader row of the relay's name. Every write locks that row and succeeds
// only while the row holds the writer's epoch; otherwise nothing is written and the call
// returns [ErrNotLeader]. A plain subquery on the epoch is not enough, because a write that
// began before the change of leader would still commit.
//
// # Durability
//
// Claims and COMPLETED may be committed asynchronously: a server crash can undo them.
// FAILED is always committed synchronously, because the relay sends the next row of the
// group once FAILED is written. Writes through [Holds] and [DeadLetters] are synchronous
// too.
//
// [Checkpoints.SaveCheckpoint] is synchronous and is the barrier: once it returns, every
// write that finished before it began survives a crash. Only then may the relay acknowledge
// the log.
//
// # Tables that cannot store FAILED
//
// A layout may have no value for FAILED, or no state at all; see [Layout.Stores]. The relay's own
// records then say which rows are FAILED, and [Tables] alone do not know it: ledger.Store, which
// joins both, answers every claim, status and view as if the table did. Where only the log has the
// rows, see [Layout.LogOnly], the records keep their content, and no claim looks a row up.
//
// # Locks of other sessions
//
// A session that keeps rows or a table locked must not block other rows. [Claimer] and
// [Settler] wait a short time for a lock. After that they report the locked rows, or all
// rows of the locked table, and write the rest. The caller waits for a locked table with
// [TableAwaiter] and retries a locked row.
//
// # Implementations
//
// Each database has its own subpackage. Package storetest is the test suite that every
// implementation passes, once for each kind of state. Package ledger implements the
// interfaces of the relay's own records over a small interface that each database has.
package store
