// Package sink is the contract of a destination. A sink turns messages into one
// request, sends it, and says what the answer means. It does not retry, wait or
// count: that is the lane's business, which sees every failure and keeps the
// order.
//
// Each destination has a folder with its own Config. Package sinktest holds one
// suite that every sink passes. [Classify] is the one table that says what an
// HTTP status means.
package sink
