// Package sqlite reads the rows of outboxes in a SQLite file out of a log that
// triggers write. It needs WAL mode, see store/sqlite.
//
// # What it keeps in the file
//
// A table sluicebox_log_NAME for the relay of that name, and a trigger on each
// outbox table that writes into it, for every row, in the inserting transaction:
// a number, the outbox, the row's id, the time. The number is AUTOINCREMENT:
// it is never given out twice, though rows of the log are deleted and the file is
// vacuumed. A row in sluicebox_log names the log by a random text. Whenever
// something was missing and had to be made (a table that was made anew has lost
// its triggers, say), the log gets another name, so that no checkpoint from
// before the gap is taken for one behind it.
//
// A relay that is no longer wanted leaves a log that grows. To take it away, drop
// first the triggers whose names begin with sluicebox_log_NAME, then the table
// (without it they would refuse every insert), and delete the row.
//
// # Positions
//
// A position is a number of the log, in digits. SQLite has one writer at a time,
// so numbers are given out in commit order, and a commit makes all of its rows
// readable at once. The log does not tell where a transaction ends, and it need
// not: every number is a place to go on from, since what is behind it is in the
// log, whole transaction or not. So every batch has a position, also one that
// holds a part of a transaction. Rows carry no Txn: what is in the log can be
// claimed.
//
// # The cut
//
// The triggers are there before the view of the tables is opened, and the view
// reads the log's counter in its own snapshot (View.Position of store/sqlite).
// What it shows was inserted before the triggers were or has a number up to the
// counter; every later insert has a higher one. So the view and the position
// match exactly.
//
// # The stream
//
// A row is sent as it is when it is read. One that was deleted before is left
// out, and the position moves on: its claim could only find it gone, and after a
// restart most such rows were delivered and deleted.
//
// On Linux an append to the WAL file wakes the reader, which then asks SQLite
// whether another connection has committed (PRAGMA data_version). The append
// comes a moment before the commit can be read, so it asks again and again, less
// and less often. Long after an append it asks each second. Elsewhere, and where the kernel has
// no watch left, it asks each 25 ms. It watches the WAL file alone and opens
// none: closing a descriptor of the database gives up the locks that SQLite
// holds for the process, which rules out file watchers that open what they
// watch.
//
// # Acknowledging
//
// The log up to the acknowledged position is deleted, 500 rows to a transaction,
// 100 ms after the acknowledgement at the earliest. While nothing is acknowledged
// nothing is written.
//
// Committed is the time of the insert, by the clock of the service's machine; the
// commit follows.
package sqlite
