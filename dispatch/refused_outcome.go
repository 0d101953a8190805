package dispatch

import (
	"cmp"
	"container/heap"
	"iter"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/store"
)

// A table may refuse an outcome: a trigger or a constraint objects. The outcome stays
// in memory and is tried again, with back-off, for as long as it takes. Meanwhile the
// row must not keep the log. So its row is parked at once, which costs one insert: its
// outbox row is still open, and after a restart the parked copy is claimed and sent
// again. The outcome forgets the copy in the transaction that writes it.
//
// A COMPLETED row is in no lane any more, and its group goes on. A lane waits for the
// other outcomes of its head and stands still; what is behind the head is parked as in
// any such lane. Once half a buffer of outcomes is refused, no row is claimed, because
// it would be sent again after a restart. What a refused outcome costs is some hundred
// bytes: the payload is dropped. So what is held is half a buffer of refused outcomes, and
// at the most as many more as the buffer held of rows that were delivered by then.

// minRefusalWait and maxRefusalWait bound the wait before an outcome that the store
// refused is tried again.
const (
	minRefusalWait = time.Second
	maxRefusalWait = time.Minute
	// maxRefusalBytes is how many bytes of the database's words are kept.
	maxRefusalBytes = 300
)

// deferRefused puts an outcome aside that the store did not take.
func (c *core) deferRefused(o *outcome, now time.Time) {
	if o.tries == 0 {
		c.refusedOutcomes++
		o.since = now
	}
	o.due = now.Add(min(minRefusalWait<<min(o.tries, 10), maxRefusalWait))
	o.tries++
	if o.lane != nil {
		o.lane.setRefusal(o.refusal, now)
	}
	c.spillUnwritten(o)
	heap.Push(&c.retryQueue, *o)
}

// setRefusal notes that the table refuses the claim or the outcome of the lane's head.
func (l *lane) setRefusal(why string, now time.Time) {
	if l.refusal == "" {
		l.refusedSince = now
	}
	l.refusal = why
}

// clearRefused is told that an outcome needs no other try.
func (c *core) clearRefused(o *outcome) {
	if o.tries == 0 {
		return
	}
	c.refusedOutcomes--
	if o.lane != nil {
		o.lane.refusal = ""
	}
}

// spillUnwritten parks the row of an outcome that is put aside, so that the checkpoint passes
// it. A row that is given back is still in its lane, or nobody waits for it; one that
// was set back and has no place in the log is found in its table again.
func (c *core) spillUnwritten(o *outcome) {
	rw := o.row
	switch {
	case o.lane == nil && o.Status == store.Pending, rw.spilling:
	case rw.spilled && o.lane == nil:
		c.detachRow(rw)
	case rw.spilled || rw.unspillable || rw.Seq == 0 || c.ended || !c.spillEnabled:
		c.dropPayload(rw)
	default:
		if o.Status.Settled() {
			c.settlingSpilled[store.SpilledRef{Ref: rw.Ref, Seq: rw.Seq}] = true // nobody reads it back
		}
		if o.lane != nil {
			c.queueSpill(o.lane, rw, true)
			return
		}
		rw.spilling = true
		c.toSpill = append(c.toSpill, pendingSpill{row: rw, copied: true})
	}
}

// deferredOutcomes goes through the outcomes that the store does not take for now, in no order.
func (c *core) deferredOutcomes() iter.Seq[*outcome] {
	return func(yield func(*outcome) bool) {
		queues := [][]outcome{c.retryQueue}
		for _, t := range c.tableLocks {
			queues = append(queues, t.outcomes)
		}
		for _, queue := range queues {
			for i := range queue {
				if !yield(&queue[i]) {
					return
				}
			}
		}
	}
}

// detachRow takes a parked row out of the buffer whose outcome is put aside and which
// is in no lane.
func (c *core) detachRow(rw *row) {
	c.dropPayload(rw)
	c.clearExtraWeight(rw)
	c.clearReloaded(rw)
	if !rw.detached {
		rw.detached = true
		c.detachedRows++
	}
}

// requeueOutcome queues an outcome again that was put aside. Its row may have been parked since.
func (c *core) requeueOutcome(o outcome) {
	if o.lane == nil && o.Status == store.Pending {
		c.queueOutcome(o) // a parked row stays so
		return
	}
	c.enqueue(o)
}

// Refusal is a row whose claim or outcome its table refuses.
type Refusal struct {
	store.Ref
	Error string
	Since time.Time // when it was first refused
}

// RefusedRows returns the longest refused rows, at most most, how many there are by
// outbox, and whether there are so many that nothing is sent. The time is linear in
// the lanes.
func (d *Dispatcher) RefusedRows(most int) (rows []Refusal, byOutbox map[string]int, stopped bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	rows = d.core.refusedRows()
	byOutbox = map[string]int{}
	for i := range rows {
		byOutbox[rows[i].Outbox]++
	}
	return rows[:min(most, len(rows))], byOutbox, d.core.refusedOutcomes > 0 && d.core.tooManyUnwritten()
}

func (c *core) refusedRows() (rows []Refusal) {
	for o := range c.eachRefusedOutcome() {
		rows = append(rows, Refusal{o.Ref, o.refusal, o.since})
	}
	for _, l := range c.lanes {
		if l.refusal != "" && l.state != laneWriting && len(l.rows) > 0 {
			rows = append(rows, Refusal{l.rows[0].Ref, l.refusal, l.refusedSince})
		}
	}
	slices.SortFunc(rows, func(a, b Refusal) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Outbox, b.Outbox), cmp.Compare(a.ID, b.ID))
	})
	return rows
}

// unwrittenLanes describes the lanes of rows that were delivered and whose COMPLETED
// the table refuses. Such a lane may have gone on, or have no rows any more.
func (c *core) unwrittenLanes() map[LaneName]*LaneInfo {
	lanes := map[LaneName]*LaneInfo{}
	first := map[LaneName]time.Time{}
	for o := range c.eachRefusedOutcome() {
		if o.lane != nil || o.Status != store.Completed {
			continue
		}
		name := c.laneNameOf(&o.row.Item)
		in := lanes[name]
		if in == nil {
			in = &LaneInfo{LaneKey: name.LaneKey, RowID: name.RowID, State: laneWriting.String()}
			lanes[name] = in
		}
		in.Unwritten++
		if since, there := first[name]; !there || o.since.Before(since) {
			first[name] = o.since
			in.Head, in.Attempts, in.RetryCount, in.Error = o.ID, o.row.attempts, o.row.RetryCount, o.refusal
		}
	}
	return lanes
}

// eachRefusedOutcome goes through the outcomes that the store has refused.
func (c *core) eachRefusedOutcome() iter.Seq[*outcome] {
	return func(yield func(*outcome) bool) {
		if c.refusedOutcomes == 0 {
			return
		}
		for o := range c.unwrittenOutcomes() {
			if o.tries > 0 && !yield(o) {
				return
			}
		}
		for _, queue := range [][]pendingSpill{c.toSpill, c.spilling} {
			for i := range queue {
				if o := queue[i].row.pendingOutcome; o != nil && o.tries > 0 && !yield(o) {
					return
				}
			}
		}
	}
}

// shortenError shortens what a database says.
func shortenError(text string) string {
	if len(text) <= maxRefusalBytes {
		return text
	}
	n := maxRefusalBytes
	for !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + " …"
}

// enableSpill says whether rows may be parked.
func (d *Dispatcher) enableSpill(may bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.core.spillEnabled = may
}
