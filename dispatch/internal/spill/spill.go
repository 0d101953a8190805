package spill

import (
	"slices"

	"github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/store"
)

// queue spills a row. copied tells that its lane keeps it in memory.
func (sp *Spiller) queue(l *lane.Lane, rw *lane.Row, copied bool) {
	if sp.cfg.Whole {
		sp.inFront(l, rw)
	}
	sp.add(l, rw, copied)
}

// inFront spills the rows of a lane in front of a row. Each row is looked at once; see lane.Spill.Covered.
func (sp *Spiller) inFront(l *lane.Lane, rw *lane.Row) {
	if len(l.Rows) > 0 && l.Rows[0] == rw {
		return
	}
	at := min(l.Covered, len(l.Rows))
	for ; at < len(l.Rows) && l.Rows[at] != rw; at++ {
		if before := l.Rows[at]; mayCopy(l, before) {
			sp.add(l, before, true)
		}
	}
	l.Covered = at
}

// mayCopy reports whether a row may be spilled and kept: it has no copy, and its outcome is not
// being written. A requeued row without a seq is found in its table again.
func mayCopy(l *lane.Lane, rw *lane.Row) bool {
	writing := l.State == lane.Writing && len(l.Rows) > 0 && l.Rows[0] == rw
	return !writing && rw.Seq != 0 && rw.Copy == lane.NoCopy && rw.Stage == lane.Open
}

// heldBack reports whether a row must not be spilled yet, because the failure of its lane's head is
// being written: if the head is tried again, it is to be spilled first. See Retried.
func (sp *Spiller) heldBack(p *Pending) bool {
	if !sp.cfg.Whole || p.Lane == nil || p.Lane.State != lane.Writing || len(p.Lane.Rows) == 0 {
		return false
	}
	head := p.Lane.Rows[0]
	return head != p.Row && head.Seq != 0 && head.Copy == lane.NoCopy
}

// Rested ends the wait of the rows that are held back because the failure of their lane's head is being
// written. Call it whenever a lane has ended its step.
func (sp *Spiller) Rested(l *lane.Lane) { sp.spills.release(l) }

// Retried spills the head of a lane whose failure is written now, if rows behind it are spilled or
// to be spilled and Config.Whole requires it.
func (sp *Spiller) Retried(l *lane.Lane) {
	if !sp.cfg.Whole || sp.ended || len(l.Rows) == 0 {
		return
	}
	l.Covered = 0 // the head was left out
	if l.HasSpilled || copiedBehind(l) {
		sp.Row(l, l.Rows[0])
	}
}

// copiedBehind reports whether rows behind the head of a lane are spilled or to be spilled. The first that
// may be is among them.
func copiedBehind(l *lane.Lane) bool {
	for _, rw := range l.Rows[1:] {
		if rw.Seq != 0 && rw.Copy != lane.CopyRefused {
			return rw.Copy != lane.NoCopy
		}
	}
	return false
}

// add puts a row behind the rows to spill. The head of a lane comes before the others of the lane.
func (sp *Spiller) add(l *lane.Lane, rw *lane.Row, copied bool) {
	sp.spills.setCopy(rw, lane.CopyWriting)
	ahead := sp.cfg.Whole && l.Spilling > 0 && len(l.Rows) > 0 && l.Rows[0] == rw
	l.Spilling++
	if p := (Pending{l, rw, copied}); ahead {
		sp.spills.release(l)
		sp.spills.addFirst(p)
	} else {
		sp.spills.add(p)
	}
}

// Rows spills the rows of a lane that are only in memory. It leaves out rows in flight and
// unspillable rows. It also leaves out requeued rows without a seq, because the sweep finds
// them in their table again.
func (sp *Spiller) Rows(l *lane.Lane) {
	for i, rw := range l.Rows {
		if i >= l.InFlight && rw.Seq != 0 && rw.Copy == lane.NoCopy {
			sp.queue(l, rw, true)
		}
	}
}

// Row spills a row that is only in memory, also one in a request that is not answered. An
// outcome that comes meanwhile waits for its copy. It leaves out a row whose outcome is being
// written, an unspillable row, and a requeued row without a seq.
func (sp *Spiller) Row(l *lane.Lane, rw *lane.Row) {
	if mayCopy(l, rw) {
		sp.queue(l, rw, true)
	}
}

// minBatch is the number of rows that one statement may always spill. A statement of thousands
// of rows keeps a processor of the server busy for so long that rows of other lanes wait.
const minBatch = 100

// Next returns at most limit rows to spill, a tenth of those that wait if there are many. The
// caller reports them to Written. Only one such batch is in flight, and none while a reload is.
func (sp *Spiller) Next(limit int) []store.Item {
	waiting := sp.spills.count
	var items []store.Item
	for _, p := range sp.spills.take(min(limit, max(minBatch, waiting/10)), sp.heldBack) {
		items = append(items, p.Row.Item)
		sp.Reloads.seen(p.Row)
	}
	return items
}

// Written handles a durable batch of Next. The checkpoint may pass its rows, except those
// the store refused.
func (sp *Spiller) Written(refused []bool) {
	batch := sp.spills.written()
	var touched []*lane.Lane
	for i := range batch {
		l, rw := batch[i].Lane, batch[i].Row
		switch {
		case refused[i]:
			delete(sp.copies.settling, rw.SpilledRef()) // there is no copy
			sp.keepUnspillable(&batch[i])
		default:
			sp.spills.setCopy(rw, lane.CopyStored)
			sp.copies.rows++
			rw.ReleaseTicket()
			if !batch[i].Copied {
				l.SpilledRows++
				sp.Remove(rw)
			}
		}
		sp.enqueueLate(rw)
		if l == nil {
			if rw.Copy == lane.CopyStored {
				sp.detach(rw)
			}
			continue
		}
		l.Spilling--
		if last := len(touched) - 1; last < 0 || touched[last] != l {
			touched = append(touched, l)
		}
	}

	for _, l := range touched {
		if sp.lanes.Get(l.Name) != l {
			continue
		}
		sp.evictTail(l)
		sp.Evict(l)
		if sp.lanes.Get(l.Name) == l {
			sp.core.Wake(l)
			sp.evictIdleLane(l)
		}
	}
}

// keepUnspillable keeps a row in memory that the store refuses to spill. The row keeps its
// place, and later rows of the lane are still spilled behind it.
func (sp *Spiller) keepUnspillable(p *Pending) {
	sp.spills.setCopy(p.Row, lane.CopyRefused)
	if p.Row.Stage == lane.Done {
		sp.spills.setCopy(p.Row, lane.NoCopy)
	}
	if !p.Copied {
		p.Lane.UnspillableTail = append(p.Lane.UnspillableTail, p.Row)
	}
}

// RetryUnspillable allows another try to spill unspillable rows. Rows behind spilled ones
// are queued at once.
func (sp *Spiller) RetryUnspillable() {
	if sp.spills.refused == 0 || sp.ended {
		return
	}
	for _, l := range sp.lanes.ByAge() {
		l.Covered = 0
		for _, rw := range l.Rows {
			sp.spills.allow(rw)
		}
		for _, rw := range l.UnspillableTail {
			if rw.Copy != lane.CopyWriting {
				sp.spills.allow(rw)
				sp.queue(l, rw, true)
			}
		}
	}
}

// evictTail evicts rows of the unspillable tail that are spilled by now.
func (sp *Spiller) evictTail(l *lane.Lane) {
	l.UnspillableTail = slices.DeleteFunc(l.UnspillableTail, func(rw *lane.Row) bool {
		spilled := rw.Copy == lane.CopyStored
		if spilled {
			sp.Remove(rw)
			l.SpilledRows++
		}
		return spilled
	})
}

// Delete queues the delete of the spilled copy of a row found settled or gone.
func (sp *Spiller) Delete(rw *lane.Row) {
	switch rw.Copy {
	case lane.CopyStored:
		sp.copies.delete(rw)
	case lane.CopyWriting:
		rw.PendingOutcome = &lane.Outcome{Of: lane.Owner{Row: rw}}
	}
}

// NextDeletes returns spilled rows to delete. The caller reports them to Deleted.
func (sp *Spiller) NextDeletes(limit int) []store.SpilledRef {
	if sp.ended {
		return nil
	}
	return sp.copies.next(limit)
}

// Settling records that the outcome of a row is in flight and deletes its copy, so that the
// copy is not reloaded.
func (sp *Spiller) Settling(rw *lane.Row) { sp.copies.settle(rw) }

// Settled records that the store has written an outcome and deleted the row's copy.
func (sp *Spiller) Settled(rw *lane.Row, seq store.Seq) {
	sp.copies.deleted(store.SpilledRef{Ref: rw.Ref, Seq: seq})
	sp.spills.setCopy(rw, lane.NoCopy)
}

// Deleted records that the store has deleted spilled rows.
func (sp *Spiller) Deleted(refs ...store.SpilledRef) {
	for _, ref := range refs {
		sp.copies.deleted(ref)
	}
}

// Remove removes an unsettled row from memory.
func (sp *Spiller) Remove(rw *lane.Row) {
	sp.spills.allow(rw)
	sp.lanes.Memory.Leave(rw)
	sp.core.Left(rw)
}

// Unwritten spills the row of a deferred outcome, so that the checkpoint can pass it. It
// leaves out two kinds of rows:
//
//   - a row whose claim is given back: it is still in its lane or needs no checkpoint
//   - a requeued row without a seq: the sweep finds it in its table again
func (sp *Spiller) Unwritten(o *lane.Outcome) {
	rw := o.Of.Row
	switch {
	case o.Of.Lane == nil && o.Status == store.Pending, rw.Copy == lane.CopyWriting:
	case rw.Copy == lane.CopyStored && o.Of.Lane == nil:
		sp.detach(rw)
	case rw.Copy != lane.NoCopy || rw.Seq == 0 || sp.ended && !sp.cfg.Whole || !sp.cfg.Unwritten:
		sp.lanes.Memory.DropPayload(rw)
	default:
		if o.Status.Settled() {
			sp.copies.settle(rw) // never reload it
		}
		if o.Of.Lane != nil {
			sp.queue(o.Of.Lane, rw, true)
			return
		}
		sp.spills.setCopy(rw, lane.CopyWriting)
		sp.spills.add(Pending{Row: rw, Copied: true})
	}
}

// detach removes from the buffer a spilled row with a deferred outcome and no lane.
func (sp *Spiller) detach(rw *lane.Row) {
	sp.lanes.Memory.DropPayload(rw)
	sp.lanes.Memory.Move(rw, lane.Detached)
}

// End takes back the rows that wait to be spilled, except those that only the log has: they
// hold the checkpoint, and only the checkpoint knows which later rows were delivered. No
// other row is spilled any more, and none is deleted or reloaded.
func (sp *Spiller) End() {
	sp.ended = true
	for _, l := range sp.lanes.ByAge() {
		l.Covered = 0
	}
	taken := sp.spills.takeBack(func(p *Pending) bool { return !sp.lanes.Memory.LogOnly[p.Row.Outbox] })
	for i := range taken { // the log or the table delivers them again
		sp.spills.setCopy(taken[i].Row, lane.NoCopy)
		sp.enqueueLate(taken[i].Row)
	}
}

// enqueueLate queues the outcome that waited for a row's copy, if any.
func (sp *Spiller) enqueueLate(rw *lane.Row) {
	if o := rw.PendingOutcome; o != nil {
		rw.PendingOutcome = nil
		sp.core.Enqueue(*o)
	}
}
