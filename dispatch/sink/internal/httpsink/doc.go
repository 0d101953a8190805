// Package httpsink is what sinks over HTTP share: a [Client] whose request is one
// attempt, an [Answer] that is read up to a bound, and details without secrets.
//
// # One attempt is one request
//
// A request that may have reached the receiver is never repeated here: not every
// receiver drops duplicates, and the lane must see and count each attempt. Two
// layers would repeat it if they were left alone. go-retryablehttp is held to
// failed dials, where nothing was sent. net/http repeats a request on a reused
// connection that broke, even after the receiver had read all of it, when the
// header map has the key "Idempotency-Key" or "X-Idempotency-Key";
// [SetIdempotencyKey] says how it is kept from that. What net/http still repeats
// is safe: a request of which no byte was written, and over HTTP/2 one that the
// server said it did not process.
//
// # Bounds
//
// The body of a failure is read up to 64 KiB and for 2 s: its status says what it
// means. So is that of a success whose status is all that counts. Only where the
// body is the receipt is it waited for, as long as the request may last.
package httpsink
