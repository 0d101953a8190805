package replay

import (
	"context"
	"time"

	"golang.org/x/time/rate"

	"github.com/sluicebox/sluicebox/store/backoff"
)

const (
	// quietPeriod is the time without a finished live row after which a job runs at
	// full speed.
	quietPeriod = time.Second

	// throttledPageRows is the maximum number of rows that a job copies or sends at
	// once while live rows flow. It then pauses for pauseFactor times the duration of
	// the page. The job's statements, and the server's reading of the log that they
	// write, delay live rows: their p99 is 1.4 times as long as alone with 20 rows
	// and this factor, 2.1 with 20 and a factor of 4, 1.9 with 50 rows, and fewer rows change nothing (measured).
	throttledPageRows, pauseFactor = 20, 10

	// awaitedPageRows is the maximum number of rows of a lane that has begun and whose own live rows wait until
	// its last row is sent. No pause follows either.
	awaitedPageRows = 200

	// maxPause is the maximum pause between two pages. A page that takes longer than
	// a tenth of it mostly waits for the network or the disk.
	maxPause = 50 * time.Millisecond
)

// traffic detects whether live rows flow.
type traffic struct {
	sinks    map[string]Sink
	finished int64     // finished live rows at the last call
	at       time.Time // time of the last change
}

func newTraffic(sinks map[string]Sink) traffic {
	t := traffic{sinks: sinks, at: time.Now()} // the job takes it that live rows flow, until a quiet period shows that none do
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

// newRateLimiter returns a limit of rows per second, of which burst may be sent at
// once; nil for no limit.
func newRateLimiter(rows, burst int) *rate.Limiter {
	if rows <= 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(rows), max(1, min(rows, burst)))
}

// allowedRows returns the number of rows that may be sent now, at most most. If that is
// 0, wait is the time until the next row.
func allowedRows(limit *rate.Limiter, now time.Time, most int) (rows int, wait time.Duration) {
	if limit == nil {
		return most, 0
	}
	tokens := limit.TokensAt(now)
	if tokens < 1 {
		wait = time.Duration((1 - tokens) / float64(limit.Limit()) * float64(time.Second))
		return 0, max(wait, time.Millisecond)
	}
	return min(int(tokens), most), 0
}
