// Package sinktest tests sinks. For sinks that use HTTP it has [Run], one suite over real
// sockets, and [Receiver], a scriptable receiver that logs the items it gets. [RunLog] is the
// suite of sinks whose destination stores a prefix of each lane, with or without HTTP.
// [RunBroker] is the suite of sinks of a broker that tests can stop and start.
//
// Run checks the rules that the relay relies on:
//
//   - Each status has its class.
//   - No response is awaited or read without a bound.
//   - A request that may have arrived is not repeated.
//   - A failing receiver costs neither connections nor memory.
//
// RunLog checks that each lane arrives in order, that a failure of one lane leaves the
// others alone, and that the sink reports as delivered exactly the stored messages.
//
// RunBroker checks that groups arrive in order and, without a fault, once. It causes each way
// to fail at the broker and compares the classes.
package sinktest
