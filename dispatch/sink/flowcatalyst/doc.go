// Package flowcatalyst delivers to a FlowCatalyst platform: events, dispatch jobs and
// audit logs, in batches, over HTTP.
//
// # Wires
//
// [WireArray] is the API of the first outbox processors. The body is the JSON array
// of the payloads, there are two paths, and the body of a success is not specified. A
// 2xx with an empty body, a JSON object or a JSON array is a delivery, unless the
// object, or the entry of an item, reports a failure itself:
//
//   - an "error"
//   - "success": false
//   - a "status" that is 400 or more, or not a word of success
//
// An object with "results" is checked like that of WireItems. An HTML page is not a
// delivery.
//
// [WireItems] is today's API. The body is {"items":[…]}, there are three paths, and a
// success is {"results":[…]} with one entry per item, by position, each SUCCESS or
// SKIPPED. Any other 2xx does not come from the API. For example, a retired path
// answers 200 with an HTML page, and trusting that would lose every row.
//
// # The request
//
// Payloads are embedded byte for byte. A payload that is not valid JSON would break
// the request for all rows, and one that is too large would be refused after the
// upload. Both are rejected without a request. Deliver sends only the messages before
// such a row, in order, and returns [sink.NotSent] for the rest. If that request
// fails as a whole, its outcome is returned for all messages. The dispatcher then
// sends fewer rows, until each row is part of the request whose outcome it gets.
//
// The platform accepts all items of a request or none, although it has a result for each.
// So the mode is [sink.Atomic]. It is not [sink.Prefix], because the API does not promise to
// stop at a failed item.
//
// A request of a replay has the header Sluicebox-Replay. Everything else, ids
// included, is the same as the first time. The platform does not drop duplicates, so a
// request that may have reached it is never repeated here; see package httpsink. The one
// exception is a request that was answered with 401, because that answer accepted none of
// its rows.
//
// # Tokens
//
// A bearer token authenticates the relay. It is either fixed or fetched from the
// platform's token endpoint ([OAuth]). After a 401 a fetched token is renewed and the
// request made again within the same Deliver. The 401 is the result only if the platform
// also refuses the new token, or the refused one is less than 5 s old.
//
// Without a token nothing is sent. The result is [sink.Unavailable] if the endpoint
// is down or asks for a later attempt, and [sink.Misconfigured] if it does not accept
// the client.
package flowcatalyst
