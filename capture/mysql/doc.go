// Package mysql reads the rows of outboxes out of the binlog of MySQL and MariaDB.
// The two differ in how they name transactions, in how a view of the tables finds
// its place in the log, and in a few statements; everything else is one.
//
// # Positions
//
// A position is a GTID set in the server's text form, and behind an @ the file of
// the binlog and the place in it, by which Retained measures:
// 3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5@binlog.000003:4711+1795338000 (MySQL,
// with the time in which the file was made), 0-1-270@binlog.000003:4711 (MariaDB). Only the set counts where two are compared:
// a is before b if b's set contains a's and more. Those that a source emits are
// nested. The origin is the flavour with the server's UUID (MySQL) or its domain and
// server id (MariaDB, which has nothing better: two servers may be called the same).
//
// # Open
//
// Open checks log_bin, binlog_format=ROW, binlog_row_image=FULL, an empty
// binlog_row_value_options, gtid_mode=ON, a retention of a day or more, the filters
// of the binlog and the columns' types, and names all that is wrong in one
// *capture.NoStreamError. Whether the role may stream is found out by trying: it
// asks for the binlog and hangs up. So it is found out, too, whether the server
// still has what follows the checkpoint. Nothing is made or kept on the server for
// the relay: the binlog expires by time.
//
// The grants are REPLICATION SLAVE for the role of the stream, and REPLICATION
// CLIENT (MySQL) or BINLOG MONITOR (MariaDB) for the other one, which also reads and
// writes the table of the markers, one of the store's own.
//
// # The cut
//
// The view of MariaDB's tables is opened WITH CONSISTENT SNAPSHOT, which takes the
// binlog's place with the snapshot; see store/mysql. Reading gtid_binlog_pos instead
// loses rows: the binlog is written before a row is visible. MySQL has no such pair.
// There gtid_executed is read first, then the view is opened: nothing is lost, but
// rows committed in between are in both. The source writes a marker behind the view,
// reads these few rows out of the binlog up to it, and has the view leave them out,
// so on both servers the cut is exact. gtid_executed would be no end: a view may show
// transactions that it does not have yet.
//
// Rows of an XA transaction that is prepared at the time of the cut are in neither;
// the sweep finds them. In the stream they come when they are prepared, and their
// claim waits for the commit.
//
// # The stream
//
// A BinlogSyncer without its own retries is made for each run, from the position
// that capture.Resume names. The server sends from a GTID set on exactly, so no
// transaction at or below From comes again; one sent in part comes whole and Resume
// skips the rows by count. The syncer runs in its raw mode with a synchronous
// handler: a row goes from the socket to the receiver on one goroutine. Events of
// other tables are left out while they are still encoded, so that nothing that
// other tables hold can end the stream. A compressed transaction is unpacked and
// then read like any other.
//
// Transactions of other tables give positions without rows. Those that wrote only
// to tables of relays (sluicebox_…) do so each 10 minutes at most: a checkpoint that
// is saved is a transaction too.
//
// # Columns
//
// With binlog_row_metadata=FULL the log names the columns, their charsets and the
// words of an ENUM. Without it they are taken in the order of the table as it is
// when the rows are read; a statement that may have changed it has it described
// anew. If the number or a type of the columns is another one than the log's, the
// table was changed since: the log counts as lost, and the cut finds the rows in
// the table. Two columns of one type that changed places would not be noticed: so
// Examine advises FULL.
//
// Values are what a statement would show, byte for byte: unsigned numbers, BINARY
// with the zeros at its end, which the log lacks, ENUM and SET by their words, text
// in UTF-8 whatever the column's charset, TIMESTAMP in UTC, JSON as the server
// writes it. Ids, kinds and groups of bytes are 0x0a1b, as in the store. FLOAT,
// DOUBLE, BIT and geometries are refused, and so are charsets of several bytes that
// are not Unicode.
//
// A row is not in the log if its session wrote it with binlog_format=STATEMENT (which
// is noticed: the log counts as lost) or with sql_log_bin=0 (which is not: the sweep
// finds it).
//
// # Pausing
//
// A dump that is not read dies by net_write_timeout, which the source sets for its
// session. A send that waits for 10 s closes the connection, and when the batch is
// received at last, the dump opens again behind it. Run does that inside: for Follow
// nothing was lost. Meanwhile a little is read ahead, so that the end of the
// connection is noticed.
//
// MariaDB's orderly shutdown waits for a dump that it cannot write to. So while the
// receiver pauses, a second session listens for the shutdown, and the dump is given
// up then. MySQL's takes 8 s longer wherever any replica reads its binlog
// (close_connections in mysqld.cc waits for all other sessions first, those of its
// own daemons too), whatever the reader does.
//
// # Acknowledge and Mark
//
// Acknowledge has nobody to tell: the checkpoint row holds the position and the
// server keeps its log by time. A relay that falls behind the retention finds the
// log lost. Mark writes the token into the relay's row of the store's table of
// markers; the binlog brings it back in commit order.
//
// # Server ids
//
// Each reader of a binlog has a server id. MariaDB ends the older of two streams
// under one id, and both would go on for ever: after 10 s of that the run ends with a
// *capture.NoStreamError that says so. MySQL lets both read, for
// it tells them by a UUID, which the library makes anew for each connection. Neither
// fences a second relay: the lease and the epoch do.
package mysql
