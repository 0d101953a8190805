// Package admin serves the relay's HTTP endpoints: probes, metrics, and an API for the
// relay's status, lanes, FAILED rows, named checkpoints and replays. Client calls the
// API.
//
// # Access
//
// /livez and /readyz are open and answer in one word. All other endpoints need the token,
// if one is set. An address that other machines can reach must have a token.
//
// Two rules protect against browsers. A request that changes something is refused if a
// browser sends it from another site. Without a token, the API answers only requests
// addressed to a loopback address, because otherwise a DNS name that resolves to
// 127.0.0.1 would count as the same site.
//
// # Probes
//
// /livez succeeds while the process runs. It checks nothing, because an unreachable
// database must not restart the relay. /readyz runs the relay's checks.
//
// # API
//
// Requests and responses are JSON. An invalid request, for example with an unknown field,
// changes nothing. An error is {"error": "..."} with one of these statuses:
//   - 400: invalid request
//   - 401, 403: no token, or refused because of its origin
//   - 404: no such lane, checkpoint or replay
//   - 409: the state of the lane does not allow it, another number of rows than expected,
//     the name exists, or the replay has ended
//   - 413: body too large
//   - 500: for example a missing grant
//   - 503: this relay is not the leader
//   - 504: timeout; the action may still complete
package admin
