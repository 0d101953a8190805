// Package flowcatalyst delivers to a FlowCatalyst platform: events, dispatch
// jobs and audit logs, in batches, over HTTP.
//
// # Wires
//
// [WireArray] is the API of the first outbox processors: the body is the JSON
// array of the payloads, there are two paths, and what a success looks like is
// not laid down. A 2xx with an empty body, a JSON object or a JSON array is
// taken for one; an object with "results" is checked like the other wire's. A
// page is not.
//
// [WireItems] is today's API: the body is {"items":[…]}, there are three paths,
// and a success is {"results":[…]} with one entry per item, by position, each
// SUCCESS or SKIPPED. Anything else with a 2xx is not the API: a retired path
// answers 200 with a page, and who trusts it loses every row.
//
// # What is sent
//
// Payloads are embedded byte for byte. One that is not valid JSON would spoil
// the request of its neighbours, and one that is too large would be refused
// after the upload; both are rejected here, without a request. Only the messages
// in front of such a one are sent, in order, and the others are
// [sink.NotSent]. Where that request fails as a whole, its answer is given for
// all messages, as if they had been in it: it is a cause to send fewer, and
// then each comes to stand in a request that it is part of.
//
// # One attempt is one request
//
// A request that may have reached the platform is never repeated here: it does
// not drop duplicates, and the lane must see and count each attempt. Two layers
// would repeat it if they were left alone. go-retryablehttp is held to failed
// dials, where nothing was sent. net/http repeats a POST on a reused connection
// that broke, even after the platform had read all of it, when the header map
// has the key "Idempotency-Key"; header.go says how it is kept from
// that. What net/http still repeats is safe: a request of which no byte was
// written, and over HTTP/2 one that the server said it did not process.
package flowcatalyst
