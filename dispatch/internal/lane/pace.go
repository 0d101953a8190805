package lane

import "time"

// pace spreads the requests of a sink with a rate limit. The zero value is no limit.
type pace struct {
	interval time.Duration // between two requests
	next     time.Time     // when the next request may be sent
}

// paceCredit is how much of the time since the last request counts for later ones. It makes
// up for a timer that fires late.
const paceCredit = 10 * time.Millisecond

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
	if p.interval == 0 {
		return
	}
	if earliest := now.Add(-paceCredit); p.next.Before(earliest) {
		p.next = earliest
	}
	p.next = p.next.Add(p.interval)
}
