package replay

import "time"

// rateLimiter bounds the rows that are sent per second. The zero value has no bound.
type rateLimiter struct {
	interval time.Duration // between two rows
	burst    int
	// paidUntil is the time that the rows so far have used up.
	paidUntil time.Time
}

// newRateLimiter returns a limit of rows per second, of which burst may be sent at
// once.
func newRateLimiter(rows, burst int) rateLimiter {
	if rows <= 0 {
		return rateLimiter{}
	}
	return rateLimiter{interval: time.Second / time.Duration(rows), burst: max(1, min(rows, burst))}
}

// available returns the number of rows that may be sent now, at most most. If that is
// 0, next is the time of the next row.
func (r *rateLimiter) available(now time.Time, most int) (rows int, next time.Time) {
	if r.interval == 0 {
		return most, time.Time{}
	}
	if rows = int((now.Sub(r.paidUntil) / r.interval)); rows <= 0 {
		return 0, r.paidUntil.Add(r.interval)
	}
	return min(rows, r.burst, most), time.Time{}
}

// consume records rows that are sent now.
func (r *rateLimiter) consume(now time.Time, rows int) {
	if r.interval == 0 {
		return
	}
	if earliest := now.Add(-time.Duration(r.burst) * r.interval); r.paidUntil.Before(earliest) {
		r.paidUntil = earliest
	}
	r.paidUntil = r.paidUntil.Add(time.Duration(rows) * r.interval)
}
