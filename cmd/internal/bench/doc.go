// Package bench measures a relay on a real database, beside what the database
// itself allows.
//
// A run makes a database of its own on the server, starts the relay as a process
// of its own (the same program, `sluicebox run`, with a configuration file), writes
// outbox rows from its own sessions and receives them over HTTP. So what is
// measured is what a user has: the program, sockets, and a server that flushes each
// commit of the writers.
//
// # The floor
//
// A number means little without what the machine can do. Beside the relay runs the
// floor (see package floor), in turns with it: a program that decodes, claims, posts
// and completes the same rows with the same durability, and does nothing else. It
// keeps no order where that would cost it, no epoch, no checkpoint. A ratio to it
// says what those cost. Each turn has a new database; the median of the ratios of
// the turns is what counts, because a machine is not equally fast all the time.
//
// # MySQL and MariaDB
//
// What differs between the databases is behind two small interfaces: server and
// database, in postgres.go, mysql.go and mongo.go. On MySQL and MariaDB the floor's claim is a
// transaction that locks the rows, changes them and commits, in one packet; the
// durability of each commit is the server's, and so the same for both. How often the
// outbox is searched is told by MySQL's performance schema; where a server does not
// count it, the result says so.
//
// # MongoDB
//
// A row is a document, which its writer inserts with a write concern of majority and
// journal; rows that are loaded for a drain are inserted some in a transaction. All
// writes of the relay and of the floor have that concern, so here too each waits for the
// disk. The floor reads a change stream of the collection. Its claim and its completion
// are one update each, of one document or of a list of them, and no transaction: that is
// what a fence costs. How often the outbox is searched is told by $collStats. What
// a kind of statement takes, MongoDB does not tell: beside the profiles stands what the
// server counted of all statements.
//
// # What is measured
//
// The latency of a row is the time from the return of its COMMIT to the writer until
// the receiver has read the request that holds it. Rows fall due at fixed times,
// whether or not earlier ones were slow. A drain is timed from the first request to
// the last row. The receiver checks what it gets: a row that is missing fails the
// run, and rows that came twice or before an earlier one of their group are counted.
package bench
