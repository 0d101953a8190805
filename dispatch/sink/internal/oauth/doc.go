// Package oauth fetches the bearer tokens of a sink by the client credentials grant
// (RFC 6749, section 4.4) and renews them.
//
// # When a token is fetched
//
// The first request that needs a token starts a fetch. A token is renewed when a
// fifth of its lifetime is left, but at most a minute before it expires. The next
// request then starts the fetch, and all requests use the old token meanwhile. A
// request waits only if there is no valid token. There is one fetch at a time for all
// senders. It does not depend on the request that started it, and times out after 10
// s.
//
// A token may become invalid early, for example because the platform changed its
// keys. A sender that gets a 401 reports the token that it used. If that is still the
// current token, it is renewed once for all senders. A token younger than 5 s is not
// renewed, because the platform would refuse the next one too. A platform that always
// answers 401 therefore costs at most one fetch in 5 s.
//
// If the endpoint does not know the client by HTTP Basic, it is asked once more with
// the credentials in the form, because not every endpoint reads both. The method that
// brought a token is kept.
//
// After a failed fetch the next one starts 2 s later, or after the endpoint's
// Retry-After, up to a minute. Until then every request without a valid token gets
// the error of the failed fetch.
//
// # The lifetime
//
// A lifetime starts when the fetch starts. If expires_in is missing or not above 0
// the lifetime is unknown (RFC 6749, section 5.1, permits that), and 5 minutes are
// assumed. If that is too long, it costs a 401 and a fetch; if it is too short, a
// fetch every few minutes.
//
// # Why not golang.org/x/oauth2
//
// Its token source blocks all requests while it fetches and ignores their contexts.
// It treats a token without a lifetime as eternal, and has no way to report a refused
// token. All of that had to be written anyway. The rest is to post a form and to
// decode a JSON object. Wrapping the errors and the client of x/oauth2 would take
// more code: they quote the response, while package httpsink already bounds,
// classifies and redacts it.
package oauth
