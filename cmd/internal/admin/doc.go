// Package admin serves the relay's HTTP endpoints for probes and metrics, and an
// API to see where the relay stands, to look at lanes, FAILED rows, named checkpoints
// and replays and to act on them; Client asks it.
//
// # Who may ask
//
// /livez and /readyz tell no more than yes or no and are open. Everything else
// needs the token, where there is one; an address that others can reach has to
// have one. Requests that change something are refused when a browser sends them
// from another site. Where there is no token, the API answers only those who
// call it by an address of this machine: a site whose name leads here would else
// pass for the same one.
//
// # What the probes mean
//
// /livez answers as long as the process turns. It asks nobody: a database that
// is down must not have the relay restarted. /readyz asks the relay's checks.
//
// # The API
//
// Requests and answers are JSON. A request that cannot be understood whole, an
// unknown field included, changes nothing. An error is {"error": "..."} with
// status 400 (the request), 401, 403, 404 (no such lane, checkpoint or replay),
// 409 (the lane's state, another number of rows than expected, a name that is taken, a
// replay that has ended), 413, 500 (such as a missing grant),
// 503 (this relay does not lead) or 504 (it took too long, and may yet be done).
package admin
