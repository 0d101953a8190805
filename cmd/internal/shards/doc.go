// Package shards lets several processes share the outboxes of one database, with a topic of Kafka between
// capture and dispatch; see package capture/kafka for the order of rows, and deploy/scale.md.
//
// A [Capture] competes for the lock of the relay's name and, while it leads, feeds the topic. [Members]
// joins a consumer group, which gives each partition one owner. The owner runs a relay for it, whose
// [Database] reads the partition and has a name of its own. The group decides who should work on a
// partition. It protects nothing: the lock and the epoch of the partition's relay do.
package shards
