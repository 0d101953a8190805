// Package replay makes named checkpoints and runs replays for the leader.
//
// # Wishes and states
//
// Anybody writes wishes into the relay's own tables: for a checkpoint, for its end,
// for a replay, for its pause or its end. The [Desk] of the leader reads them when it
// begins and whenever it is told that there are new ones, and writes what became of
// them, under its epoch.
//
// # A job
//
// A replay is a job. Its rows are copied first, in the order of their commits, out of
// the log or the table into an own table; no message group stands meanwhile. Then they
// are played: group by group, while the group's live rows wait. What is left in the
// own table is the job's cursor, so a successor goes on with what it finds there. A
// long job copies and plays in turns, so that neither the own table nor the server's
// log grows without bound. Jobs run one at a time, in the order in which they were
// asked for.
//
// A job ends where the log is when it begins: at a marker that came back through the
// lanes. Every row at or below it is in a lane, parked or settled by then, so the
// table tells which of them were delivered. Those are sent; one that is still to come
// comes by itself, and one that FAILED is for the dead letters. A row that was deleted
// since is sent from the log: nothing tells whether it was delivered before.
//
// # Failure
//
// A row leaves the own table only when its receiver took it or refused it for good, or
// when it was passed over. After a crash the rows in flight are sent again: at most the
// window of rows in memory. A job that cannot go on to its end says so: one that began
// on the log and loses it fails, and never goes on from the table.
package replay
