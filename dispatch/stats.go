package dispatch

import (
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Stats is what a dispatcher holds at a moment, without what is replayed.
type Stats struct {
	Rows    int // in memory, until their outcome is written
	Spilled int // in the store's parked rows, some of them in memory too
	// Unspillable rows are in memory because the store does not take them.
	Unspillable int
	Waiting     int            // in memory or parked, each counted once
	Bytes       int64          // payloads in memory
	InFlight    int            // claims and requests under way, with those of replayed rows
	Lanes       map[string]int // by state
	// Oldest is when the oldest of the rows in memory was committed, or, where the
	// log does not tell, captured. It is zero if there is none; of rows that are
	// parked alone it is not known.
	Oldest       time.Time
	OpenBreakers []OpenBreaker // endpoints that are suspect
}

// Stats counts what the dispatcher holds; the time is linear in the rows in memory.
func (d *Dispatcher) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.stats()
}

func (c *core) stats() Stats {
	s := Stats{
		Rows: c.rows, Spilled: c.spilledRows, Unspillable: c.unspillableRows, Bytes: c.bytes, InFlight: c.claiming + c.sending,
		Lanes:        map[string]int{stateSpilled: 0, stateReplaying: 0, stateStalled: 0, store.Blocked.String(): 0, store.Paused.String(): 0},
		OpenBreakers: c.openBreakers(),
	}
	for st := laneReady; st < laneHeld; st++ {
		s.Lanes[st.String()] = 0
	}
	for _, away := range c.spilledLanes {
		s.Lanes[stateSpilled] += away.lanes.n
	}
	copies := 0 // of parked rows in memory
	see := func(rw *row) {
		if rw.spilled {
			copies++
		}
		if since := rw.committedOrCaptured(); !since.IsZero() && (s.Oldest.IsZero() || since.Before(s.Oldest)) {
			s.Oldest = since
		}
	}
	for _, l := range c.lanes {
		s.Lanes[l.stateName()]++
		for _, rw := range l.rows {
			see(rw)
		}
		for _, rw := range l.unspillableTail {
			see(rw)
		}
	}
	for o := range c.unwrittenOutcomes() {
		// Its lane has gone on without it. What is given back left memory, or is
		// still in its lane.
		if o.lane == nil && o.Status.Settled() {
			see(o.row)
		}
	}
	s.Waiting = max(0, s.Rows+s.Spilled-copies)
	return s
}

// committedOrCaptured is when a row was committed, as far as it is known.
func (rw *row) committedOrCaptured() time.Time {
	if !rw.Committed.IsZero() {
		return rw.Committed
	}
	return rw.Captured
}
