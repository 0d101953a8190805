// Package oauth fetches the bearer tokens of a sink by the client credentials grant
// (RFC 6749, section 4.4) and renews them.
//
// The first request that needs a token starts a fetch. One fetch runs at a time for all
// senders. It does not depend on the request that started it, and times out after 10 s. A
// token is renewed when a fifth of its lifetime is left, but at most a minute before it
// expires. Requests use the old token meanwhile, and wait only if there is no valid one.
//
//   - 401: a platform may change its keys. A sender reports the token that was refused. If
//     it is still the current one, and at least 5 s old, it is renewed once for all
//     senders. So a platform that always answers 401 costs at most one fetch in 5 s.
//   - Authentication: an endpoint that does not know the client by HTTP Basic is asked once
//     more with the credentials in the form. The method that brought a token is kept.
//   - Failure: the next fetch starts 2 s later, or after the endpoint's Retry-After, up to a
//     minute. Until then requests without a valid token get the error of the failed fetch.
//   - Lifetime: it starts when the fetch starts. If expires_in is missing or not above 0,
//     which RFC 6749, section 5.1, permits, 5 minutes are assumed.
//
// # Why not golang.org/x/oauth2
//
// Its token source blocks all requests while it fetches, and ignores their contexts. It
// treats a token without a lifetime as eternal, and cannot be told of a refused token. Its
// errors quote the response, which package httpsink bounds, classifies and redacts. The
// rest is to post a form and to decode a JSON object.
package oauth
