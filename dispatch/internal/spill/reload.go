package spill

import (
	"math"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/internal/breaker"
	"github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/store"
)

const (
	// maxReloadLanes is the maximum number of lanes in one reload.
	maxReloadLanes = 200

	// reloadRuns is the number of rows that a reload reads of a lane, in full requests.
	reloadRuns = 4

	// MaxProbeLanes is the maximum number of lanes reloaded as probes for a receiver with
	// an open breaker.
	MaxProbeLanes = 2 * breaker.MaxEagerProbes
)

// laneReload is a lane whose spilled rows are being read: a lane in memory, or a spilled
// lane given by its hash.
type laneReload struct {
	lane    *lane.Lane
	spilled *kindSet
	hash    groupHash
}

// receiverOf returns the receiver of the rows in a reload.
func (sp *Spiller) receiverOf(r *laneReload) *lane.Receiver {
	if r.lane != nil {
		return r.lane.Receiver
	}
	return sp.lanes.Endpoints.Of(r.spilled.kind)
}

// queueReload queues a lane for a reload.
func (sp *Spiller) queueReload(l *lane.Lane) {
	if !l.NeedsReload {
		l.NeedsReload = true
		sp.reloadQueue.Push(l)
	}
}

// RequestReload queues a lane for a reload if it has too few rows and nothing holds it.
func (sp *Spiller) RequestReload(l *lane.Lane) {
	if sp.belowReloadMark(l) && !l.OnHold() {
		sp.queueReload(l)
	}
}

// RequestHead queues a lane for a reload, even if it is on hold.
func (sp *Spiller) RequestHead(l *lane.Lane) {
	l.HeadRequested = true
	sp.queueReload(l)
}

// belowReloadMark reports whether the lane has spilled rows and too few in memory.
func (sp *Spiller) belowReloadMark(l *lane.Lane) bool {
	few := 1
	if l.Failures == 0 && !l.Receiver.Breaker.Open() {
		few = sp.cfg.BatchRows
	}
	return l.HasSpilled && len(l.Rows) < few
}

// NextReloads returns lanes to reload, with at most each rows per lane. The caller reports
// the rows to AddReloaded. Only one reload runs at a time, and none runs while rows are
// being spilled.
func (sp *Spiller) NextReloads(now time.Time) (from []store.SpilledRange, each int) {
	if sp.ended || sp.reloadQueue.Len() == 0 && sp.kinds.count() == 0 {
		return nil, 0
	}
	room := sp.reloadRoom(now)
	if room <= 0 {
		return nil, 0
	}

	units := sp.rowUnits()
	limit := min(maxReloadLanes, max(1, room/units))
	for range sp.reloadQueue.Len() {
		l := sp.reloadQueue.Pop()
		l.NeedsReload = false
		switch {
		case sp.lanes.Get(l.Name) != l || l.OnHold() && !l.HeadRequested || !sp.belowReloadMark(l):
		case len(sp.reloading) == limit || sp.shrinking[l]:
			sp.queueReload(l)
		case sp.lanes.TableLocked(l.Name.Outbox), len(l.Rows) == 0 && !sp.needsLanes(l.Receiver):
			sp.queueReload(l)
			sp.evictIdleLane(l)
		default:
			l.Reloading = true
			sp.reloading = append(sp.reloading, laneReload{lane: l})
		}
	}

	sp.queueSpilledLanes(limit)
	if len(sp.reloading) == 0 {
		return nil, 0
	}
	sp.copies.deletedDuringReload = map[store.SpilledRef]bool{}

	probes := true
	for i := range sp.reloading {
		r := &sp.reloading[i]
		if l := r.lane; l != nil {
			from = append(from, store.SpilledRange{Outbox: l.Name.Outbox, Lane: l.Name.Hash(), After: l.LastSeq()})
		} else {
			from = append(from, store.SpilledRange{Outbox: r.spilled.outbox, Lane: r.spilled.laneHash(r.hash)})
		}
		probes = probes && sp.receiverOf(r).Breaker.Open()
	}

	if probes {
		return from, 1
	}
	return from, max(1, min(room/len(from)/units, reloadRuns*sp.cfg.BatchRows))
}

// firstReloadShare is the part of the buffer that a row is taken for before any was seen.
const firstReloadShare = 16

// rowUnits is how much of the buffer a reloaded row may use. A row whose content is kept is
// taken for the largest that was seen, so that a reload does not exceed its room.
func (sp *Spiller) rowUnits() int {
	switch {
	case !sp.lanes.Memory.KeepsContent():
		return 1
	case sp.heaviest == 0: // spilled by an earlier session
		return max(1, sp.cfg.BufferRows/firstReloadShare)
	}
	return sp.heaviest
}

// evictInterval is the minimum time between two searches for reloaded rows to evict. Each
// search visits all lanes.
const evictInterval = 10 * time.Millisecond

// turnInterval is the minimum time between two evictions of the reloaded lanes that wait for
// endpoints with an open breaker, if rows name their endpoints. Only a claim shows the endpoint
// of a spilled row, so such lanes could fill the room and keep out the rows of other endpoints.
const turnInterval = 5 * time.Second

// reloadRoom returns how many rows may be reloaded. It evicts reloaded rows of lanes that
// do not move to make room for others.
func (sp *Spiller) reloadRoom(now time.Time) int {
	room := max(1, sp.cfg.BufferRows/2) - sp.lanes.Memory.Used(lane.Reloaded)
	if room > 0 || now.Sub(sp.evictedAt) < evictInterval {
		return room
	}

	sp.evictedAt = now
	turn := sp.kinds.count() > 0 && now.Sub(sp.turnedAt) >= turnInterval
	if turn {
		sp.turnedAt = now
	}
	for _, l := range sp.lanes.ByAge() {
		switch {
		case !l.AllReloaded() || l.Reloading || sp.shrinking[l]:
		case turn && l.State == lane.Ready && l.Receiver.Named && l.Receiver.Breaker.Open():
			sp.Shrink(l, 0)
		case l.State == lane.Held, l.State == lane.Waiting && l.Name.RowID == "", l.Locked:
			sp.Shrink(l, 0) // the lane stays known, with its due time
		case l.IsWaiting() && len(l.Rows) > 1:
			sp.Shrink(l, 1)
		}
	}

	return max(1, sp.cfg.BufferRows/2) - sp.lanes.Memory.Used(lane.Reloaded)
}

// AddReloaded adds the rows of a reload, by position. If a lane gets fewer rows than
// requested, it has no spilled rows left. requeued are the requeued rows without a seq that
// were delivered and whose COMPLETED is not written: a spilled copy from before belongs to
// them.
func (sp *Spiller) AddReloaded(answers [][]store.Item, each int, requeued map[store.Ref]*lane.Row) {
	reads := sp.reloading
	sp.reloading = nil
	sp.requeuedUnwritten = requeued
	for i := range reads {
		l, items := reads[i].lane, answers[i]
		if l == nil {
			if len(items) == 0 {
				reads[i].spilled.lanes.remove(reads[i].hash)
				continue
			}
			l = sp.Lane(lane.Name{LaneKey: items[0].Lane()})
			if recv := l.Receiver; recv.Breaker.Open() && recv.Rotated > reads[i].spilled.lanes.n {
				l.TriedOpening = recv.Breaker.Openings() // each was tried once: back off from now on
			}
		}
		l.Reloading, l.HeadRequested = false, false
		if sp.lanes.Get(l.Name) != l {
			continue
		}
		switch {
		case !sp.lanes.IsPool(l):
			sp.appendReloaded(l, items)
		case l.MissedDuringReload: // rows were evicted meanwhile, maybe from before the read
			l.MissedDuringReload = false
			sp.core.Wake(l)
			continue
		default:
			sp.reloadRowLanes(l, items)
		}
		if len(items) < each {
			l.MergeTail(math.MaxInt64)
			l.HasSpilled, l.SpilledRows, l.ReloadedUpTo = false, 0, l.LastSeq()
			sp.cancel(l)
		}
		sp.core.Wake(l)
	}

	sp.copies.deletedDuringReload, sp.requeuedUnwritten = nil, nil
}

// appendReloaded appends spilled rows to the rows of a lane in memory.
func (sp *Spiller) appendReloaded(l *lane.Lane, items []store.Item) {
	for i := range items {
		l.MergeTail(items[i].Seq)
		if items[i].Seq <= l.LastSeq() {
			continue
		}
		l.SpilledRows = max(0, l.SpilledRows-1)
		if sp.alreadyDone(&items[i]) {
			l.ReloadedUpTo = items[i].Seq
			continue
		}
		if sp.matchRequeued(l, &items[i]) {
			continue
		}
		rw := sp.admit(&items[i])
		l.InternName(rw)
		l.RestoreFailures(rw)
		l.Rows = append(l.Rows, rw)
	}
}

// matchRequeued reports whether a reloaded row is one of the requeued rows at the head of
// the lane, and marks that row as spilled.
func (sp *Spiller) matchRequeued(l *lane.Lane, it *store.Item) bool {
	for _, rw := range l.Rows {
		if rw.Origin != lane.Requeued {
			return false
		}
		if rw.ID != it.ID {
			continue
		}
		if rw.Seq == 0 {
			rw.Seq = it.Seq
			sp.spills.setCopy(rw, lane.CopyStored)
		}
		l.ReloadedUpTo = max(l.ReloadedUpTo, it.Seq)
		return true
	}

	return false
}

// admit counts a reloaded row.
func (sp *Spiller) admit(it *store.Item) *lane.Row {
	rw := &lane.Row{Item: *it, Copy: lane.CopyStored}
	sp.lanes.Memory.Enter(rw, lane.Reloaded)
	sp.heaviest = max(sp.heaviest, rw.Units())
	return rw
}

// reloadRowLanes gives each spilled row its own lane.
func (sp *Spiller) reloadRowLanes(all *lane.Lane, items []store.Item) {
	for i := range items {
		all.ReloadedUpTo = items[i].Seq
		all.SpilledRows = max(0, all.SpilledRows-1)
		name := sp.lanes.NameOf(&items[i])
		if sp.alreadyDone(&items[i]) {
			continue
		}
		if l := sp.lanes.Get(name); l != nil {
			sp.matchRequeued(l, &items[i])
			continue
		}
		l := sp.Lane(name)
		l.Rows = append(l.Rows, sp.admit(&items[i]))
		sp.core.Wake(l)
	}
}

// alreadyDone reports whether a reloaded row is done and its spilled copy is being deleted.
func (sp *Spiller) alreadyDone(it *store.Item) bool {
	ref := store.SpilledRef{Ref: it.Ref, Seq: it.Seq}
	if sp.copies.settling[ref] || sp.copies.deletedDuringReload[ref] {
		return true
	}
	rw := sp.requeuedUnwritten[it.Ref]
	if rw != nil {
		rw.Seq = it.Seq
		sp.spills.setCopy(rw, lane.CopyStored)
		sp.copies.settling[ref] = true
		delete(sp.requeuedUnwritten, it.Ref)
	}
	return rw != nil
}

// cancel takes back the queued spills of a lane that has no spilled rows left. Those
// rows come next.
func (sp *Spiller) cancel(l *lane.Lane) {
	if l.Spilling == 0 {
		return
	}
	for _, rw := range sp.spills.cancel(l) {
		sp.spills.setCopy(rw, lane.NoCopy)
		l.Spilling--
		l.Rows = append(l.Rows, rw)
	}
}
