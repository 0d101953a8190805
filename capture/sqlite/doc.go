// Package sqlite captures outbox rows from a SQLite file through a log table that triggers
// write. It requires WAL mode, see store/sqlite.
//
// # Objects in the file
//
// A table sluicebox_log_NAME for the relay of that name, and a trigger on each outbox table.
// For each row, in the inserting transaction, the trigger writes a number, the outbox, the
// row's id and the time into the log table. The number is AUTOINCREMENT: SQLite never reuses
// it, even after rows of the log are deleted or the file is vacuumed.
//
// A row in sluicebox_log identifies the log by a random text. The source replaces that text
// whenever it had to create a missing object. For example, an outbox table that was
// recreated has lost its trigger. A checkpoint from before such a gap therefore never
// matches the log after it.
//
// The log of a relay that was decommissioned keeps growing. To remove it:
//   - First drop the triggers whose names begin with sluicebox_log_NAME. Without the table
//     they would refuse every insert.
//   - Then drop the table sluicebox_log_NAME.
//   - Then delete the relay's row in sluicebox_log.
//
// # Positions
//
// A position is a number of the log, in decimal digits. SQLite has one writer at a time, so
// numbers are assigned in commit order, and a commit makes all of its rows readable at once.
//
// The log does not record where a transaction ends, and the source does not need it. Reading
// can resume after any number, because the rest of its transaction is in the log. So every
// batch has a position, even if it holds only a part of a transaction. Rows carry no Txn,
// because a row in the log is always visible to the claim.
//
// # The snapshot
//
// The triggers exist before the view of the tables opens. The view reads the log's counter
// in its own snapshot (View.Position of store/sqlite). Each row in the view either was
// inserted before the triggers existed or has a number up to the counter. Every later insert
// has a higher number. So the view and the position match exactly.
//
// # The stream
//
// A row is sent as it is when it is read. A row that was deleted before that is left out,
// and the position moves past it. Its claim could only report it gone, and after a restart
// most of these rows were delivered and deleted. So a table without a state must keep its rows
// until they are delivered.
//
// On Linux, an append to the WAL file wakes the reader, which then checks whether another
// connection has committed (PRAGMA data_version). The append happens a moment before the
// commit is readable, so the reader repeats the check with a growing backoff. Without
// appends it checks each second. On other systems, and if the kernel has no inotify watch
// left, it checks every 25 ms.
//
// The reader watches only the WAL file and opens no descriptor on it. Closing a descriptor
// of the database would release the POSIX locks that SQLite holds for the process. That
// rules out file watchers that open the watched files.
//
// # Acknowledging
//
// A run deletes the log up to the acknowledged position, 500 rows to a transaction and at
// most every 100 ms. Without acknowledgements it writes nothing.
//
// Committed is the time of the insert, by the clock of the machine that runs the service.
// The commit follows it.
package sqlite
