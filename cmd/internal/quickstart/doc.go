// Package quickstart shows a relay at work on one machine, with nothing to set
// up, and checks what it does.
//
// It makes an outbox, in an SQLite file of its own, in a schema of its own of a
// PostgreSQL database, or in a database of its own on a server of MySQL, MariaDB or
// MongoDB, commits orders into it from several writers, relays them with
// the same code and the same kind of configuration file as `sluicebox run`, and
// receives them over HTTP. It knows the order in which the rows of each group
// were committed, because each group has one writer, and so it knows of every
// row that is lost, doubled or late.
//
// # What is measured
//
// The latency of a row is the time from the return of its COMMIT to the writer
// until the receiver has read the request that holds it. Percentiles come from a
// histogram of fixed size whose buckets are at most 1.6 % wide, see histogram.
// The first order waits for the relay to start; it counts as a row, but not in
// the latency.
//
// # What stays behind
//
// Nothing, unless Keep is set: not after an error and not after a signal either.
// What a killed process leaves on a server is named by the next
// quickstart there, with the statements that remove it; it is not removed
// unasked, because it looks like what another user has kept.
package quickstart
