package replay

import (
	"context"
	"time"
)

const (
	// calm is for how long no live row may have been done with for a job to go as fast
	// as it can.
	calm = time.Second
	// smallPage is how many rows a job copies or sends at once while live rows flow, and
	// restTimes how many times as long as that took it rests then. Its statements and the
	// server's reading of what they write stand in the way of live rows for a few
	// milliseconds with so few, and for more than ten with a thousand (measured: fewer, or
	// longer rests, change little).
	smallPage, restTimes = 20, 4
	// mostRest is the longest rest between two pages: what takes longer than a quarter of it
	// is waiting for the network or the disk for the most part.
	mostRest = 20 * time.Millisecond
)

// traffic tells whether live rows flow.
type traffic struct {
	sinks map[string]Sink
	gone  int64     // live rows that were done with, when last looked
	at    time.Time // when that last changed
}

func newTraffic(sinks map[string]Sink) traffic {
	t := traffic{sinks: sinks}
	t.gone = t.count()
	return t
}

func (t *traffic) count() (gone int64) {
	for _, s := range t.sinks {
		gone += s.Lanes.Gone()
	}
	return gone
}

// flows reports whether live rows were done with lately. Those that wait for the job
// itself are none: the sooner it ends the better for them.
func (t *traffic) flows() bool {
	now := time.Now()
	if gone := t.count(); gone != t.gone {
		t.gone, t.at = gone, now
	}
	return now.Sub(t.at) < calm
}

// makesWay reports whether the job makes way for live rows. Whoever names a rate has
// chosen the speed.
func (r *run) makesWay() bool { return r.spec.Rate == 0 && r.traffic.flows() }

// pageOf bounds the rows of a page while the job makes way.
func (r *run) pageOf(most int) int {
	if r.makesWay() {
		return min(most, smallPage)
	}
	return most
}

// restOf returns for how long to rest after a page that began at a time.
func (r *run) restOf(began time.Time) time.Duration {
	if !r.makesWay() {
		return 0
	}
	return min(restTimes*time.Since(began), mostRest)
}

// makeWay rests after a page that began at a time, if live rows flow.
func (r *run) makeWay(ctx context.Context, began time.Time) error {
	return rest(ctx, r.restOf(began))
}
