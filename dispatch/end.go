package dispatch

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// quiet reports whether nothing is on its way: no claim, no request, no outcome
// but those that the store refuses or whose table is locked. One that was too early is
// worth the wait.
func (c *core) quiet() bool {
	return len(c.parkings) == 0 && c.claiming+c.sending == 0 && len(c.outcomes) == 0 && len(c.writing) == 0 && c.early == 0 &&
		len(c.done)+len(c.noting) == 0
}

// end stops new runs for good and gives back every claimed row that is not in a
// request. Replayed rows that are in none leave memory: the store has them.
func (c *core) end() {
	c.ended = true
	for i := range c.toPark { // the log or the table brings them again
		rw := c.toPark[i].row
		rw.parking = false
		if o := rw.late; o != nil {
			rw.late = nil
			c.enqueue(*o)
		}
	}
	c.toPark = nil
	for c.toSend.len() > 0 {
		req := c.toSend.pop()
		c.over(req)
		for _, r := range req.runs {
			c.release(r.lane)
		}
	}
	for id := range c.jobs {
		c.takeJobBack(id)
	}
	n := len(c.outcomes)
	for _, l := range c.lanes {
		if l.state != laneClaiming && l.state != laneSending {
			c.giveBack(l)
		}
	}
	slices.SortFunc(c.outcomes[n:], func(a, b outcome) int { // a map's order is none
		return cmp.Or(strings.Compare(a.Outbox, b.Outbox), strings.Compare(a.ID, b.ID))
	})
}

// giveBack queues PENDING for the claimed rows of a lane, if the core has ended.
// A head that has an outcome on its way keeps that.
func (c *core) giveBack(l *lane) {
	if !c.ended {
		return
	}
	rows := l.rows
	if l.state == laneWriting {
		rows = rows[1:]
	}
	for _, rw := range rows {
		c.unclaim(rw)
	}
}

// unclaim queues PENDING for a row, if it is claimed.
func (c *core) unclaim(rw *row) {
	if rw.claimed.IsZero() {
		return
	}
	rw.claimed = time.Time{}
	c.post(outcome{row: rw, Outcome: store.Outcome{
		Ref: rw.Ref, Status: store.Pending, RetryCount: rw.RetryCount,
	}})
}
