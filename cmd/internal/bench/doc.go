// Package bench measures a relay on a real database, beside a floor: the least that the
// database itself allows.
//
// A run creates databases on the server and starts the relay as a separate process: the same
// program, `sluicebox run`, with a configuration file. It writes outbox rows from its own
// sessions and receives them over HTTP. So it measures what a user gets: the program,
// sockets, and a server that flushes each commit of the writers.
//
// # The floor
//
// A number means little without the limits of the machine. So the floor (see package floor)
// runs alternately with the relay. It is a program that decodes, claims, posts and completes
// the same rows with the same durability, and does nothing else. It keeps no order where
// order costs time, no epoch and no checkpoint. The ratio to it is the cost of those.
//
// A second floor does not claim: it posts and completes only, as a relay does that sends fresh
// rows before it claims them. The relay with claims: on runs in turns too, so that a result
// shows the gain of another setting on the same machine in the same minutes.
//
// Each round uses a new database. The result is the median of the ratios of the rounds,
// because the speed of a machine varies.
//
// # Comparisons
//
// With --compare, a scenario runs its relay with two configurations in turns, without a floor.
// A configuration may be that of a real relay: relayconfig.go says which keys it keeps.
//
// # Brokers
//
// With --sink, each turn has a new topic of a broker instead of an HTTP receiver; see package
// demobroker. The floor then sends with the broker's own client, as the relay does, and the benchmark
// reads the topic. The latency ends when the reader has the message.
//
// # Peers
//
// Scenario peer measures another program beside the relay. The program reads the configuration
// of the floor, floor.Config, as JSON from standard input. It prints the line of FloorReady once it
// reads the log, posts each row to Config.Endpoint, as a JSON array of payloads, and ends with
// status 0 after SIGTERM. With --sink it sends each row to Config.Topic instead, its payload alone. On PostgreSQL the slot and the publication exist. Config.Bulk says that a
// drain is measured; a request may then have Config.Batch rows.
//
// # MySQL and MariaDB
//
// The differences between the databases are behind two small interfaces, server and
// database, in postgres.go, mysql.go and mongo.go. On MySQL and MariaDB, the floor's claim
// is a transaction that locks the rows, changes them and commits, in one packet. The server
// decides the durability of each commit, so it is the same for both sides. MySQL's
// performance schema counts the scans of the outbox. If a server does not count them, the
// result says so.
//
// # MongoDB
//
// A row is a document. Its writer inserts it with write concern majority and journal. The
// rows of a drain are inserted in transactions of many rows. All writes of the relay and of
// the floor use that write concern, so each waits for the disk. The floor reads a change
// stream of the collection. Its claim and its completion are one update each, of one
// document or of a list, without a transaction. The difference is the cost of fencing.
//
// $collStats counts the scans of the outbox. MongoDB reports no time per kind of statement,
// so the profiles include the server's counters of all statements instead.
//
// # Measures
//
// The latency of a row is the time from the return of its COMMIT to the writer until the
// receiver has read the request with the row. Rows are due at fixed times, whether or not
// earlier rows were slow. A drain is timed from the first request to the last row. The
// receiver checks the rows: a missing row fails the run, and rows that came twice or before
// an earlier row of their group are counted.
//
// The CPU time of a row is that of the relay, from its start to its end. With the server, it
// includes all of the server's processes in the same time, also for the writers. It is known
// on Linux, if the server runs on this machine.
package bench
