// Package replay creates named checkpoints and runs replays for the leader.
//
// # Requests and states
//
// Any process may write a request into the relay's tables: to create or delete a
// named checkpoint, or to start, pause, resume or cancel a replay. The leader's
// [Controller] reads the requests when it starts and whenever it is notified of new
// ones. It writes the resulting states under its epoch.
//
// # A job
//
// A replay is a job with two phases. It first copies its rows from the log or the
// table into one of the relay's tables, in commit order. Live rows of all groups are
// delivered meanwhile. It then plays the copied rows group by group, and the live
// rows of a group wait during its turn. The copied rows that are left are the job's
// cursor, so a new leader continues with them.
//
// A long job alternates between copying and playing, so that neither the relay's
// table nor the server's log grows without bound. Jobs run one at a time, in the
// order of their requests.
//
// A job ends at the position of the log at which it starts: the position of a marker
// that came back through the lanes. Every row up to that position is in a lane,
// spilled or settled by then, so the table has the status of each.
//
//   - A COMPLETED row is sent again.
//   - A row that is not delivered yet is skipped, because its lane delivers it.
//   - A FAILED row is skipped, because dead letters are requeued separately.
//   - A row that was deleted since is sent from the log, because nothing records
//     whether it was delivered.
//
// # Failures
//
// A copied row is deleted only after its receiver accepted it or refused it for good,
// or after the job skipped it. After a crash the rows in flight are sent again: at
// most the rows in memory. A job that cannot be completed reports the reason. For
// example, a job that started on the log and loses it fails, and never continues from
// the table.
package replay
