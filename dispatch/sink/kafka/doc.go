// Package kafka delivers rows to topics of Kafka, and of servers with its protocol.
//
// # Records
//
// A row is a record of the topic that [Config.Topic] names. Topics are never created. The value
// is the payload, or the CloudEvent of [Config.Format]. A row without a payload (NULL, or empty)
// is a tombstone: its value is null in every format. The timestamp of a record is the time of the
// attempt, because a topic deletes records by it; the time of a row is ce_time.
//
// With [FormatDebezium] value, key, headers and timestamp are those of Debezium's outbox event router,
// as [Debezium] configures it.
//
// The key is the message group, and its partition that of the Java client: murmur2. A row without
// a group has no key. Such rows may be ordered (ungrouped: fifo), so they share the partition of
// the empty key. With the key id or none they spread.
//
// # Why the order holds
//
// With the key group all rows of a lane go to one partition. A request takes a producer for itself
// alone: a client with a connection of its own, and a producer id. Of a partition's rows it makes
// one batch, which the broker stores as a whole or not at all. It sends the next batch for that
// partition only when the last one was answered. So in each partition:
//
//   - No row of a lane is stored unless those before it in the request are. What is not sent,
//     because it did not fit, is behind what is sent. So is a row that goes to another partition
//     than the one before it, which a key of Debezium's router may cause.
//   - An attempt that is not answered is repeated with the same bytes. The broker knows them by
//     producer id and sequence number, and stores them once.
//   - If it stays without an answer, its rows are Unavailable but may be stored, or may still
//     be: in a socket of a broker that is frozen. The lane then repeats them from the first one
//     on. Each of the two streams has the lane's rows in order from a row on that was not
//     delivered, so whatever their mix is, the first arrival of a row is behind those of the
//     rows before it: r1 r1 r2, never r2 r1.
//   - The producer id ends with such a batch. Its next batch would have the same number, and a
//     broker that has stored the first one would drop the second as a repetition. The client
//     ends too if the time of the request is over, so that it sends nothing any more.
//   - A relay that lost its leadership cancels its requests, so its clients end like that.
//
// The producer of package kgo cannot promise this. It takes records one by one and begins to
// send the first at once. If the broker refuses that one before the second is handed over, it
// fails all records that it holds for the partition, but stores the second. With several
// batches in flight a broker that does not know a producer takes its second batch although it
// refused the first. So this package uses kgo for connections, versions, metadata and
// compression, and makes the requests itself.
//
// # Partitions
//
// Adding partitions to a topic moves keys: a later row of a group may be read before an earlier
// one of its old partition. The relay notices new partitions within a minute.
//
// # Classes
//
//   - Rejected: the record is larger than max.message.bytes, which is checked before, or the broker
//     refuses it, for example without a key in a compacted topic. If the broker does not say
//     which record of a batch it was, each lane gets a batch of its own.
//   - Misconfigured: no such topic, no permission, wrong credentials, no trusted certificate.
//   - Unavailable: everything else, such as no broker, no leader, too few replicas in sync, or a quota
//     that holds up requests for longer than they may take. A row on which alone a broker fails with
//     UNKNOWN_SERVER_ERROR is suspect: it counts while its partition stores others.
//
// # Limits
//
// A batch has at most max.message.bytes of the topic, or max-request-bytes. Rows that do not fit
// wait for the next request.
package kafka
