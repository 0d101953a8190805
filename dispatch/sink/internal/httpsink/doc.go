// Package httpsink has the common parts of HTTP sinks: a [Client] that makes one
// attempt per request, an [Answer] that is read up to a bound, and details without
// secrets.
//
// # One attempt is one request
//
// Package httpsink never repeats a request that may have reached the receiver. Not
// every receiver drops duplicates, and the lane must see and count each attempt. Two
// layers would repeat requests by default:
//
//   - go-retryablehttp. It is limited to failed dials, where nothing was sent.
//   - net/http. It repeats a request on a reused connection that broke, even after
//     the receiver had read all of it, if the header map has the key
//     "Idempotency-Key" or "X-Idempotency-Key". [SetIdempotencyKey] prevents that.
//
// net/http still repeats a request of which no byte was written, and an HTTP/2
// request that the server reported as not processed. Both are safe.
//
// # Bounds
//
// The body of a failure is read up to 64 KiB and for 2 s, because its status already
// decides the outcome. The same bounds apply to a success whose status is all that
// counts. Only a body that serves as the receipt is awaited as long as the request
// may last.
package httpsink
