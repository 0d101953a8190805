package breaker

import "time"

// pings is the state of an endpoint's pings: requests without rows, whose acceptance is
// proof like an accepted row.
type pings struct {
	inFlight    bool
	next        time.Time // earliest next ping
	proofs      int       // accepted pings since the last accepted row
	unsupported bool      // the endpoint has no such request
}

// PingDue reports whether a ping may go: one at a time, in intervals, and at most MaxPings
// accepted ones without an accepted row. An endpoint that answers pings and fails on every
// row therefore costs at most one row.
func (b *Breaker) PingDue(now time.Time) bool {
	p := &b.pings
	return !p.unsupported && !p.inFlight && !now.Before(p.next) && p.proofs < b.cfg.MaxPings
}

// BeginPing records that a ping is in flight, until PingAnswered.
func (b *Breaker) BeginPing() { b.pings.inFlight = true }

// PingAnswer is the answer to a ping.
type PingAnswer struct {
	Began       time.Time
	Accepted    bool // no other answer proves anything
	Unsupported bool // the endpoint has no such request: no ping is sent any more
	RetryAfter  time.Duration
}

// PingAnswered records the answer to a ping.
func (b *Breaker) PingAnswered(a *PingAnswer, now time.Time) Change {
	b.pings.inFlight = false
	b.pings.next = now.Add(max(b.cfg.PingInterval, min(a.RetryAfter, b.cfg.RetryAfterMax)))
	b.pings.unsupported = a.Unsupported
	if a.Unsupported || !a.Accepted {
		return Unchanged
	}
	b.pings.proofs++
	return b.accepted(a.Began)
}
