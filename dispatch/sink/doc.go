// Package sink defines the contract of a destination. A [Sink] turns messages into
// one request, sends it, and classifies the response. It does not retry, wait or
// count failures: the lane does, because only the lane sees every failure and keeps
// the order of its group.
//
// # Modes
//
// [Limits.Mode] is a promise of the destination, which decides what a request may carry:
//
//	Atomic   all or nothing, for example one HTTP request     runs of several lanes
//	Ordered  it stops at the first failure, for example a file runs of several lanes
//	PerItem  a message may be accepted behind a failed one    one row of each lane
//	Prefix   of each lane a prefix is stored                  runs of several lanes
//
// A broker whose client fails all buffered records of a partition together is Prefix, if
// all rows of a lane go to one partition. With another key than the group it is PerItem, as
// is a broker that confirms or refuses each message, because a message behind a refused one
// arrives. One that stores a batch atomically for one subject is Atomic with MaxLanes 1. An
// HTTP API that answers per item and goes on after a failed one must not be Prefix, or rows
// overtake each other.
//
// Each destination is a package of its own with its own Config. Package sinktest has
// a suite that every HTTP sink passes. [Classify] is the only table of HTTP statuses.
package sink
