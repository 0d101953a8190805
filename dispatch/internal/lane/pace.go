package lane

import "time"

// pace spreads the requests of a sink with a rate limit. The zero value is no limit.
type pace struct {
	interval time.Duration // between two requests
	next     time.Time     // when the next request may be sent
}

const (
	// paceCredit is how much of the time since the last request counts for later ones. It
	// makes up for a timer that fires late.
	paceCredit = 10 * time.Millisecond

	// paceLead is how long before a request may be sent its rows are claimed. Claimed rows
	// are PROCESSING and cannot be spilled.
	paceLead = time.Second
)

// newPace returns the pace of a number of requests per second; 0 is no limit.
func newPace(rate float64) pace {
	if rate == 0 {
		return pace{}
	}
	return pace{interval: time.Duration(float64(time.Second) / rate)}
}

// allows reports whether a request may be sent.
func (p *pace) allows(now time.Time) bool { return !now.Before(p.next) }

// sent records a request.
func (p *pace) sent(now time.Time) {
	if p.interval > 0 {
		p.next = p.from(now).Add(p.interval)
	}
}

// from is when the next request may be sent, with no more than paceCredit of the past.
func (p *pace) from(now time.Time) time.Time {
	if earliest := now.Add(-paceCredit); p.next.Before(earliest) {
		return earliest
	}
	return p.next
}

// claimable reports whether another request may be claimed, if some claimed ones wait.
func (p *pace) claimable(waiting int, now time.Time) bool {
	return p.interval == 0 || !now.Before(p.claimableAt(waiting, now))
}

func (p *pace) claimableAt(waiting int, now time.Time) time.Time {
	return p.from(now).Add(time.Duration(waiting)*p.interval - paceLead)
}
