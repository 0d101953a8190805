package spill

import (
	"cmp"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/internal/lane"
)

// Excess starts to evict rows until half the buffer is free. It takes lanes in this order:
//
//   - lanes that do not move although their sink works
//   - lanes that hang, if together they have more than half the buffer, because no other row
//     could come in
//   - with others: lanes that do not move for any reason
//   - with others: lanes with more than half the buffer
//   - with others: lanes that have waited longest
//
// So it leaves a healthy lane that waits for its turn in memory if it can.
func (sp *Spiller) Excess(others bool, now time.Time) {
	excess := sp.lanes.Memory.Used(lane.Buffered) - sp.spills.direct - sp.cfg.BufferRows/2
	for l := range sp.shrinking {
		excess -= l.LeavingRows()
	}
	if sp.ended || excess <= 0 {
		return
	}
	heads := sp.cfg.BufferRows / 4 // rows that waiting lanes may keep

	keeps := sp.lanes.WaitingKeepRows()
	for _, l := range sp.candidates(others, now) {
		if excess <= 0 {
			return
		}
		keep := 0
		if l.State != lane.Held && l.IsWaiting() {
			if units := max(keeps, lane.UnitsOf(l.Rows[:min(keeps, len(l.Rows))])); heads >= units {
				keep = keeps
				heads -= units
			}
		}
		excess -= sp.Shrink(l, keep)
	}
}

// ForLog spills the rows of lanes that do not move, or of all lanes. The rows stay in memory
// too.
func (sp *Spiller) ForLog(all bool) {
	for _, l := range sp.lanes.ByAge() {
		if all || l.State == lane.Held || l.IsWaiting() {
			sp.Rows(l)
		}
	}
}

// candidates returns the lanes that may leave memory, the best first.
func (sp *Spiller) candidates(others bool, now time.Time) []*lane.Lane {
	hanging := sp.hangingRows(now) > sp.cfg.BufferRows/2
	rank := func(l *lane.Lane) int {
		switch {
		case hanging && hangs(l, now):
			return 0
		case l.State == lane.Held, l.Receiver.Named && l.Receiver.Breaker.Open(), l.State == lane.Waiting && l.Failures > 1 && !l.Receiver.Breaker.Open(), l.IsAside(), l.WaitsForRefused():
			return 0
		case l.IsWaiting():
			return 1
		case len(l.Rows) > sp.cfg.BufferRows/2:
			return 2
		}
		return 3
	}

	var found []*lane.Lane
	ranks := map[*lane.Lane]int{}
	for _, l := range sp.lanes.Live() {
		if sp.shrinking[l] || l.Reloading || len(l.Rows) == 0 || l.AllReloaded() || l.Rows[len(l.Rows)-1].Copy == lane.CopyRefused {
			continue
		}
		if r := rank(l); others || r == 0 {
			found, ranks[l] = append(found, l), r
		}
	}

	slices.SortFunc(found, func(a, b *lane.Lane) int {
		by := len(b.Rows) - len(a.Rows)
		if ranks[a] == 3 {
			by = cmp.Compare(a.Rows[0].Seq, b.Rows[0].Seq)
		}
		return cmp.Or(ranks[a]-ranks[b], by, cmp.Compare(a.CreatedOrder, b.CreatedOrder))
	})
	return found
}

// hangs reports whether a request of a lane is not answered for long, or its next one begins so
// long after it, for example because the receiver sent Retry-After. Its receiver works.
func hangs(l *lane.Lane, now time.Time) bool {
	until := now
	switch l.State {
	case lane.Sending:
	case lane.Waiting:
		until = l.WakeAt
	default:
		return false
	}
	return !l.SentAt.IsZero() && !l.Receiver.Breaker.Open() && until.Sub(l.SentAt) >= l.Receiver.HangsAfter()
}

// hangingRows is the number of rows in lanes that hang.
func (sp *Spiller) hangingRows(now time.Time) (n int) {
	for _, l := range sp.lanes.Live() {
		if hangs(l, now) {
			n += len(l.Rows)
		}
	}
	return n
}

// Shrink spills a lane and evicts all but keep rows, or all but the pinned rows if they are
// more. It returns how many rows leave memory.
func (sp *Spiller) Shrink(l *lane.Lane, keep int) int {
	before := len(l.Rows)
	sp.dropRequeued(l)
	sp.Rows(l)
	sp.unclaimRows(l, keep)
	l.KeepRows, l.HasSpilled = keep, l.Name.RowID == ""
	sp.shrinking[l] = true
	n := before - len(l.Rows) + l.LeavingRows()
	if len(l.Rows) == 0 && l.State != lane.Held {
		sp.lanes.Dequeue(l)
	}
	sp.Evict(l)
	if sp.lanes.Get(l.Name) == l {
		sp.core.Wake(l)
	}
	return n
}

// dropRequeued drops requeued rows without a seq. The sweep finds them in their table
// again.
func (sp *Spiller) dropRequeued(l *lane.Lane) {
	kept := l.Rows[:0]
	for i, rw := range l.Rows {
		if i < l.InFlight || rw.Seq != 0 || rw.Ticket != nil || rw.Pinned() {
			kept = append(kept, rw)
			continue
		}
		sp.Remove(rw)
	}
	clear(l.Rows[len(kept):])
	l.Rows, l.Covered = kept, 0
}

// unclaimRows gives back the claims of a lane that does not move, except for the rows it
// keeps. The lane claims no row until the head's claim is given back.
func (sp *Spiller) unclaimRows(l *lane.Lane, keep int) {
	if l.State != lane.Held && !l.IsWaiting() {
		return
	}
	for i, rw := range l.Rows {
		if i >= max(keep, l.InFlight) && !rw.Claimed.IsZero() && rw.Skip == nil && rw.Stage != lane.Reset {
			rw.GiveBack()
			sp.core.Unclaim(rw)
		}
	}
	if len(l.Rows) > 0 && l.Rows[0].Sight == lane.Unclaiming && l.State != lane.Held {
		sp.lanes.Dequeue(l)
	}
}

// Evict evicts the spilled rows of a shrinking lane, once none of its rows in memory is
// being spilled.
func (sp *Spiller) Evict(l *lane.Lane) {
	if !sp.shrinking[l] || l.SpillingInMemory() {
		return
	}
	if !slices.ContainsFunc(l.Rows, func(rw *lane.Row) bool { return rw.Sight == lane.Unclaiming }) {
		delete(sp.shrinking, l)
	}
	n := l.PinnedRows()
	if n == 0 && len(l.Rows) > 0 {
		l.SaveFailures()
	}

	for _, rw := range l.Rows[n:] {
		sp.Remove(rw)
		sp.countSpilled(l, rw)
	}

	l.Rows, l.Covered = slices.Clone(l.Rows[:n]), min(l.Covered, n)
	switch {
	case n > 0:
	case l.Spilling == 0 && len(l.UnspillableTail) == 0:
		sp.evictLane(l)
	case l.State == lane.Ready:
		sp.lanes.Dequeue(l)
	}
}

// countSpilled records that a spilled row of a lane is not in memory.
func (sp *Spiller) countSpilled(l *lane.Lane, rw *lane.Row) {
	if l.Name.RowID != "" {
		// Such rows are spilled as one lane, which has none of them in memory.
		l = sp.Lane(lane.Name{LaneKey: l.Name.LaneKey})
		l.MissedDuringReload = l.Reloading
		defer sp.core.Wake(l)
	}
	l.ReloadedUpTo = min(l.ReloadedUpTo, rw.Seq-1)
	l.HasSpilled = true
	l.SpilledRows++
}
