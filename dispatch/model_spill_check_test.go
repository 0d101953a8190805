package dispatch

import (
	"slices"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/store"
)

// check checks that the checkpoint passes only safe rows, and the counts of the core.
func (y *spillModel) check(*rapid.T) {
	for _, b := range y.batches {
		safe := 0
		for _, r := range b.rows {
			if r.settled() || r.requeued || y.spilled.has(r.id) {
				safe++
			}
		}
		if b.done > safe {
			y.t.Fatalf("a ticket counts %d rows, %d of its %d are settled or spilled", b.done, safe, len(b.rows))
		}
	}
	rows := y.core.spillCounts().direct
	seen := map[*row]bool{}
	for _, l := range y.core.live() {
		rows += len(l.Rows) + len(l.UnspillableTail)
		if l.State == laneReady && len(l.Rows) == 0 {
			y.t.Fatalf("lane %s is ready without a row", l.Name)
		}
		for _, rows := range [][]*row{l.Rows, l.UnspillableTail} {
			for _, rw := range rows {
				seen[rw] = true
			}
		}
	}
	for o := range y.core.unwrittenOutcomes() {
		if o.Status == store.Pending && isDone(outcomeRow(o)) {
			continue // it was refused, and its row was skipped meanwhile
		}
		if !seen[outcomeRow(o)] {
			seen[outcomeRow(o)] = true
			rows++
		}
	}
	for p := range y.core.pendingSpills() {
		if o := p.Row.PendingOutcome; p.Copied && !seen[p.Row] && o != nil && o.Status != 0 {
			rows++
		}
	}
	y.checkRefused()
	if n := y.core.spillCounts().reloaded; n > max(1, y.cfg.BufferRows/2)+y.each || n < 0 {
		y.t.Fatalf("%d rows were read back into a buffer of %d", n, y.cfg.BufferRows)
	}
	checkReceivers(y.t, y.core)
	y.checkSpilled()
	y.checkReplay()
	if rows != y.core.heldRows() {
		y.t.Fatalf("%d rows are counted, %d are held", y.core.heldRows(), rows)
	}
}

// checkRefused checks the count of rows whose outcome the table refuses. Each of them must
// be spilled or being spilled, unless it has no position in the log.
func (y *spillModel) checkRefused() {
	refused, spilled := 0, map[*row]bool{}
	for o := range y.core.eachRefusedOutcome() {
		refused++
		if isDetached(outcomeRow(o)) {
			spilled[outcomeRow(o)] = true
		}
		givenBack := outcomeLane(o) == nil && o.Status == store.Pending
		kept := y.byID[outcomeRow(o).ID].unspillable || y.byID[outcomeRow(o).ID].wasUnspillable // until its outcome is retried
		if rw := outcomeRow(o); rw.Seq != 0 && !isSpilled(rw) && !isSpilling(rw) && !givenBack && !y.ended && !kept {
			y.t.Fatalf("row %s has an outcome that is refused, and is not spilled\n%s", rw.ID, y.describe())
		}
	}
	if refused != y.core.refusedCount() || len(spilled) > y.core.spillCounts().detached {
		y.t.Fatalf("%d outcomes are refused, %d counted; %d rows are spilled, %d counted", refused, y.core.refusedCount(), len(spilled), y.core.spillCounts().detached)
	}
}

// checkSpilled checks that every spilled row will be reloaded, and that no row is lost.
func (y *spillModel) checkSpilled() {
	c := y.core
	onTheWay, passing := map[*lane]int{}, 0
	inMemory := map[store.SpilledRef]bool{}
	for p := range c.pendingSpills() {
		onTheWay[p.Lane]++
		if !p.Copied {
			passing++
		}
		inMemory[store.SpilledRef{Ref: p.Row.Ref, Seq: p.Row.Seq}] = true
	}
	counts := c.spillCounts()
	if passing != counts.direct && !y.ended {
		y.t.Fatalf("%d rows pass, %d are counted", passing, counts.direct)
	}
	for o := range c.unwrittenOutcomes() {
		inMemory[store.SpilledRef{Ref: outcomeRow(o).Ref, Seq: outcomeRow(o).Seq}] = true
	}
	unspillable := map[*row]bool{}
	see := func(rw *row) {
		if isUnspillable(rw) {
			unspillable[rw] = true
		}
		if isUnspillable(rw) && !y.byID[rw.ID].unspillable {
			y.t.Fatalf("row %s is taken for one that cannot be spilled", rw.ID)
		}
	}
	for o := range c.unwrittenOutcomes() {
		see(outcomeRow(o))
	}
	for _, l := range c.live() {
		for _, rows := range [][]*row{l.Rows, l.UnspillableTail} {
			for _, rw := range rows {
				see(rw)
			}
		}
		if len(l.UnspillableTail) > 0 && (!l.HasSpilled || l.UnspillableTail[0].Seq <= l.LastSeq()) {
			y.t.Fatalf("lane %s has rows in memory behind spilled ones: has spilled %v, from %d, reach %d", l.Name, l.HasSpilled, l.UnspillableTail[0].Seq, l.LastSeq())
		}
	}
	if len(unspillable) != counts.unspillable && !y.ended {
		y.t.Fatalf("%d rows cannot be spilled, %d are counted\n%s", len(unspillable), counts.unspillable, y.describe())
	}
	hungry := map[*lane]bool{}
	for _, l := range c.reloadWaiting() {
		hungry[l] = true
	}
	back := 0
	for name, l := range c.live() {
		if l.Name != name || l.Spilling != onTheWay[l] && !y.ended {
			y.t.Fatalf("lane %s: %d rows are being spilled, %d are counted", name, onTheWay[l], l.Spilling)
		}
		if c.isShrinking(l) && l.Spilling == 0 && !y.ended && !slices.ContainsFunc(l.Rows, func(rw *row) bool { return isUnclaiming(rw) }) {
			y.t.Fatalf("lane %s shrinks, and nothing is being spilled\n%s", name, y.describe())
		}
		if l.NeedsReload != hungry[l] {
			y.t.Fatalf("lane %s: hungry %v, queued %v", name, l.NeedsReload, hungry[l])
		}
		if l.State == laneIdle && (len(l.Rows) == 0 || !isUnclaiming(l.Rows[0])) && (len(l.Rows) > 0 || !l.HasSpilled || !l.NeedsReload && !l.Reloading) && !y.ended {
			y.t.Fatalf("lane %s is idle: %d rows, behind %v, hungry %v, reading %v\n%s", name, len(l.Rows), l.HasSpilled, l.NeedsReload, l.Reloading, y.describe())
		}
		ids := map[string]bool{}
		for _, rw := range l.Rows {
			if isReloaded(rw) {
				back++
			}
			inMemory[store.SpilledRef{Ref: rw.Ref, Seq: rw.Seq}] = true
			if ids[rw.ID] && (y.logOnly == nil || !y.byID[rw.ID].requeued) { // see operator.requeue
				y.t.Fatalf("row %s is twice in lane %s\n%s", rw.ID, name, y.describe())
			}
			ids[rw.ID] = true
			if !isSpilled(rw) && rw.Ticket == nil && rw.Seq != 0 {
				y.t.Fatalf("row %s has a seq, no ticket and is not spilled", rw.ID)
			}
			for _, other := range c.live() {
				if other != l && name.RowID == "" && !isRequeued(rw) && slices.Contains(other.Rows, rw) {
					y.t.Fatalf("row %s is in two lanes", rw.ID)
				}
			}
		}
	}
	for l := range c.shrinkingLanes() {
		if c.live()[l.Name] != l {
			y.t.Fatalf("lane %s shrinks and is forgotten", l.Name)
		}
	}
	if !y.isUnreported() && len(y.spilled.items) != counts.spilled {
		y.t.Fatalf("%d rows are spilled, %d are counted\n%s", len(y.spilled.items), counts.spilled, y.describe())
	}
	y.checkWaiting()
	for i := range y.spilled.items {
		it := &y.spilled.items[i]
		ref := store.SpilledRef{Ref: it.Ref, Seq: it.Seq}
		if inMemory[ref] || c.isSettling(ref) || y.ended {
			continue
		}
		l := c.live()[LaneName{LaneKey: it.Lane()}]
		if l != nil && l.HasSpilled && it.Seq > l.LastSeq() {
			continue
		}
		if !c.isSpilledLane(it.Outbox, hashOf(it)) && !y.byID[it.ID].settled() {
			y.t.Fatalf("row %s is spilled and will not be reloaded\n%s", it.ID, y.describe())
		}
	}
}

// checkWaiting compares the core's number of waiting rows with the rows themselves.
func (y *spillModel) checkWaiting() {
	c := y.core
	if y.isUnreported() || y.ended {
		return
	}
	waiting := map[any]bool{}
	for i := range y.spilled.items {
		waiting[store.SpilledRef{Ref: y.spilled.items[i].Ref, Seq: y.spilled.items[i].Seq}] = true
	}
	see := func(rw *row) {
		if isSpilled(rw) {
			waiting[store.SpilledRef{Ref: rw.Ref, Seq: rw.Seq}] = true
		} else {
			waiting[rw] = true
		}
	}
	for _, l := range c.live() {
		for _, rows := range [][]*row{l.Rows, l.UnspillableTail} {
			for _, rw := range rows {
				see(rw)
			}
		}
	}
	for o := range c.unwrittenOutcomes() {
		if o.Status.Settled() {
			see(outcomeRow(o))
		}
	}
	for p := range c.pendingSpills() {
		if rw := p.Row; !isDone(rw) || rw.PendingOutcome != nil && rw.PendingOutcome.Status.Settled() {
			see(rw)
		}
	}
	if got := c.stats().Waiting; got != len(waiting) {
		y.t.Fatalf("%d rows wait, %d are counted\n%s", len(waiting), got, y.describe())
	}
}
