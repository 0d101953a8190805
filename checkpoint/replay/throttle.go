package replay

import (
	"context"
	"time"

	"github.com/sluicebox/sluicebox/store/backoff"
)

const (
	// quietPeriod is the time without a finished live row after which a job runs at
	// full speed.
	quietPeriod = time.Second

	// throttledPageRows is the maximum number of rows that a job copies or sends at
	// once while live rows flow. It then pauses for pauseFactor times the duration of
	// the page. The job's statements, and the server's reading of the log that they
	// write, delay live rows: a few milliseconds with 20 rows, more than ten with a
	// thousand (measured; fewer rows or longer pauses change little).
	throttledPageRows, pauseFactor = 20, 4

	// maxPause is the maximum pause between two pages. A page that takes longer than
	// a quarter of it mostly waits for the network or the disk.
	maxPause = 20 * time.Millisecond
)

// traffic detects whether live rows flow.
type traffic struct {
	sinks    map[string]Sink
	finished int64     // finished live rows at the last call
	at       time.Time // time of the last change
}

func newTraffic(sinks map[string]Sink) traffic {
	t := traffic{sinks: sinks}
	t.finished = t.count()
	return t
}

func (t *traffic) count() (n int64) {
	for _, s := range t.sinks {
		n += s.Lanes.DoneCount()
	}
	return n
}

// active reports whether a live row finished recently. Rows that wait for the job
// itself do not count: the sooner the job ends, the better for them.
func (t *traffic) active() bool {
	now := time.Now()
	if n := t.count(); n != t.finished {
		t.finished, t.at = n, now
	}
	return now.Sub(t.at) < quietPeriod
}

// isThrottled reports whether the job slows down for live rows. A job with a rate
// does not, because its user has chosen the speed.
func (r *jobRun) isThrottled() bool { return r.spec.Rate == 0 && r.traffic.active() }

// pageSize returns the size of a page, which is smaller while the job is throttled.
func (r *jobRun) pageSize(most int) int {
	if r.isThrottled() {
		return min(most, throttledPageRows)
	}
	return most
}

// pauseAfter returns the pause after a page that started at began.
func (r *jobRun) pauseAfter(began time.Time) time.Duration {
	if !r.isThrottled() {
		return 0
	}
	return min(pauseFactor*time.Since(began), maxPause)
}

// throttle pauses after a page that started at began, if live rows flow.
func (r *jobRun) throttle(ctx context.Context, began time.Time) error {
	return backoff.Sleep(ctx, r.pauseAfter(began))
}

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
