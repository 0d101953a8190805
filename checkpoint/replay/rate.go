package replay

import "time"

// rate bounds how many rows begin to be sent in a second. The zero value is no bound.
type rate struct {
	each  time.Duration // between two rows
	burst int
	// paid is until when the rows that were taken last.
	paid time.Time
}

// newRate returns a bound of so many rows in a second, of which burst may go at once.
func newRate(rows, burst int) rate {
	if rows <= 0 {
		return rate{}
	}
	return rate{each: time.Second / time.Duration(rows), burst: max(1, min(rows, burst))}
}

// room returns how many rows may go now, at most most, and when the next one may if
// none may.
func (r *rate) room(now time.Time, most int) (rows int, next time.Time) {
	if r.each == 0 {
		return most, time.Time{}
	}
	if rows = int((now.Sub(r.paid) / r.each)); rows <= 0 {
		return 0, r.paid.Add(r.each)
	}
	return min(rows, r.burst, most), time.Time{}
}

// take counts rows that go now.
func (r *rate) take(now time.Time, rows int) {
	if r.each == 0 {
		return
	}
	if least := now.Add(-time.Duration(r.burst) * r.each); r.paid.Before(least) {
		r.paid = least
	}
	r.paid = r.paid.Add(time.Duration(rows) * r.each)
}
