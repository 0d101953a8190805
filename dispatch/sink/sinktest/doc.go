// Package sinktest is what every sink over HTTP is tested with: [Run], one suite
// over real sockets, and [Receiver], a receiver that logs what it takes and can
// be told how to answer.
//
// The suite asks what a relay relies on: each status has its class, no answer
// is waited for or read without a bound, a request that may have arrived is not
// repeated, and a failing receiver costs neither connections nor memory.
package sinktest
