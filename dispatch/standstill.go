package dispatch

import "time"

// Only the checkpoint knows which rows of a table without a state were delivered: a crash
// sends the rows of the log behind it again. So a lane that stands must not hold it. Its rows
// are spilled, in a request or not, and stay in memory. Rows that follow are spilled at once.

const (
	// standstillAfter and standstillInterval together spill a row of a lane that stands
	// within a second. Each look visits all lanes.
	standstillAfter    = 800 * time.Millisecond
	standstillInterval = 200 * time.Millisecond
)

// looksForStanding reports whether there may be rows that only the checkpoint knows.
func (c *core) looksForStanding() bool {
	return !c.ended && c.lanes.Memory.KeepsContent() && len(c.lanes.Live()) > 0
}

// spillStanding spills the lanes that stand, of outboxes whose rows only the log has.
func (c *core) spillStanding(now time.Time) {
	if !c.looksForStanding() || now.Before(c.nextLook) {
		return
	}
	c.nextLook = now.Add(standstillInterval)
	for _, l := range c.lanes.ByAge() {
		if !c.lanes.Memory.LogOnly[l.Name.Outbox] {
			continue
		}
		if l.Look(now, standstillAfter); l.Stands {
			c.spill.AllRows(l)
		}
	}
}
