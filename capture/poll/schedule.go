package poll

import (
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// recheckInterval is the interval of the check in memory whether excluded rows may be read.
const recheckInterval = 50 * time.Millisecond

// schedule holds the time at which an outbox is read next.
type schedule struct {
	outbox     *store.Outbox
	due        time.Time
	emptyReads int // consecutive reads that found nothing
	// excluded are the lanes that the latest read excluded. noRoom is set if the buffer was
	// full when the outbox was due.
	excluded []store.LaneKey
	noRoom   bool
}

// isDue reports whether to read the outbox if there is room.
func (t *schedule) isDue(now time.Time, lanes Lanes) bool {
	return !t.due.After(now) || t.laneReleased(lanes)
}

// laneReleased reports whether a lane that was excluded may be read now.
func (t *schedule) laneReleased(lanes Lanes) bool {
	if len(t.excluded) == 0 {
		return false
	}
	still := store.LaneSet(lanes.ExcludedLanes(t.outbox.Name))
	for _, k := range t.excluded {
		if _, out := still[k]; !out {
			return true
		}
	}
	return false
}

// nextCheck returns the time of the next check.
func (t *schedule) nextCheck(now time.Time) time.Time {
	if soon := now.Add(recheckInterval); t.noRoom || len(t.excluded) > 0 && soon.Before(t.due) {
		return soon
	}
	return t.due
}

// recordRead schedules the next read after a read of n rows that took d and ended now. more
// is whether there may be more rows.
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

// readInterval returns the time between two reads after a number of consecutive empty reads.
func (c *Config) readInterval(empty int) time.Duration {
	wait := c.Interval
	for range empty - c.Backoff.Threshold {
		if wait *= time.Duration(c.Backoff.Multiplier); wait >= c.Backoff.Max {
			break
		}
	}
	return max(c.Interval, min(wait, c.Backoff.Max))
}
