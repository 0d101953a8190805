package poll

import (
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// lookAgain is how often the lanes are asked, in memory, whether what was left
// out may be read.
const lookAgain = 50 * time.Millisecond

// turn is when an outbox is read.
type turn struct {
	outbox string
	due    time.Time
	empty  int // reads in a row that found nothing
	// left are the lanes that the latest read left out; full says that there was
	// no room when its turn had come.
	left []store.LaneKey
	full bool
}

// asks reports whether the outbox is to be read if there is room.
func (t *turn) asks(now time.Time, lanes Lanes) bool { return !t.due.After(now) || t.moved(lanes) }

// moved reports whether a lane that was left out may be read.
func (t *turn) moved(lanes Lanes) bool {
	if len(t.left) == 0 {
		return false
	}
	still := store.LaneSet(lanes.Standing(t.outbox))
	for _, k := range t.left {
		if _, out := still[k]; !out {
			return true
		}
	}
	return false
}

// next is when to ask again.
func (t *turn) next(now time.Time) time.Time {
	if soon := now.Add(lookAgain); t.full || len(t.left) > 0 && soon.Before(t.due) {
		return soon
	}
	return t.due
}

// took notes a read of n rows that ended now and took its time, and whether there may
// be more.
func (t *turn) took(cfg *Config, n int, more bool, d time.Duration, now time.Time) {
	switch {
	case more:
		t.empty, t.due = 0, now
		return
	case n > 0:
		t.empty = 0
	default:
		t.empty++
	}
	t.due = now.Add(max(cfg.pause(t.empty), d))
}

// wake makes the outbox due at once.
func (t *turn) wake(now time.Time) { t.empty, t.due = 0, now }

// pause is the time between two reads after so many in a row found nothing.
func (c *Config) pause(empty int) time.Duration {
	wait := c.Interval
	for range empty - c.Backoff.Threshold {
		if wait *= time.Duration(c.Backoff.Multiplier); wait >= c.Backoff.Max {
			break
		}
	}
	return max(c.Interval, min(wait, c.Backoff.Max))
}
