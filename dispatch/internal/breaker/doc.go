// Package breaker is the circuit breaker of one endpoint, with its probes and pings. It is
// pure: it starts no goroutine, reads no clock and sends nothing.
//
// The caller reports each answer, and asks whether a probe may go. While the breaker is
// open the caller sends only probes, which are requests of one row. An untried lane is one
// that was not probed since the breaker opened.
//
//	State    Event                                       Next    Effect
//	closed   a row was accepted                          closed  the counts begin again
//	closed   MaxFailures failed requests in a row        open    MaxEagerProbes may go at once,
//	closed   MaxRejections rejected requests in a row    open    others after the backoff
//	closed   misconfigured, without proof                open
//	closed   any other failure                           closed  it is counted
//	open     a row was accepted, in a request that       closed  all lanes may go
//	         began after the breaker opened
//	open     a row was accepted, in an older request     open    it proves nothing about now
//	open     a failure, with Retry-After                 open    no probe before that time, no
//	                                                             eager ones any more
//	open     a failure, while untried lanes are left     open    the next probe soon
//	open     a failure, all lanes were tried             open    the next probe after the backoff
//
// A rejected request counts separately, because the endpoint is up: it parsed the rows and
// answered. Proof means that the endpoint accepted another row since the row last failed,
// or during the request.
//
// For example, an endpoint with 40 lanes that is down gets 5 requests, 16 eager probes, one
// probe a second until the other lanes were tried, and from then on one each 30 s.
package breaker
