package dispatch

import (
	"time"

	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/store"
)

// Stats is a snapshot of the rows a dispatcher holds, without replayed rows.
type Stats struct {
	Rows    int // in memory, until their outcome is written
	Spilled int // in the spilled rows of the store; some are in memory too

	// Unspillable rows are in memory because the store refuses to spill them.
	Unspillable int
	Waiting     int            // in memory or spilled, each counted once
	Bytes       int64          // payloads in memory
	InFlight    int            // claims and requests, replays included
	Lanes       map[string]int // by state

	// Oldest is the commit time of the oldest row in memory, or its capture time if the log
	// has no commit time. It is zero if no row is in memory. Rows that are only in the
	// store do not count.
	Oldest       time.Time
	OpenBreakers []OpenBreaker // endpoints with an open circuit breaker
}

// Stats counts the rows that the dispatcher holds. The time is linear in the rows in
// memory.
func (d *Dispatcher) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.stats()
}

func (c *core) stats() Stats {
	spilled := c.spill.Counts()
	s := Stats{
		Rows: c.lanes.Memory.Total(), Spilled: spilled.Stored, Unspillable: spilled.Unspillable, Bytes: c.lanes.Memory.Bytes(), InFlight: c.lanes.Requests.Busy(),
		Lanes:        map[string]int{lanes.Spilled: 0, lanes.Replaying: 0, lanes.Stalled: 0, store.Blocked.String(): 0, store.Paused.String(): 0},
		OpenBreakers: c.openBreakers(),
	}

	for st := lanes.Ready; st < lanes.Held; st++ {
		s.Lanes[st.String()] = 0
	}
	s.Lanes[lanes.Spilled] += spilled.Lanes
	copies := 0 // spilled rows that are also in memory
	see := func(rw *row) {
		if rw.Copy == lanes.CopyStored {
			copies++
		}
		if since := rw.CommittedOrCaptured(); !since.IsZero() && (s.Oldest.IsZero() || since.Before(s.Oldest)) {
			s.Oldest = since
		}
	}

	for _, l := range c.lanes.Live() {
		s.Lanes[l.StateName()]++
		for _, rw := range l.Rows {
			see(rw)
		}
		for _, rw := range l.UnspillableTail {
			see(rw)
		}
	}

	for o := range c.outcomes.All() {
		// Its lane has gone on without it. Rows whose claim is given back have left memory
		// or are still in their lane.
		if o.Of.Lane == nil && o.Status.Settled() {
			see(o.Of.Row)
		}
	}

	s.Waiting = max(0, s.Rows+s.Spilled-copies)
	return s
}
