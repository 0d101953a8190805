// Package kafka lets many processes share one outbox: a topic stands between capture and dispatch.
//
// # Shards
//
// A feeder (package feed) reads the database's log and appends each row to the partition of its
// group. A shard is a relay whose log is one partition: [Source] is its source. So each shard has a
// leader, an epoch, a checkpoint and spilled rows of its own, and the order of a group is that of
// its partition.
//
// # Order
//
// A feeder's records in a partition are a prefix of its part of the log, because one idempotent
// producer writes them, and the first record that is not acknowledged ends its session. A new
// feeder raises the epoch, loads the checkpoint, and begins each partition with a record of the
// epoch. Only then does it read the log, from the checkpoint. A record of an earlier epoch behind that
// one was late, and is left out. So before the new feeder's first record a partition has the rows up to
// some place, and behind it all rows from a checkpoint that is not after that place. The first record of each row comes in
// the order of commits, and repetitions are known by their place; see package record.
//
// Places order the rows of one log. Where the log was lost, or another server took over, places before and
// behind a Gap cannot be compared, and only the epoch tells a late record: without it the model loses
// rows and delivers them out of order.
//
// Each record has a number in its epoch. If one is missing, then Kafka has lost records that it had
// acknowledged, and the source ends with a *capture.LostError, as it does when the retention of the
// topic has passed the checkpoint. A feeder saves with its checkpoint which numbers Kafka had
// acknowledged, and the first record of the next feeder carries them: so the loss of an epoch's last
// records is noticed too. The shard then takes a snapshot: the rows of the tables whose
// partition is its own.
//
// # Large rows
//
// A payload that is too large for a record stays in its table, and the claim reads it. Attributes and the
// name of a group are needed before a claim, so a row with many bytes of them has several records, which
// the source joins. A place to begin at is never between them.
//
// # Snapshot
//
// A snapshot needs a running feeder, because markers of the database's log tell where it is. A row
// before the first marker may be committed without being visible, while a commit waits for a
// standby. Such a row is left to the sweep. If the feeder loses the database's log between the two
// markers of a snapshot, the source takes another one.
//
// # Replay
//
// [Source.ReadRange] reads a part of the partition again. From a position it reads as Run does. From a time, it
// first finds out which feeder led at the first record of that time, because records of a former one
// are late; see record.Starter. It ends at a Gap.
//
// # Wiring
//
// What joins these parts must
//
//   - run a Feeder under the relay's name while it holds the relay's lock, with the database's source
//     under that name, and run it again after an error that is not a *store.SetupError,
//   - run a relay for each partition that it owns, with a store under a name of its own and the Source
//     of the partition, whose Database writes markers under the feeder's name,
//   - filter what this store reads of the tables by [ShardView], in the sweep too, or a shard would
//     send the rows of another,
//   - give up a partition by ending its relay, and take one over by starting it: the epoch of the
//     shard's own leadership is what keeps a former owner from writing,
//   - let the feeder's name alone write heartbeats, prune, and serve requests of operators that concern
//     the tables.
//
// # Topic
//
// Both sides check the topic when they open it, and refuse settings that lose records:
//
//   - the number of partitions, which is part of the order. Partitions that are added to a topic in use stay empty,
//   - unclean.leader.election.enable must be false,
//   - min.insync.replicas must be 2 or more if there are several replicas, and at most their number,
//   - cleanup.policy must not compact,
//   - max.message.bytes must hold a record of feed.Config.MaxRecordBytes,
//   - retention.ms must be 10 minutes or more.
//
// [Source.Diagnose] and Feeder.Diagnose return the same findings, and advice about settings that only
// weaken the topic, for example a single replica.
//
// Rows without a group share a partition. A place counts rows behind a position, so the feeder has a source
// with a position for each row (MongoDB) give each position a batch; see capture.Resume. The
// sources of SQLite and of polling cannot, and are refused.
package kafka
