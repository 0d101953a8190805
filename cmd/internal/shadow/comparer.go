package shadow

import (
	"container/list"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// Limits bound what a Comparer finds and keeps.
type Limits struct {
	// StuckAfter is how long a taken row may be unfinished, LostAfter how long a row may wait
	// for its processor.
	StuckAfter, LostAfter time.Duration
	// MaxRows is the most unfinished rows in memory, and the most finished ones. A row that is
	// inserted while there are as many is counted, and not followed.
	MaxRows int
	// Unordered are the outboxes whose rows without a group have no order.
	Unordered map[string]bool
}

// Comparer finds out from the changes of outbox rows what their processor did. It is pure: its
// times are those of the changes. It is not safe for concurrent use.
//
// A row without a first change is unknown, for example because it was inserted earlier. The
// comparer knows no order, no time and no group of it, so it only counts its changes.
type Comparer struct {
	limits   Limits
	outboxes map[string]*findings
	names    []string // in the order of the configuration

	rows map[store.Ref]*row
	open int
	// Rows in the order of their last change. Rows that are overdue are in no list.
	pending, processing, settled list.List
	lanes                        map[store.LaneKey]*lane
	deleted                      map[store.Ref]*row // by the transaction gone
	gone                         store.Txn
	order                        uint64 // of the last insert

	committed, captured time.Time // of the last change
}

// row is a row whose insert was seen.
type row struct {
	ref                     store.Ref
	lane                    store.LaneKey
	order                   uint64 // of inserts
	status                  store.Status
	inserted, taken, change time.Time // taken for the first time; zero if not
	in                      *list.List
	at                      *list.Element
	overdue                 *int // the count of overdue rows that has the row; nil if it has not
	again                   bool // it was finished before: its order and its times say nothing
}

// lane is a message group with unfinished rows. A group without any needs no memory, because a
// later row is behind all its delivered rows.
type lane struct {
	open int
	// last is the last delivered row in the order of inserts, and before the last one of the
	// transactions before that of last. Rows of one transaction are delivered together.
	last, before delivery
}

type delivery struct {
	order uint64
	id    string
	txn   store.Txn
}

// NewComparer returns a comparer of outboxes.
func NewComparer(outboxes []store.Outbox, limits Limits) *Comparer {
	c := &Comparer{
		limits: limits, outboxes: map[string]*findings{}, rows: map[store.Ref]*row{},
		lanes: map[store.LaneKey]*lane{}, deleted: map[store.Ref]*row{},
	}
	for i := range outboxes {
		o := &outboxes[i]
		c.names = append(c.names, o.Name)
		c.outboxes[o.Name] = &findings{deleteDelivers: o.Layout.DeleteDelivered, unordered: limits.Unordered[o.Name]}
	}
	return c
}

// Apply takes changes, in the order of the log.
func (c *Comparer) Apply(changes []capture.Change) {
	for i := range changes {
		ch := &changes[i]
		if ch.Txn != c.gone {
			c.finishDeletes()
		}
		if f := c.outboxes[ch.Lane.Outbox]; f != nil {
			c.committed, c.captured = timeOf(ch), ch.Captured
			c.apply(ch, f)
		}
	}
}

// timeOf returns the time of a change. Without the server's time it is that of the reader, which
// is later by the delay of the log.
func timeOf(ch *capture.Change) time.Time {
	if ch.Committed.IsZero() {
		return ch.Captured
	}
	return ch.Committed
}

func (c *Comparer) apply(ch *capture.Change, f *findings) {
	ref := store.Ref{Outbox: ch.Lane.Outbox, ID: ch.ID}
	r := c.rows[ref]
	switch ch.Kind {
	case capture.Inserted:
		if moved := c.deleted[ref]; moved != nil { // to another partition
			delete(c.deleted, ref)
			r = moved
			c.rows[ref] = r
		}
		if r == nil {
			c.insert(ref, ch, f)
			return
		}
		c.transition(r, ch, f)
	case capture.Updated:
		switch {
		case r != nil:
			c.transition(r, ch, f)
		case ch.Status != 0:
			f.total.Unknown++
		}
	case capture.Deleted:
		switch {
		case ch.ID == "":
			f.total.Unidentified++
		case r != nil:
			delete(c.rows, ref)
			r.change = timeOf(ch)
			c.deleted[ref], c.gone = r, ch.Txn
		}
	case capture.Truncated:
		for ref, r := range c.rows {
			if ref.Outbox == ch.Lane.Outbox {
				c.remove(r, ch.Txn)
			}
		}
	}
}

// finishDeletes removes the deleted rows once their transaction has not inserted them again.
func (c *Comparer) finishDeletes() {
	if len(c.deleted) == 0 {
		return
	}
	for _, r := range c.deleted {
		c.remove(r, c.gone)
	}
	clear(c.deleted)
}

// remove forgets a deleted row.
func (c *Comparer) remove(r *row, txn store.Txn) {
	f := c.outboxes[r.ref.Outbox]
	if !r.status.Settled() {
		if f.deleteDelivers {
			c.deliver(r, f, r.change, txn)
		} else {
			f.total.Deleted++
			f.examples.Deleted.add(Example{ID: r.ref.ID, Group: r.lane.Group})
		}
		c.close(r)
	}
	c.unlist(r)
	delete(c.rows, r.ref)
}

func (c *Comparer) insert(ref store.Ref, ch *capture.Change, f *findings) {
	if ch.Status.Settled() {
		return // no processor has to do with it
	}
	f.total.Seen++
	if !ch.Committed.IsZero() {
		f.captured.add(ch.Captured.Sub(ch.Committed))
	}
	if c.open >= c.limits.MaxRows {
		f.total.Untracked++
		return
	}
	c.order++
	ch.Lane.Group.Name = shorten(ch.Lane.Group.Name)
	r := &row{ref: ref, lane: ch.Lane, order: c.order, status: store.Pending, inserted: timeOf(ch)}
	c.rows[ref] = r
	if c.openLane(r).open == 1 {
		f.total.LaneFree++
	}
	c.enlist(r, &c.pending, r.inserted)
	if ch.Status == store.Processing {
		c.transition(r, ch, f)
	}
}

// openLane counts an unfinished row.
func (c *Comparer) openLane(r *row) *lane {
	l := c.lanes[r.lane]
	if l == nil {
		l = &lane{}
		c.lanes[r.lane] = l
	}
	l.open++
	c.open++
	f := c.outboxes[r.ref.Outbox]
	f.open++
	return l
}

// close ends an unfinished row.
func (c *Comparer) close(r *row) {
	l := c.lanes[r.lane]
	if l.open--; l.open == 0 {
		delete(c.lanes, r.lane)
	}
	c.open--
	c.outboxes[r.ref.Outbox].open--
}

// transition takes a new status of a row.
func (c *Comparer) transition(r *row, ch *capture.Change, f *findings) {
	was, is, at := r.status, ch.Status, timeOf(ch)
	if is == 0 || is == was {
		return
	}
	if was.Settled() && !is.Settled() {
		c.reopen(r, f)
	}
	r.status = is
	switch is {
	case store.Pending:
		if was == store.Processing {
			f.total.Retried++
		}
		c.enlist(r, &c.pending, at)
	case store.Processing:
		if r.taken.IsZero() && !r.again {
			r.taken = at
			f.total.Taken++
			f.taken.add(at.Sub(r.inserted))
		}
		c.enlist(r, &c.processing, at)
	case store.Completed:
		if was == store.Failed {
			f.total.Delivered++
		} else {
			c.deliver(r, f, at, ch.Txn)
		}
		c.settle(r, was, at)
	case store.Failed:
		f.total.Failed++
		f.examples.Failed.add(Example{ID: r.ref.ID, Group: r.lane.Group})
		c.settle(r, was, at)
	}
}

// reopen takes back the end of a row.
func (c *Comparer) reopen(r *row, f *findings) {
	if r.status == store.Completed {
		f.total.Returned++
		f.examples.Returned.add(Example{ID: r.ref.ID, Group: r.lane.Group})
	} else {
		f.total.Requeued++
	}
	r.again = true
	c.openLane(r)
}

func (c *Comparer) settle(r *row, was store.Status, at time.Time) {
	if !was.Settled() {
		c.close(r)
	}
	c.enlist(r, &c.settled, at)
	for c.settled.Len() > c.limits.MaxRows {
		oldest := c.settled.Front().Value.(*row)
		c.unlist(oldest)
		delete(c.rows, oldest.ref)
	}
}

// deliver takes the delivery of an unfinished row.
func (c *Comparer) deliver(r *row, f *findings, at time.Time, txn store.Txn) {
	f.total.Delivered++
	if r.again {
		return
	}
	f.delivered.add(at.Sub(r.inserted))
	if f.unordered && !r.lane.Group.Valid {
		return
	}
	l := c.lanes[r.lane]
	if l.last.txn != txn {
		if l.last.order > l.before.order {
			l.before = l.last
		}
		l.last = delivery{txn: txn}
	}
	if r.order < l.before.order {
		f.total.OutOfOrder++
		f.examples.OutOfOrder.add(Example{ID: r.ref.ID, Group: r.lane.Group, After: l.before.id})
	}
	if r.order > l.last.order {
		l.last.order, l.last.id = r.order, r.ref.ID
	}
}

// enlist moves a row to the end of a list.
func (c *Comparer) enlist(r *row, to *list.List, at time.Time) {
	c.unlist(r)
	r.change, r.in, r.at = at, to, to.PushBack(r)
}

func (c *Comparer) unlist(r *row) {
	if r.in != nil {
		r.in.Remove(r.at)
		r.in, r.at = nil, nil
	}
	if r.overdue != nil {
		*r.overdue--
		r.overdue = nil
	}
}

// Advance finds the rows that are overdue at a time of the reader's clock. It counts from the
// last change by the database's clock, so that a reader that is behind finds none too early.
func (c *Comparer) Advance(now time.Time) {
	c.finishDeletes()
	if c.captured.IsZero() {
		return
	}
	now = c.committed.Add(max(0, now.Sub(c.captured)))
	overdue := func(in *list.List, limit time.Duration, found func(*row, *findings)) {
		for e := in.Front(); e != nil; e = in.Front() {
			r := e.Value.(*row)
			if now.Sub(r.change) <= limit {
				return
			}
			c.unlist(r)
			found(r, c.outboxes[r.ref.Outbox])
			*r.overdue++
		}
	}
	overdue(&c.processing, c.limits.StuckAfter, func(r *row, f *findings) {
		f.total.Stuck++
		f.examples.Stuck.add(Example{ID: r.ref.ID, Group: r.lane.Group, Since: r.change})
		r.overdue = &f.stuck
	})
	overdue(&c.pending, c.limits.LostAfter, func(r *row, f *findings) {
		f.total.Unreached++
		f.examples.Unreached.add(Example{ID: r.ref.ID, Group: r.lane.Group, Since: r.change})
		r.overdue = &f.unreached
	})
}

// Forget drops all rows, because changes were missed. The findings stay.
func (c *Comparer) Forget() {
	for _, f := range c.outboxes {
		f.total.Forgotten += f.open
		f.open, f.stuck, f.unreached = 0, 0, 0
	}
	c.open, c.committed, c.captured = 0, time.Time{}, time.Time{}
	clear(c.rows)
	clear(c.lanes)
	clear(c.deleted)
	c.pending.Init()
	c.processing.Init()
	c.settled.Init()
}
