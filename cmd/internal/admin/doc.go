// Package admin serves the relay's HTTP endpoints for probes and metrics.
//
// # Who may ask
//
// /livez and /readyz tell no more than yes or no and are open. Everything else
// needs the token, where there is one; an address that others can reach has to
// have one. Requests that change something (there are none yet) are refused when
// a browser sends them from another site.
//
// # What the probes mean
//
// /livez answers as long as the process turns. It asks nobody: a database that
// is down must not have the relay restarted. /readyz asks the relay's checks.
package admin
