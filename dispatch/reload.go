package dispatch

import (
	"math"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/internal/breaker"
	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
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
		return r.lane.Receiver
	}
	return c.lanes.Receiver(r.spilled.kind)
}

// queueReload queues a lane for a reload.
func (c *core) queueReload(l *lane) {
	if !l.NeedsReload {
		l.NeedsReload = true
		c.reloadQueue.Push(l)
	}
}

// belowReloadMark reports whether the lane has spilled rows and too few in memory.
func (c *core) belowReloadMark(l *lane) bool {
	few := 1
	if l.Failures == 0 && !l.Receiver.Breaker.Open() {
		few = c.cfg.APIBatchSize
	}
	return l.HasSpilled && len(l.Rows) < few
}

// nextReloads returns lanes to reload, with at most each rows per lane. The caller reports
// the rows to addReloaded. Only one reload runs at a time, and none runs while rows are
// being spilled.
func (c *core) nextReloads(now time.Time) (from []store.SpilledRange, each int) {
	if c.ended || c.reloadQueue.Len() == 0 && !c.hasSpilledLanes() {
		return nil, 0
	}
	room := c.reloadRoom(now)
	if room <= 0 {
		return nil, 0
	}

	limit := min(maxReloadLanes, room)
	for range c.reloadQueue.Len() {
		l := c.reloadQueue.Pop()
		l.NeedsReload = false
		switch {
		case c.lanes.Get(l.Name) != l || l.OnHold() && !l.HeadRequested || !c.belowReloadMark(l):
		case len(c.reloading) == limit || c.shrinking[l]:
			c.queueReload(l)
		case c.outcomes.TableLocked(l.Name.Outbox), len(l.Rows) == 0 && !c.needsLanes(l.Receiver):
			c.queueReload(l)
			c.evictIdleLane(l)
		default:
			l.Reloading = true
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
			from = append(from, store.SpilledRange{Outbox: l.Name.Outbox, Lane: l.Name.Hash(), After: l.LastSeq()})
		} else {
			from = append(from, store.SpilledRange{Outbox: r.spilled.outbox, Lane: r.spilled.laneHash(r.hash)})
		}
		probes = probes && c.reloadReceiver(r).Breaker.Open()
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
	room := max(1, c.cfg.BufferRows/2) - c.lanes.Memory.Used(lanes.Reloaded)
	if room > 0 || now.Sub(c.evictedAt) < evictInterval {
		return room
	}

	c.evictedAt = now
	for _, l := range c.lanes.ByAge() {
		switch {
		case !l.AllReloaded() || l.Reloading || c.shrinking[l]:
		case l.State == lanes.Held, l.State == lanes.Waiting && l.Name.RowID == "", l.Locked:
			c.shrink(l, 0) // the lane stays known, with its due time
		case l.IsWaiting() && len(l.Rows) > 1:
			c.shrink(l, 1)
		}
	}

	return max(1, c.cfg.BufferRows/2) - c.lanes.Memory.Used(lanes.Reloaded)
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
			if recv := l.Receiver; recv.Breaker.Open() && recv.Rotated > reads[i].spilled.lanes.n {
				l.TriedOpening = recv.Breaker.Openings() // each was tried once: back off from now on
			}
		}
		l.Reloading, l.HeadRequested = false, false
		if c.lanes.Get(l.Name) != l {
			continue
		}
		switch {
		case !c.lanes.IsPool(l):
			c.appendReloaded(l, items)
		case l.MissedDuringReload: // rows were evicted meanwhile, maybe from before the read
			l.MissedDuringReload = false
			c.wake(l)
			continue
		default:
			c.reloadRowLanes(l, items)
		}
		if len(items) < each {
			l.MergeTail(math.MaxInt64)
			l.HasSpilled, l.SpilledRows, l.ReloadedUpTo = false, 0, l.LastSeq()
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
		if o.Of.Row.Requeued && o.Of.Row.Seq == 0 && o.Status.Settled() {
			rows[o.Ref] = o.Of.Row
		}
	}
	return rows
}

// appendReloaded appends spilled rows to the rows of a lane in memory.
func (c *core) appendReloaded(l *lane, items []store.Item) {
	for i := range items {
		l.MergeTail(items[i].Seq)
		if items[i].Seq <= l.LastSeq() {
			continue
		}
		l.SpilledRows = max(0, l.SpilledRows-1)
		if c.alreadyDone(&items[i]) {
			l.ReloadedUpTo = items[i].Seq
			continue
		}
		if c.matchRequeued(l, &items[i]) {
			continue
		}
		rw := c.admitReloaded(&items[i])
		l.InternName(rw)
		l.RestoreFailures(rw)
		l.Rows = append(l.Rows, rw)
	}
}

// matchRequeued reports whether a reloaded row is one of the requeued rows at the head of
// the lane, and marks that row as spilled.
func (c *core) matchRequeued(l *lane, it *store.Item) bool {
	for _, rw := range l.Rows {
		if !rw.Requeued {
			return false
		}
		if rw.ID != it.ID {
			continue
		}
		if rw.Seq == 0 {
			rw.Seq = it.Seq
			c.setCopy(rw, lanes.CopyStored)
		}
		l.ReloadedUpTo = max(l.ReloadedUpTo, it.Seq)
		return true
	}

	return false
}

// admitReloaded counts a reloaded row.
func (c *core) admitReloaded(it *store.Item) *row {
	rw := &row{Item: *it, Copy: lanes.CopyStored}
	c.lanes.Memory.Enter(rw, lanes.Reloaded)
	return rw
}

// reloadRowLanes gives each spilled row its own lane.
func (c *core) reloadRowLanes(all *lane, items []store.Item) {
	for i := range items {
		all.ReloadedUpTo = items[i].Seq
		all.SpilledRows = max(0, all.SpilledRows-1)
		name := c.lanes.NameOf(&items[i])
		if c.alreadyDone(&items[i]) {
			continue
		}
		if l := c.lanes.Get(name); l != nil {
			c.matchRequeued(l, &items[i])
			continue
		}
		l := c.lane(name)
		l.Rows = append(l.Rows, c.admitReloaded(&items[i]))
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
		c.setCopy(rw, lanes.CopyStored)
		c.copies.settling[ref] = true
		delete(c.requeuedUnwritten, it.Ref)
	}
	return rw != nil
}

// cancelSpills takes back the queued spills of a lane that has no spilled rows left. Those
// rows come next.
func (c *core) cancelSpills(l *lane) {
	if l.Spilling == 0 {
		return
	}
	for _, rw := range c.spills.cancel(l) {
		c.setCopy(rw, lanes.NoCopy)
		l.Spilling--
		l.Rows = append(l.Rows, rw)
	}
}
