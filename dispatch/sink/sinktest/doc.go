// Package sinktest tests sinks that use HTTP. It has [Run], one suite over real
// sockets, and [Receiver], a scriptable receiver that logs the items it gets.
//
// The suite checks the rules that the relay relies on:
//
//   - Each status has its class.
//   - No response is awaited or read without a bound.
//   - A request that may have arrived is not repeated.
//   - A failing receiver costs neither connections nor memory.
package sinktest
