package dispatch

import (
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Stats is what a dispatcher holds at a moment, without what is replayed.
type Stats struct {
	Rows   int // in memory, until their outcome is written
	Parked int // in the store's parked rows, some of them in memory too
	// Unparkable rows are in memory because the store does not take them.
	Unparkable int
	Waiting    int            // in memory or parked, each counted once
	Bytes      int64          // payloads in memory
	InFlight   int            // claims and requests under way, with those of replayed rows
	Lanes      map[string]int // by state
	// Oldest is when the oldest of the rows in memory was committed, or, where the
	// log does not tell, captured. It is zero if there is none; of rows that are
	// parked alone it is not known.
	Oldest  time.Time
	Suspect []Suspicion // endpoints that are suspect
}

// Stats counts what the dispatcher holds; the time is linear in the rows in memory.
func (d *Dispatcher) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.stats()
}

func (c *core) stats() Stats {
	s := Stats{
		Rows: c.rows, Parked: c.parkedRows, Unparkable: c.unparkable, Bytes: c.bytes, InFlight: c.claiming + c.sending,
		Lanes:   map[string]int{parkedWord: 0, replayingWord: 0, stalledWord: 0, store.Blocked.String(): 0, store.Paused.String(): 0},
		Suspect: c.suspicions(),
	}
	for st := laneReady; st < laneHeld; st++ {
		s.Lanes[st.String()] = 0
	}
	for _, away := range c.away {
		s.Lanes[parkedWord] += away.lanes.n
	}
	copies := 0 // of parked rows in memory
	see := func(rw *row) {
		if rw.parked {
			copies++
		}
		if since := rw.since(); !since.IsZero() && (s.Oldest.IsZero() || since.Before(s.Oldest)) {
			s.Oldest = since
		}
	}
	for _, l := range c.lanes {
		s.Lanes[l.word()]++
		for _, rw := range l.rows {
			see(rw)
		}
		for _, rw := range l.tail {
			see(rw)
		}
	}
	for o := range c.unwritten() {
		// Its lane has gone on without it. What is given back left memory, or is
		// still in its lane.
		if o.lane == nil && o.Status.Settled() {
			see(o.row)
		}
	}
	s.Waiting = max(0, s.Rows+s.Parked-copies)
	return s
}

// since is when a row was committed, as far as it is known.
func (rw *row) since() time.Time {
	if !rw.Committed.IsZero() {
		return rw.Committed
	}
	return rw.Captured
}
