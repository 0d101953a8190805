// Package oauth gets the bearer tokens of a sink by the client credentials
// grant (RFC 6749, section 4.4) and keeps them fresh.
//
// # When a token is fetched
//
// The first request that needs one has it fetched. A fifth of its lifetime
// before it expires, a minute at most, the next request has it fetched again,
// and all requests go on with the old one meanwhile. Only when there is no valid
// token does a request wait. One fetch is in flight at a time, for all senders;
// it belongs to none of them and ends after 10 s.
//
// A token may end before its time, when a platform changes its keys. Who gets a
// 401 says which token it carried: if that is still the current one it is
// fetched anew, once for all who carried it. A token that is refused in its
// first 5 s is not: the platform will not have the next one either. So a
// platform that always says 401 costs one fetch in 5 s at most.
//
// An endpoint that does not know the client by HTTP Basic is asked once more, with the
// client's credentials in the form: not every one reads both. The way that brought a
// token is kept.
//
// After a failed fetch the next one is 2 s away, or as far as the endpoint's
// Retry-After asks, up to a minute. Until then its error stands for all who have
// no valid token, or a refused one.
//
// # The lifetime
//
// It counts from the moment the fetch began. An answer without expires_in, or
// with one that is not above 0, says nothing of it (RFC 6749, section 5.1, lets
// it); 5 minutes are taken then. A guess too high costs a 401 and a fetch, one
// too low a fetch every few minutes.
//
// # Why by hand
//
// golang.org/x/oauth2 was weighed. Its token source holds all requests up while
// it fetches, does not heed their contexts, takes a token without a lifetime for
// eternal, and cannot be told that a token was refused; all of that had to be
// written in any case. What remains, a form out and a JSON object in, is less
// than what its errors and its client would have to be wrapped in: they quote
// the answer, and package httpsink already bounds, classifies and redacts.
package oauth
