package spill

import (
	"math"
	"slices"
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

// Reloads decides which spilled rows are read back, and takes them.
type Reloads struct {
	sp       *Spiller
	queue    lane.Fifo[*lane.Lane]   // waiting to be reloaded
	reading  []laneReload            // being reloaded
	requeued map[store.Ref]*lane.Row // delivered and unwritten; set while reloaded rows are added

	evictedAt time.Time // last eviction that made room for reloads
	turnedAt  time.Time // last one of lanes of endpoints with an open breaker
	heaviest  int       // units of the largest row that was spilled or reloaded; see rowUnits
}

// Queue returns the lanes that wait to be reloaded.
func (r *Reloads) Queue() []*lane.Lane { return r.queue.Items() }

// isReading reports whether a spilled lane is being reloaded.
func (r *Reloads) isReading(hash store.LaneHash) bool {
	return slices.ContainsFunc(r.reading, func(read laneReload) bool {
		return read.lane == nil && read.spilled.laneHash(read.hash) == hash
	})
}

// seen records the size of a row that is spilled or reloaded.
func (r *Reloads) seen(rw *lane.Row) { r.heaviest = max(r.heaviest, rw.Units()) }

// receiverOf returns the receiver of the rows in a reload.
func (r *Reloads) receiverOf(read *laneReload) *lane.Receiver {
	if read.lane != nil {
		return read.lane.Receiver
	}
	return r.sp.lanes.Endpoints.Of(read.spilled.kind)
}

// enqueue queues a lane for a reload.
func (r *Reloads) enqueue(l *lane.Lane) {
	if !l.NeedsReload {
		l.NeedsReload = true
		r.queue.Push(l)
	}
}

// Request queues a lane for a reload if it has too few rows and nothing holds it.
func (r *Reloads) Request(l *lane.Lane) {
	if r.belowMark(l) && !l.OnHold() {
		r.enqueue(l)
	}
}

// RequestHead queues a lane for a reload, even if it is on hold.
func (r *Reloads) RequestHead(l *lane.Lane) {
	l.HeadRequested = true
	r.enqueue(l)
}

// belowMark reports whether the lane has spilled rows and too few in memory.
func (r *Reloads) belowMark(l *lane.Lane) bool {
	few := 1
	if l.Failures == 0 && !l.Receiver.Breaker.Open() {
		few = r.sp.cfg.BatchRows
	}
	return l.HasSpilled && len(l.Rows) < few
}

// Next returns lanes to reload, with at most each rows per lane. The caller reports
// the rows to Add. Only one reload runs at a time, and none runs while rows are
// being spilled.
func (r *Reloads) Next(now time.Time) (from []store.SpilledRange, each int) {
	if r.sp.ended || r.queue.Len() == 0 && r.sp.kinds.count() == 0 {
		return nil, 0
	}
	room := r.room(now)
	if room <= 0 {
		return nil, 0
	}

	units := r.rowUnits()
	limit := min(maxReloadLanes, max(1, room/units))
	for range r.queue.Len() {
		l := r.queue.Pop()
		l.NeedsReload = false
		switch {
		case r.sp.lanes.Get(l.Name) != l || l.OnHold() && !l.HeadRequested || !r.belowMark(l):
		case len(r.reading) == limit || r.sp.shrinking[l]:
			r.enqueue(l)
		case r.sp.lanes.IsAside(l.Name.Outbox) && !l.HeadRequested, len(l.Rows) == 0 && !r.needsLanes(l.Receiver):
			r.enqueue(l)
			r.sp.evictIdleLane(l)
		default:
			l.Reloading = true
			r.reading = append(r.reading, laneReload{lane: l})
		}
	}

	r.takeSpilledLanes(limit)
	if len(r.reading) == 0 {
		return nil, 0
	}
	r.sp.copies.deletedDuringReload = map[store.SpilledRef]bool{}

	probes := true
	for i := range r.reading {
		read := &r.reading[i]
		if l := read.lane; l != nil {
			from = append(from, store.SpilledRange{Outbox: l.Name.Outbox, Lane: l.Name.Hash(), After: l.LastSeq()})
		} else {
			from = append(from, store.SpilledRange{Outbox: read.spilled.outbox, Lane: read.spilled.laneHash(read.hash)})
		}
		probes = probes && r.receiverOf(read).Breaker.Open()
	}

	if probes {
		return from, 1
	}
	return from, max(1, min(room/len(from)/units, reloadRuns*r.sp.cfg.BatchRows))
}

// firstReloadShare is the part of the buffer that a row is taken for before any was seen.
const firstReloadShare = 16

// rowUnits is how much of the buffer a reloaded row may use. A row whose content is kept is
// taken for the largest that was seen, so that a reload does not exceed its room.
func (r *Reloads) rowUnits() int {
	switch {
	case !r.sp.lanes.Memory.KeepsContent():
		return 1
	case r.heaviest == 0: // spilled by an earlier session
		return max(1, r.sp.cfg.BufferRows/firstReloadShare)
	}
	return r.heaviest
}

// evictInterval is the minimum time between two searches for reloaded rows to evict. Each
// search visits all lanes.
const evictInterval = 10 * time.Millisecond

// turnInterval is the minimum time between two evictions of the reloaded lanes that wait for
// endpoints with an open breaker, if rows name their endpoints. Only a claim shows the endpoint
// of a spilled row, so such lanes could fill the room and keep out the rows of other endpoints.
const turnInterval = 5 * time.Second

// room returns how many rows may be reloaded. It evicts reloaded rows of lanes that
// do not move to make room for others.
func (r *Reloads) room(now time.Time) int {
	room := max(1, r.sp.cfg.BufferRows/2) - r.sp.lanes.Memory.Used(lane.Reloaded)
	if room > 0 || now.Sub(r.evictedAt) < evictInterval {
		return room
	}

	r.evictedAt = now
	turn := r.sp.kinds.count() > 0 && now.Sub(r.turnedAt) >= turnInterval
	if turn {
		r.turnedAt = now
	}
	for _, l := range r.sp.lanes.ByAge() {
		switch {
		case !l.AllReloaded() || l.Reloading || r.sp.shrinking[l]:
		case turn && l.State == lane.Ready && l.Receiver.Named && l.Receiver.Breaker.Open():
			r.sp.Shrink(l, 0)
		case l.State == lane.Held, l.State == lane.Waiting && l.Name.RowID == "", l.IsAside():
			r.sp.Shrink(l, 0) // the lane stays known, with its due time
		case l.IsWaiting() && len(l.Rows) > 1:
			r.sp.Shrink(l, 1)
		}
	}

	return max(1, r.sp.cfg.BufferRows/2) - r.sp.lanes.Memory.Used(lane.Reloaded)
}

// Add adds the rows of a reload, by position. If a lane gets fewer rows than
// requested, it has no spilled rows left. requeued are the requeued rows without a seq that
// were delivered and whose COMPLETED is not written: a spilled copy from before belongs to
// them.
func (r *Reloads) Add(answers [][]store.Item, each int, requeued map[store.Ref]*lane.Row) {
	reads := r.reading
	r.reading = nil
	r.requeued = requeued
	var emptied []*lane.Lane
	for i := range reads {
		l, items := reads[i].lane, answers[i]
		if l == nil {
			if len(items) == 0 {
				reads[i].spilled.lanes.remove(reads[i].hash)
				continue
			}
			l = r.sp.Lane(lane.Name{LaneKey: items[0].Lane()})
			if recv := l.Receiver; recv.Breaker.Open() && recv.Rotated > reads[i].spilled.lanes.n {
				l.TriedOpening = recv.Breaker.Openings() // each was tried once: back off from now on
			}
		}
		l.Reloading, l.HeadRequested = false, false
		if r.sp.lanes.Get(l.Name) != l {
			continue
		}
		switch {
		case !r.sp.lanes.IsPool(l):
			r.appendRows(l, items)
		case l.MissedDuringReload: // rows were evicted meanwhile, maybe from before the read
			l.MissedDuringReload = false
			r.sp.core.Wake(l)
			continue
		default:
			r.addRowLanes(l, items)
		}
		if len(items) < each {
			l.MergeTail(math.MaxInt64)
			l.HasSpilled, l.SpilledRows, l.ReloadedUpTo = false, 0, l.LastSeq()
			emptied = append(emptied, l)
			continue
		}
		r.sp.core.Wake(l)
	}
	r.cancel(emptied)

	r.sp.copies.deletedDuringReload, r.requeued = nil, nil
}

// appendRows appends spilled rows to the rows of a lane in memory.
func (r *Reloads) appendRows(l *lane.Lane, items []store.Item) {
	for i := range items {
		l.MergeTail(items[i].Seq)
		if items[i].Seq <= l.LastSeq() {
			continue
		}
		l.SpilledRows = max(0, l.SpilledRows-1)
		if r.alreadyDone(&items[i]) {
			l.ReloadedUpTo = items[i].Seq
			continue
		}
		if r.matchRequeued(l, &items[i]) {
			continue
		}
		rw := r.admit(&items[i])
		l.InternName(rw)
		l.RestoreFailures(rw)
		l.Rows = append(l.Rows, rw)
	}
}

// matchRequeued reports whether a reloaded row is one of the requeued rows at the head of
// the lane, and marks that row as spilled.
func (r *Reloads) matchRequeued(l *lane.Lane, it *store.Item) bool {
	for _, rw := range l.Rows {
		if rw.Origin != lane.Requeued {
			return false
		}
		if rw.ID != it.ID {
			continue
		}
		if rw.Seq == 0 {
			rw.Seq = it.Seq
			r.sp.spills.setCopy(rw, lane.CopyStored)
		}
		l.ReloadedUpTo = max(l.ReloadedUpTo, it.Seq)
		return true
	}

	return false
}

// admit counts a reloaded row.
func (r *Reloads) admit(it *store.Item) *lane.Row {
	rw := &lane.Row{Item: *it, Copy: lane.CopyStored}
	r.sp.lanes.Memory.Enter(rw, lane.Reloaded)
	r.seen(rw)
	return rw
}

// addRowLanes gives each spilled row its own lane.
func (r *Reloads) addRowLanes(all *lane.Lane, items []store.Item) {
	for i := range items {
		all.ReloadedUpTo = items[i].Seq
		all.SpilledRows = max(0, all.SpilledRows-1)
		name := r.sp.lanes.NameOf(&items[i])
		if r.alreadyDone(&items[i]) {
			continue
		}
		if l := r.sp.lanes.Get(name); l != nil {
			r.matchRequeued(l, &items[i])
			continue
		}
		l := r.sp.Lane(name)
		l.Rows = append(l.Rows, r.admit(&items[i]))
		r.sp.core.Wake(l)
	}
}

// alreadyDone reports whether a reloaded row is done and its spilled copy is being deleted.
func (r *Reloads) alreadyDone(it *store.Item) bool {
	ref := store.SpilledRef{Ref: it.Ref, Seq: it.Seq}
	if r.sp.copies.settling[ref] || r.sp.copies.deletedDuringReload[ref] {
		return true
	}
	rw := r.requeued[it.Ref]
	if rw != nil {
		rw.Seq = it.Seq
		r.sp.spills.setCopy(rw, lane.CopyStored)
		r.sp.copies.settling[ref] = true
		delete(r.requeued, it.Ref)
	}
	return rw != nil
}

// cancel takes back the queued spills of lanes that have no spilled rows left, and wakes the lanes.
// Those rows come next. It visits all queued rows once.
func (r *Reloads) cancel(lanes []*lane.Lane) {
	of := map[*lane.Lane]bool{}
	for _, l := range lanes {
		if l.Spilling > 0 {
			of[l] = true
		}
	}
	if len(of) > 0 {
		for _, p := range r.sp.spills.cancel(of) {
			r.sp.spills.setCopy(p.Row, lane.NoCopy)
			p.Lane.Spilling--
			p.Lane.Rows = append(p.Lane.Rows, p.Row)
		}
	}
	for _, l := range lanes {
		r.sp.core.Wake(l)
	}
}

// takeSpilledLanes selects spilled lanes to reload, of each kind in turn. Within a kind it
// goes in hash order, from the lane after the last reloaded one.
func (r *Reloads) takeSpilledLanes(limit int) {
	r.sp.kinds.turn++
	for i := range r.sp.kinds.sets {
		s := r.sp.kinds.sets[(r.sp.kinds.turn+i)%len(r.sp.kinds.sets)]
		if r.sp.lanes.IsAside(s.outbox) {
			continue
		}
		to := r.sp.lanes.Endpoints.Of(s.kind)
		if s.lanes.n > 0 && !r.needsLanes(to) {
			r.rotateProbeLane(to)
		}
		for left := s.lanes.n; left > 0 && len(r.reading) < limit && r.needsLanes(to); left-- {
			s.lastReloaded = s.lanes.next(s.lastReloaded)
			r.reading = append(r.reading, laneReload{spilled: s, hash: s.lastReloaded})
		}
	}
}

// needsLanes reports whether a receiver needs more lanes in memory.
func (r *Reloads) needsLanes(recv *lane.Receiver) bool {
	if !recv.Breaker.Open() {
		return true
	}
	n := max(0, len(recv.Untried())+len(recv.Tried())-recv.ReplayLanes) + recv.Breaker.Probes()
	for i := range r.reading {
		if r.receiverOf(&r.reading[i]) == recv {
			n++
		}
	}
	return n < MaxProbeLanes
}

// rotateProbeLane evicts a probed lane to make room for a spilled one, once every lane in
// memory was probed, because a spilled lane may close the breaker.
func (r *Reloads) rotateProbeLane(recv *lane.Receiver) {
	if len(recv.Untried())+recv.Breaker.Probes() > 0 {
		return
	}
	for _, l := range recv.Tried() {
		if l.Probed && l.AllReloaded() && !l.Reloading && !r.sp.shrinking[l] && l.Spilling == 0 {
			recv.Rotated++
			r.sp.Shrink(l, 0)
			return
		}
	}
}
