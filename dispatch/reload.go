package dispatch

import (
	"math"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/internal/breaker"
	"github.com/sluicebox/sluicebox/store"
)

const (
	// maxReloadLanes is the maximum number of lanes in one reload.
	maxReloadLanes = 200

	// reloadRuns is the number of rows that a reload reads of a lane, in full requests.
	reloadRuns = 4

	// maxProbeLanes is the maximum number of lanes reloaded as probes for a receiver with
	// an open breaker.
	maxProbeLanes = 2 * breaker.MaxEagerProbes
)

// laneReload is a lane whose spilled rows are being read: a lane in memory, or a spilled
// lane given by its hash.
type laneReload struct {
	lane    *lane
	spilled *spilledLaneSet
	hash    groupHash
}

// reloadReceiver returns the receiver of the rows in a reload.
func (c *core) reloadReceiver(r *laneReload) *receiver {
	if r.lane != nil {
		return r.lane.receiver
	}
	return c.receiver(r.spilled.kind)
}

// queueReload queues a lane for a reload.
func (c *core) queueReload(l *lane) {
	if !l.needsReload {
		l.needsReload = true
		c.reloadQueue.push(l)
	}
}

// belowReloadMark reports whether the lane has spilled rows and too few in memory.
func (c *core) belowReloadMark(l *lane) bool {
	few := 1
	if l.failures == 0 && !l.receiver.breaker.Open() {
		few = c.cfg.APIBatchSize
	}
	return l.hasSpilled && len(l.rows) < few
}

// nextReloads returns lanes to reload, with at most each rows per lane. The caller reports
// the rows to addReloaded. Only one reload runs at a time, and none runs while rows are
// being spilled.
func (c *core) nextReloads(now time.Time) (from []store.SpilledRange, each int) {
	if c.ended || c.reloadQueue.len() == 0 && !c.hasSpilledLanes() {
		return nil, 0
	}
	room := c.reloadRoom(now)
	if room <= 0 {
		return nil, 0
	}

	limit := min(maxReloadLanes, room)
	for range c.reloadQueue.len() {
		l := c.reloadQueue.pop()
		l.needsReload = false
		switch {
		case c.lanes[l.name] != l || l.onHold() && !l.headRequested || !c.belowReloadMark(l):
		case len(c.reloading) == limit || c.shrinking[l]:
			c.queueReload(l)
		case c.outcomes.TableLocked(l.name.Outbox), len(l.rows) == 0 && !c.needsLanes(l.receiver):
			c.queueReload(l)
			c.evictIdleLane(l)
		default:
			l.reloading = true
			c.reloading = append(c.reloading, laneReload{lane: l})
		}
	}

	c.queueSpilledLanes(limit)
	if len(c.reloading) == 0 {
		return nil, 0
	}
	c.copies.deletedDuringReload = map[store.SpilledRef]bool{}

	probes := true
	for i := range c.reloading {
		r := &c.reloading[i]
		if l := r.lane; l != nil {
			from = append(from, store.SpilledRange{Outbox: l.name.Outbox, Lane: l.name.Hash(), After: l.lastSeq()})
		} else {
			from = append(from, store.SpilledRange{Outbox: r.spilled.outbox, Lane: r.spilled.laneHash(r.hash)})
		}
		probes = probes && c.reloadReceiver(r).breaker.Open()
	}

	if probes {
		return from, 1
	}
	return from, max(1, min(room/len(from), reloadRuns*c.cfg.APIBatchSize))
}

// evictInterval is the minimum time between two searches for reloaded rows to evict. Each
// search visits all lanes.
const evictInterval = 10 * time.Millisecond

// reloadRoom returns how many rows may be reloaded. It evicts reloaded rows of lanes that
// do not move to make room for others.
func (c *core) reloadRoom(now time.Time) int {
	room := max(1, c.cfg.BufferRows/2) - c.memory.used(reloaded)
	if room > 0 || now.Sub(c.evictedAt) < evictInterval {
		return room
	}

	c.evictedAt = now
	for _, l := range c.lanesByAge() {
		switch {
		case !l.allReloaded() || l.reloading || c.shrinking[l]:
		case l.state == laneHeld, l.state == laneWaiting && l.name.RowID == "", l.locked:
			c.shrink(l, 0) // the lane stays known, with its due time
		case l.isWaiting() && len(l.rows) > 1:
			c.shrink(l, 1)
		}
	}

	return max(1, c.cfg.BufferRows/2) - c.memory.used(reloaded)
}

// allReloaded reports whether all rows of the lane in memory are reloaded ones. The first
// and the last row decide it.
func (l *lane) allReloaded() bool {
	return len(l.rows) > 0 && l.rows[0].account == reloaded && l.rows[len(l.rows)-1].account == reloaded
}

// lastSeq is the seq of the last row of the lane that is or was in memory.
func (l *lane) lastSeq() store.Seq {
	for _, rw := range slices.Backward(l.rows) {
		if !rw.requeued {
			return max(l.reloadedUpTo, rw.Seq)
		}
	}
	return l.reloadedUpTo
}

// addReloaded adds the rows of a reload, by position. If a lane gets fewer rows than
// requested, it has no spilled rows left.
func (c *core) addReloaded(answers [][]store.Item, each int) {
	reads := c.reloading
	c.reloading = nil
	c.requeuedUnwritten = c.findRequeuedUnwritten()
	for i := range reads {
		l, items := reads[i].lane, answers[i]
		if l == nil {
			if len(items) == 0 {
				reads[i].spilled.lanes.remove(reads[i].hash)
				continue
			}
			l = c.lane(LaneName{LaneKey: items[0].Lane()})
			if recv := l.receiver; recv.breaker.Open() && recv.rotated > reads[i].spilled.lanes.n {
				l.triedOpening = recv.breaker.Openings() // each was tried once: back off from now on
			}
		}
		l.reloading, l.headRequested = false, false
		if c.lanes[l.name] != l {
			continue
		}
		switch {
		case !c.isRowLanePool(l):
			c.appendReloaded(l, items)
		case l.missedDuringReload: // rows were evicted meanwhile, maybe from before the read
			l.missedDuringReload = false
			c.wake(l)
			continue
		default:
			c.reloadRowLanes(l, items)
		}
		if len(items) < each {
			l.mergeTail(math.MaxInt64)
			l.hasSpilled, l.spilledRows, l.reloadedUpTo = false, 0, l.lastSeq()
			c.cancelSpills(l)
		}
		c.wake(l)
	}

	c.copies.deletedDuringReload, c.requeuedUnwritten = nil, nil
}

// findRequeuedUnwritten returns requeued rows that were delivered and whose COMPLETED is
// not written. A spilled copy from before belongs to them.
func (c *core) findRequeuedUnwritten() map[store.Ref]*row {
	rows := map[store.Ref]*row{}
	for o := range c.outcomes.All() {
		if o.Of.row.requeued && o.Of.row.Seq == 0 && o.Status.Settled() {
			rows[o.Ref] = o.Of.row
		}
	}
	return rows
}

// isRowLanePool reports whether the lane stands for rows that have their own lanes.
func (c *core) isRowLanePool(l *lane) bool {
	return l.name.RowID == "" && !l.name.Group.Valid && c.cfg.Ungrouped == Parallel
}

// appendReloaded appends spilled rows to the rows of a lane in memory.
func (c *core) appendReloaded(l *lane, items []store.Item) {
	for i := range items {
		l.mergeTail(items[i].Seq)
		if items[i].Seq <= l.lastSeq() {
			continue
		}
		l.spilledRows = max(0, l.spilledRows-1)
		if c.alreadyDone(&items[i]) {
			l.reloadedUpTo = items[i].Seq
			continue
		}
		if c.matchRequeued(l, &items[i]) {
			continue
		}
		rw := c.admitReloaded(&items[i])
		l.internName(rw)
		l.restoreFailures(rw)
		l.rows = append(l.rows, rw)
	}
}

// mergeTail appends rows of the unspillable tail with a lower seq, so that they return to
// their place.
func (l *lane) mergeTail(before store.Seq) {
	n := 0
	for n < len(l.unspillableTail) && l.unspillableTail[n].Seq < before {
		n++
	}
	l.rows = append(l.rows, l.unspillableTail[:n]...)
	l.unspillableTail = slices.Delete(l.unspillableTail, 0, n)
}

// matchRequeued reports whether a reloaded row is one of the requeued rows at the head of
// the lane, and marks that row as spilled.
func (c *core) matchRequeued(l *lane, it *store.Item) bool {
	for _, rw := range l.rows {
		if !rw.requeued {
			return false
		}
		if rw.ID != it.ID {
			continue
		}
		if rw.Seq == 0 {
			rw.Seq = it.Seq
			c.setCopy(rw, copyStored)
		}
		l.reloadedUpTo = max(l.reloadedUpTo, it.Seq)
		return true
	}

	return false
}

// admitReloaded counts a reloaded row.
func (c *core) admitReloaded(it *store.Item) *row {
	rw := &row{Item: *it, copy: copyStored}
	c.countIn(rw, reloaded)
	return rw
}

// reloadRowLanes gives each spilled row its own lane.
func (c *core) reloadRowLanes(all *lane, items []store.Item) {
	for i := range items {
		all.reloadedUpTo = items[i].Seq
		all.spilledRows = max(0, all.spilledRows-1)
		name := c.laneNameOf(&items[i])
		if c.alreadyDone(&items[i]) {
			continue
		}
		if l := c.lanes[name]; l != nil {
			c.matchRequeued(l, &items[i])
			continue
		}
		l := c.lane(name)
		l.rows = append(l.rows, c.admitReloaded(&items[i]))
		c.wake(l)
	}
}

// alreadyDone reports whether a reloaded row is done and its spilled copy is being deleted.
func (c *core) alreadyDone(it *store.Item) bool {
	ref := store.SpilledRef{Ref: it.Ref, Seq: it.Seq}
	if c.copies.settling[ref] || c.copies.deletedDuringReload[ref] {
		return true
	}
	rw := c.requeuedUnwritten[it.Ref]
	if rw != nil {
		rw.Seq = it.Seq
		c.setCopy(rw, copyStored)
		c.copies.settling[ref] = true
		delete(c.requeuedUnwritten, it.Ref)
	}
	return rw != nil
}

// cancelSpills takes back the queued spills of a lane that has no spilled rows left. Those
// rows come next.
func (c *core) cancelSpills(l *lane) {
	if l.spilling == 0 {
		return
	}
	for _, rw := range c.spills.cancel(l) {
		c.setCopy(rw, noCopy)
		l.spilling--
		l.rows = append(l.rows, rw)
	}
}
