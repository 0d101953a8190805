package dispatch

import (
	"cmp"
	"maps"
	"slices"
	"time"

	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/store"
)

// drained reports whether nothing is in flight: no claim, late or not, no request or outcome. Outcomes that
// the store refuses or whose table is locked do not count. Early outcomes do, because their
// rows become visible soon.
func (c *core) drained() bool {
	spills := c.spill.Counts()
	return spills.Waiting+spills.Writing+c.lanes.Requests.Busy()+c.late.claiming()+c.replays.jobs.Unrecorded() == 0 && !c.outcomes.Busy()
}

// end spills the rows that only the log has, so that the checkpoint passes all rows delivered
// behind them. It starts no new run and gives back every claimed row that is not in a request. Replayed
// rows that are in no request leave memory, because the store keeps them.
func (c *core) end() {
	c.ended = true
	c.overtaken.end()
	c.spill.End()
	for _, req := range c.lanes.Requests.TakeUnsent(func(*request) bool { return true }) {
		req.Receiver().Breaker.Withdraw(req.Probe) // others may probe while this one drains
		c.lanes.Memory.ReleaseLarge(req)
		for _, r := range req.Runs {
			c.release(r.Lane)
		}
	}

	for id := range c.replays.jobs.All() {
		c.replays.withdraw(id)
	}

	byCreation := func(a, b *lane) int { return cmp.Compare(a.CreatedOrder, b.CreatedOrder) }
	for _, l := range slices.SortedFunc(maps.Values(c.lanes.Live()), byCreation) { // map order is random
		if l.State != lanes.Claiming && l.State != lanes.Sending {
			c.unclaimLane(l)
		}
	}
}

// unclaimLane gives back the claimed rows of a lane if the core has ended. A head with an
// outcome in flight keeps it.
func (c *core) unclaimLane(l *lane) {
	if !c.ended {
		return
	}
	rows := l.Rows
	if l.State == lanes.Writing {
		rows = rows[1:]
	}
	for _, rw := range rows {
		if c.overtaken.holding(rw) != nil {
			c.spill.Row(l, rw) // a retry of it was being written when the core ended
		}
		c.Unclaim(rw)
	}
}

// Unclaim queues PENDING for a claimed row.
func (c *core) Unclaim(rw *row) {
	if rw.Claimed.IsZero() {
		return
	}
	rw.Claimed = time.Time{}
	c.outcomes.Add(outcome{Of: owner{Row: rw}, Outcome: store.Outcome{
		Ref: rw.Ref, Status: store.Pending, RetryCount: rw.RetryCount,
	}})
}
