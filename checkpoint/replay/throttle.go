package replay

import (
	"context"
	"time"
)

const (
	// quietPeriod is for how long no live row may have been done with for a job to go as fast
	// as it can.
	quietPeriod = time.Second
	// throttledPageRows is how many rows a job copies or sends at once while live rows flow, and
	// pauseFactor how many times as long as that took it rests then. Its statements and the
	// server's reading of what they write stand in the way of live rows for a few
	// milliseconds with so few, and for more than ten with a thousand (measured: fewer, or
	// longer rests, change little).
	throttledPageRows, pauseFactor = 20, 4
	// maxPause is the longest rest between two pages: what takes longer than a quarter of it
	// is waiting for the network or the disk for the most part.
	maxPause = 20 * time.Millisecond
)

// traffic tells whether live rows flow.
type traffic struct {
	sinks    map[string]Sink
	finished int64     // live rows that were done with, when last looked
	at       time.Time // when that last changed
}

func newTraffic(sinks map[string]Sink) traffic {
	t := traffic{sinks: sinks}
	t.finished = t.count()
	return t
}

func (t *traffic) count() (gone int64) {
	for _, s := range t.sinks {
		gone += s.Lanes.DoneCount()
	}
	return gone
}

// active reports whether live rows were done with lately. Those that wait for the job
// itself are none: the sooner it ends the better for them.
func (t *traffic) active() bool {
	now := time.Now()
	if gone := t.count(); gone != t.finished {
		t.finished, t.at = gone, now
	}
	return now.Sub(t.at) < quietPeriod
}

// isThrottled reports whether the job makes way for live rows. Whoever names a rate has
// chosen the speed.
func (r *jobRun) isThrottled() bool { return r.spec.Rate == 0 && r.traffic.active() }

// pageSize bounds the rows of a page while the job makes way.
func (r *jobRun) pageSize(most int) int {
	if r.isThrottled() {
		return min(most, throttledPageRows)
	}
	return most
}

// pauseAfter returns for how long to rest after a page that began at a time.
func (r *jobRun) pauseAfter(began time.Time) time.Duration {
	if !r.isThrottled() {
		return 0
	}
	return min(pauseFactor*time.Since(began), maxPause)
}

// throttle rests after a page that began at a time, if live rows flow.
func (r *jobRun) throttle(ctx context.Context, began time.Time) error {
	return sleep(ctx, r.pauseAfter(began))
}
