package replay

import "time"

// rateLimiter bounds how many rows begin to be sent in a second. The zero value is no bound.
type rateLimiter struct {
	interval time.Duration // between two rows
	burst    int
	// paidUntil is until when the rows that were taken last.
	paidUntil time.Time
}

// newRateLimiter returns a bound of so many rows in a second, of which burst may go at once.
func newRateLimiter(rows, burst int) rateLimiter {
	if rows <= 0 {
		return rateLimiter{}
	}
	return rateLimiter{interval: time.Second / time.Duration(rows), burst: max(1, min(rows, burst))}
}

// available returns how many rows may go now, at most most, and when the next one may if
// none may.
func (r *rateLimiter) available(now time.Time, most int) (rows int, next time.Time) {
	if r.interval == 0 {
		return most, time.Time{}
	}
	if rows = int((now.Sub(r.paidUntil) / r.interval)); rows <= 0 {
		return 0, r.paidUntil.Add(r.interval)
	}
	return min(rows, r.burst, most), time.Time{}
}

// consume counts rows that go now.
func (r *rateLimiter) consume(now time.Time, rows int) {
	if r.interval == 0 {
		return
	}
	if least := now.Add(-time.Duration(r.burst) * r.interval); r.paidUntil.Before(least) {
		r.paidUntil = least
	}
	r.paidUntil = r.paidUntil.Add(time.Duration(rows) * r.interval)
}
