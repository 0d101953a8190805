// Package quickstart demonstrates a relay on one machine, without setup, and
// verifies its deliveries.
//
// A quickstart creates an outbox of its own:
//   - a file, for SQLite;
//   - a schema in a PostgreSQL database;
//   - a database on a server of MySQL, MariaDB or MongoDB.
//
// Several writers commit orders into it. The relay runs the same code and the same
// kind of configuration file as `sluicebox run`, and a receiver takes the rows over
// HTTP. Each message group has one writer, so the quickstart knows the commit order
// of each group. It therefore detects every row that is lost, duplicated or out of
// order.
//
// # Measurements
//
// The latency of a row is the time from the return of its COMMIT to the writer
// until the receiver has read the request with the row. Percentiles come from a
// histogram of fixed size whose buckets are at most 1.6 % wide; see package histogram.
// The first order waits for the relay to start. It counts as a row, but not in
// the latency.
//
// # Cleanup
//
// Nothing stays behind unless Keep is set, even after an error or a signal. A
// killed process can leave objects on a server. The next quickstart there lists
// them with the statements that remove them. It does not remove them itself,
// because they look the same as objects that another user has kept.
package quickstart
