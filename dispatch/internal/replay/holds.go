package replay

import (
	"iter"
	"maps"

	"github.com/sluicebox/sluicebox/store"
)

// Holds keeps the rows with their own lanes that were in flight when a job held their key.
// R identifies a row.
type Holds[R comparable] struct {
	inFlight map[store.LaneKey]map[R]bool
}

// NewHolds returns no holds.
func NewHolds[R comparable]() Holds[R] {
	return Holds[R]{inFlight: map[store.LaneKey]map[R]bool{}}
}

// Len is the number of held keys.
func (h *Holds[R]) Len() int { return len(h.inFlight) }

// Hold begins a hold with the rows in flight.
func (h *Holds[R]) Hold(key store.LaneKey, inFlight iter.Seq[R]) {
	rows := map[R]bool{}
	for r := range inFlight {
		rows[r] = true
	}
	h.inFlight[key] = rows
}

// Release ends a hold.
func (h *Holds[R]) Release(key store.LaneKey) { delete(h.inFlight, key) }

// Rows iterates over the rows that a hold waits for; false if there is no hold.
func (h *Holds[R]) Rows(key store.LaneKey) (rows iter.Seq[R], held bool) {
	waits, held := h.inFlight[key]
	return maps.Keys(waits), held
}

// Narrow keeps only the rows that are still in flight, and reports whether none is left.
func (h *Holds[R]) Narrow(key store.LaneKey, inFlight iter.Seq[R]) (quiet bool) {
	before, now := h.inFlight[key], map[R]bool{}
	for r := range inFlight {
		if before[r] {
			now[r] = true
		}
	}
	h.inFlight[key] = now
	return len(now) == 0
}
