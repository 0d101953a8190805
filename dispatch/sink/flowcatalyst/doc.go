// Package flowcatalyst delivers to a FlowCatalyst platform: events, dispatch
// jobs and audit logs, in batches, over HTTP.
//
// # Wires
//
// [WireArray] is the API of the first outbox processors: the body is the JSON
// array of the payloads, there are two paths, and what a success looks like is
// not laid down. A 2xx with an empty body, a JSON object or a JSON array is
// taken for one, unless it says otherwise itself: with an "error", with "success"
// false, with a "status" that is 400 or more or no word of a success, in the object
// or in the entry of an item. An object with "results" is checked like the other
// wire's. A page is no success.
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
// A request with rows that a replay sends again names it in Sluicebox-Replay. All
// else is as it was the first time, the ids too.
//
// # One attempt is one request
//
// The platform does not drop duplicates: a request that may have reached it is
// never repeated here. Package httpsink says what that takes. The one exception
// is a request that was answered with a 401, which took nothing, where OAuth has
// a newer token.
//
// # Tokens
//
// A platform knows its callers by a bearer token: one that is fixed, or one that
// is got from its token endpoint and kept fresh ([OAuth]). A refresh holds
// nothing up while the old token is valid. A token that ends before its time, as
// when the platform changes its keys, is renewed and the request made again
// within the same Deliver; only where the new token is refused as well, or the
// refused one is a few seconds old, is the 401 the result. Without a token
// nothing is sent: [sink.Unavailable] where the endpoint is down or asks to come
// back later, [sink.Misconfigured] where it will not have the client.
package flowcatalyst
