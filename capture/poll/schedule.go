package poll

import (
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// recheckInterval is how often the lanes are asked, in memory, whether what was left
// out may be read.
const recheckInterval = 50 * time.Millisecond

// schedule is when an outbox is read.
type schedule struct {
	outbox     string
	due        time.Time
	emptyReads int // reads in a row that found nothing
	// excluded are the lanes that the latest read left out; full says that there was
	// no room when its turn had come.
	excluded []store.LaneKey
	noRoom   bool
}

// isDue reports whether the outbox is to be read if there is room.
func (t *schedule) isDue(now time.Time, lanes Lanes) bool {
	return !t.due.After(now) || t.laneReleased(lanes)
}

// laneReleased reports whether a lane that was left out may be read.
func (t *schedule) laneReleased(lanes Lanes) bool {
	if len(t.excluded) == 0 {
		return false
	}
	still := store.LaneSet(lanes.ExcludedLanes(t.outbox))
	for _, k := range t.excluded {
		if _, out := still[k]; !out {
			return true
		}
	}
	return false
}

// nextCheck is when to ask again.
func (t *schedule) nextCheck(now time.Time) time.Time {
	if soon := now.Add(recheckInterval); t.noRoom || len(t.excluded) > 0 && soon.Before(t.due) {
		return soon
	}
	return t.due
}

// recordRead notes a read of n rows that ended now and took its time, and whether there may
// be more.
func (t *schedule) recordRead(cfg *Config, n int, more bool, d time.Duration, now time.Time) {
	switch {
	case more:
		t.emptyReads, t.due = 0, now
		return
	case n > 0:
		t.emptyReads = 0
	default:
		t.emptyReads++
	}
	t.due = now.Add(max(cfg.readInterval(t.emptyReads), d))
}

// wake makes the outbox due at once.
func (t *schedule) wake(now time.Time) { t.emptyReads, t.due = 0, now }

// readInterval is the time between two reads after so many in a row found nothing.
func (c *Config) readInterval(empty int) time.Duration {
	wait := c.Interval
	for range empty - c.Backoff.Threshold {
		if wait *= time.Duration(c.Backoff.Multiplier); wait >= c.Backoff.Max {
			break
		}
	}
	return max(c.Interval, min(wait, c.Backoff.Max))
}
