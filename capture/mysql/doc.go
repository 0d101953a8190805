// Package mysql reads the rows of outboxes from the binlog of MySQL and MariaDB. The two
// differ in transaction ids, in how a view of the tables gets its binlog position, and in
// a few statements. Everything else is the same.
//
// # Positions
//
// A position is a GTID set in the server's text format, followed by @ and the binlog file
// and offset, which Retained uses to measure the log. For example:
//
//	3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5@binlog.000003:4711+1795338000 (MySQL, with the file's creation time)
//	0-1-270@binlog.000003:4711 (MariaDB)
//
// Only the sets are compared: a is before b if b's set contains a's and more. The
// positions of one source are nested. The origin is the flavour with the server's UUID
// (MySQL), or with its domain and server id (MariaDB, which has nothing better: two
// servers may share both).
//
// # Open
//
// Open checks log_bin, binlog_format=ROW, binlog_row_image=FULL, an empty
// binlog_row_value_options, gtid_mode=ON, a retention of a day or more, the binlog filters
// and the types of the columns. One *capture.NoStreamError reports all problems.
//
// To find out whether the role may stream, Open requests the binlog and closes the
// connection. The same attempt shows whether the server still has the log behind the
// checkpoint. Nothing is created on the server for the relay: the binlog expires by time.
//
// The streaming role needs REPLICATION SLAVE. The other role needs REPLICATION CLIENT
// (MySQL) or BINLOG MONITOR (MariaDB), and it reads and writes the store's table of
// markers.
//
// # The snapshot
//
// On MariaDB the view of the tables is opened WITH CONSISTENT SNAPSHOT, which returns the
// matching binlog position; see store/mysql. Reading gtid_binlog_pos instead loses rows,
// because the binlog is written before a row is visible.
//
// MySQL has no such pair. There the source reads gtid_executed first and then opens the
// view: nothing is lost, but rows committed in between are in both. The source writes a
// marker after it has opened the view, reads these few rows from the binlog up to the
// marker, and excludes them from the view. The snapshot is therefore exact on both
// servers. gtid_executed cannot mark the end: it lacks transactions that a view may show,
// and contains transactions that are not in this binlog.
//
// An XA transaction that is prepared during the snapshot is in neither; the sweep finds
// its rows. In the stream, rows of an XA transaction arrive at its PREPARE, and their
// claim waits for the commit.
//
// # The stream
//
// Each run creates a BinlogSyncer without its own retries, from the position that
// capture.Resume returns. The server streams exactly from a GTID set, so no transaction
// at or below From is repeated. A transaction that was sent in part is sent whole, and
// Resume skips its rows by count.
//
// The syncer runs in raw mode with a synchronous handler: one goroutine takes a row from
// the socket to the receiver. Events of other tables are skipped before they are decoded,
// so that nothing in other tables can end the stream. A compressed transaction is
// unpacked and then read like any other.
//
// Transactions of other tables yield positions without rows. Transactions that wrote only
// to tables of relays (sluicebox_…) yield one every 10 minutes at most, because saving a
// checkpoint is a transaction too.
//
// # Columns
//
// With binlog_row_metadata=FULL the binlog names the columns, their charsets and the
// values of an ENUM. Otherwise columns are matched by the order of the table when the
// rows are read. After a statement that may have changed the table, the source reads its
// description again. If the number or a type of the columns differs from the binlog's,
// the table was changed in between: the log counts as lost, and the snapshot finds the
// rows in the table. Two columns of one type that swapped places would go unnoticed, so
// Diagnose advises FULL.
//
// Values equal the result of a SELECT, byte for byte: unsigned numbers, BINARY with the
// trailing zeros that the binlog omits, ENUM and SET as text, text in UTF-8, TIMESTAMP in
// UTC, and JSON as the server formats it.
//
// Ids, kinds and groups of bytes are hexadecimal, e.g. 0x0a1b, as in the store. FLOAT,
// DOUBLE, BIT, geometries and multi-byte charsets other than Unicode are refused.
//
// A row that a session wrote with binlog_format=STATEMENT is missing from the binlog. The
// source notices that, and the log counts as lost. The sweep finds a row written with
// sql_log_bin=0, which the source cannot notice.
//
// # Pausing
//
// net_write_timeout, which the source sets for its session, ends a dump that is not read.
// A send that waits for 10 s closes the connection. When the receiver takes the batch, Run
// reopens the dump behind it, so Follow sees no lost connection. While a send waits, the
// source reads a little ahead in order to notice a closed connection.
//
// MariaDB's orderly shutdown waits for a dump that it cannot write to. While the receiver
// pauses, a second session therefore watches for the shutdown, and the source drops the
// dump when it starts. MySQL's shutdown takes 8 s longer whenever any replica reads its
// binlog, whatever that reader does (close_connections in mysqld.cc waits for all other
// sessions first, its own daemons included).
//
// # Acknowledge and Mark
//
// Acknowledge sends nothing to the server, because the checkpoint row holds the position
// and the server keeps its binlog by time. A relay that falls behind the retention finds
// the log lost. Mark writes the token into the relay's row of the store's table of
// markers, and the binlog returns it in commit order.
//
// # Server ids
//
// Each reader of a binlog has a server id. MariaDB ends the older of two streams with the
// same id, and both would reconnect forever: after 10 s of that, the run ends with a
// *capture.NoStreamError that explains it. MySQL lets both read, because it identifies
// them by a UUID, which the library generates for each connection. Neither fences a
// second relay: the lock and the epoch do.
package mysql
