// Package sink defines the contract of a destination. A [Sink] turns messages into
// one request, sends it, and classifies the response. It does not retry, wait or
// count failures: the lane does, because only the lane sees every failure and keeps
// the order of its group.
//
// Each destination is a package of its own with its own Config. Package sinktest has
// a suite that every HTTP sink passes. [Classify] is the only table of HTTP statuses.
package sink
