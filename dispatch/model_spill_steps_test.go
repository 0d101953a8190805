package dispatch

import (
	"context"
	"slices"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// interfere settles or deletes a row like another session.
func (y *spillModel) interfere(t *rapid.T) {
	if len(y.log) == 0 {
		return
	}
	r := rapid.SampledFrom(y.log).Draw(t, "row")
	if r.settled() || y.logOnly != nil {
		return
	}
	switch rapid.IntRange(0, 2).Draw(t, "how") {
	case 0:
		r.gone = true
	case 1:
		r.status = store.Completed
	case 2:
		r.status = store.Failed
	}
}

func (y *spillModel) claim(t *rapid.T) {
	if len(y.claiming) > 0 {
		return
	}
	y.core.tick(y.now)
	y.claiming = y.core.nextClaims(rapid.IntRange(1, 10).Draw(t, "most"), y.now)
	y.checkClaims()
	y.send()
}

func (y *spillModel) answerClaims(*rapid.T) {
	for _, req := range y.claiming {
		var answers []store.ClaimAnswer
		for _, run := range req.Runs {
			for _, rw := range run.Rows {
				r, a := y.byID[rw.ID], store.ClaimAnswer{Result: store.Claimed}
				switch {
				case y.lockedTables[rw.Outbox]:
					a.Result = store.TableLocked
				case r.refusesClaim:
					a.Result, a.Error = store.NotYetVisible, "a trigger objects"
				case r.unseen:
					a.Result, r.unseen = store.NotYetVisible, false
				case r.gone:
					a.Result = store.Gone
				case r.settled():
					a.Result = store.AlreadySettled
				default:
					r.status, r.claimEpoch = store.Processing, y.epoch
					switch {
					case rw.Payload != nil:
					case y.logOnly != nil:
						y.t.Fatalf("row %s lost its payload, and no table has it\n%s", r.id, y.describe())
					default:
						a.Payload = []byte("{}")
					}
				}
				answers = append(answers, a)
			}
		}
		y.core.claimed(req, answers, y.now, y.now)
	}
	y.claiming = nil
	y.send()
}

func (y *spillModel) send() {
	for req := y.core.nextRequest(y.now); req != nil; req = y.core.nextRequest(y.now) {
		y.sending = append(y.sending, req)
	}
}

func (y *spillModel) answer(t *rapid.T) {
	if len(y.sending) == 0 {
		return
	}
	i := rapid.IntRange(0, len(y.sending)-1).Draw(t, "request")
	req := y.sending[i]
	y.sending = slices.Delete(y.sending, i, i+1)
	if req.Job() != nil {
		res := y.answerReplay(t, req)
		y.core.answered(req, &res, y.now)
		y.send()
		return
	}
	res := sink.Result{Outcome: outcomeOf(sink.Delivered)}
	for _, run := range req.Runs {
		for _, rw := range run.Rows {
			switch r := y.byID[rw.ID]; {
			case y.receiverDown || y.lanesDown[r.key]:
				res.Outcome = outcomeOf(sink.Unavailable)
				if y.receiverDown && y.misconfigured {
					res.Outcome = outcomeOf(sink.Misconfigured)
				}
			case r.poison && res.Class == sink.Delivered:
				res.Outcome = outcomeOf(sink.Rejected)
			}
		}
	}
	if res.Class == sink.Delivered {
		for _, run := range req.Runs {
			for _, rw := range run.Rows {
				y.arrive(y.byID[rw.ID])
			}
		}
	}
	y.core.answered(req, &res, y.now)
	y.send()
}

// arrive checks that the first arrivals of a group are in log order.
func (y *spillModel) arrive(r *storedRow) {
	if r.deliveredEpoch == y.epoch {
		y.t.Fatalf("row %s is sent twice by one leader\n%s", r.id, y.describe())
	}
	r.deliveredEpoch = y.epoch
	if !r.arrived && !r.requeued && !r.outOfOrder && (r.key.Group.Valid || y.cfg.Ungrouped == FIFO) {
		for _, before := range y.log {
			if before == r {
				break
			}
			if before.key == r.key && !before.arrived && !before.requeued && !before.outOfOrder && !before.settled() {
				y.t.Fatalf("row %s arrives before row %s\n%s", r.id, before.id, y.describe())
			}
		}
	}
	r.arrived = true
}

func (y *spillModel) takeOutcomes(t *rapid.T) {
	y.core.tick(y.now)
	if outbox, due, ok := y.core.nextLockedTable(); ok && !due.After(y.now) {
		if y.lockedTables[outbox] {
			y.core.deferTable(outbox, y.now.Add(minTableLockInterval))
		} else {
			y.core.unlockTable(outbox, y.now)
		}
	}
	for _, writer := range y.drawWriters(t) {
		if len(y.writing[writer]) == 0 {
			y.writing[writer] = y.core.late.nextOutcomes(writer, rapid.IntRange(1, 10).Draw(t, "most"), y.now)
		}
	}
	checkBatches(t, y.core, y.writing)
}

// drawWriters returns one writer, or all.
func (y *spillModel) drawWriters(t *rapid.T) []int {
	return rapid.SampledFrom([][]int{{0, 1}, {0}, {1}, {1, 0}}).Draw(t, "writers")
}

// write is the store: it writes an outcome and deletes the spilled row in one transaction.
func (y *spillModel) write(t *rapid.T) {
	for _, writer := range y.drawWriters(t) {
		y.writeBatch(writer)
	}
}

func (y *spillModel) writeBatch(writer int) {
	batch := y.writing[writer]
	if len(batch) == 0 || y.results[writer] != nil {
		return
	}
	results := make([]store.SettleResult, len(batch))
	for i := range batch {
		o := &batch[i]
		r := y.byID[o.ID]
		written := y.logOnly == nil || o.Status != store.Completed // a delivery changes no row of a table without a state
		switch {
		case written && y.lockedTables[o.Outbox]:
			results[i] = store.TableWasLocked
			continue
		case written && r.locked:
			results[i] = store.WasLocked
			continue
		case written && r.refuse > 0:
			r.refuse--
			results[i] = store.Refused
			refuse(o, "a trigger objects")
			continue
		case r.status == store.Failed && o.Status == store.Failed && o.Error == "passed over":
			results[i], o.Block = store.WasSettled, nil
		case o.Status == store.Completed && !r.arrived:
			y.t.Fatalf("row %s COMPLETED without an arrival", r.id)
		case r.gone:
			results[i] = store.WasGone
		case r.settled():
			results[i], o.Block = store.WasSettled, nil // by another session
		default:
			results[i], r.status = store.Written, o.Status
			if o.Status == store.Failed {
				if r.failedSeq = o.Row.Seq; y.logOnly != nil && o.Row.Payload == nil {
					y.t.Fatalf("row %s is FAILED without its payload", r.id)
				}
			}
			if o.Block != nil {
				y.holds[r.key] = o.Hold()
			}
		}
		if o.SpilledSeq != 0 && o.Status.Settled() {
			y.spilled.delete(store.SpilledRef{Ref: o.Ref, Seq: o.SpilledSeq})
		}
	}
	y.results[writer] = results
}

// written reports the results of the store to the core.
func (y *spillModel) written(*rapid.T) {
	for writer, results := range y.results {
		if results != nil {
			y.writing[writer], y.results[writer] = nil, nil
			y.core.wrote(writer, results, y.now)
		}
	}
}

// isUnreported reports whether the core has yet to get results of the store.
func (y *spillModel) isUnreported() bool { return y.results[0] != nil || y.results[1] != nil }

// isBeingWritten reports whether the outcome of a row is in a batch that no statement has written.
func (y *spillModel) isBeingWritten(r *storedRow) bool {
	for writer, batch := range y.writing {
		if y.results[writer] == nil && slices.ContainsFunc(batch, func(o outcome) bool { return o.ID == r.id }) {
			return true
		}
	}
	return false
}

func (y *spillModel) busy() bool { return len(y.spilling) > 0 || y.reading }

// spill starts or ends a spill statement.
func (y *spillModel) spill(t *rapid.T) {
	switch {
	case len(y.spilling) > 0:
		refused := make([]bool, len(y.spilling))
		var taken []store.Item
		for i := range y.spilling {
			if refused[i] = y.byID[y.spilling[i].ID].unspillable; !refused[i] {
				taken = append(taken, y.spilling[i])
			}
		}
		_ = y.spilled.Spill(context.Background(), y.epoch, taken)
		y.spilling = nil
		y.core.spillsWritten(refused)
	case !y.busy():
		y.spilling = y.core.nextSpills(rapid.IntRange(1, 10).Draw(t, "most"))
	}
}

// read starts or ends a reload. The result is that of its start.
func (y *spillModel) read(*rapid.T) {
	switch {
	case y.reading:
		y.reading = false
		y.core.addReloaded(y.answers, y.each)
	case !y.busy():
		from, each := y.core.nextReloads(y.now)
		if y.reading, y.each = len(from) > 0, each; y.reading {
			y.answers, _ = y.spilled.ReadSpilled(context.Background(), from, each)
		}
	}
}

// endBusy ends the statement in flight.
func (y *spillModel) endBusy(t *rapid.T) {
	if y.reading {
		y.read(t)
	}
	if len(y.spilling) > 0 {
		y.spill(t)
	}
}

func (y *spillModel) deleteSpilled(*rapid.T) {
	if !y.busy() {
		refs := y.core.nextDeletes(3)
		y.spilled.delete(refs...)
		y.core.spilledDeleted(refs...)
	}
}

func (y *spillModel) hold(t *rapid.T) {
	key := rapid.SampledFrom(y.keys).Draw(t, "lane")
	if _, held := y.holds[key]; held || !key.Group.Valid && y.cfg.Ungrouped == Parallel {
		return
	}
	y.holds[key] = store.Hold{Lane: key, Kind: store.Paused}
	y.core.pause(LaneName{LaneKey: key}, y.holds[key])
}

func (y *spillModel) releaseHold(t *rapid.T) {
	y.releaseLane(rapid.SampledFrom(y.keys).Draw(t, "lane"))
}

func (y *spillModel) releaseLane(key store.LaneKey) {
	delete(y.holds, key)
	l := y.core.live()[LaneName{LaneKey: key}]
	if l != nil && l.Paused != nil {
		y.core.resume(l, y.now)
	}
	if l != nil && l.Blocked != nil {
		y.core.unblock(l, y.now)
	}
}

// resetFailed resets a FAILED row to PENDING.
func (y *spillModel) resetFailed(t *rapid.T) {
	failed := slices.DeleteFunc(slices.Clone(y.log), func(r *storedRow) bool {
		return r.status != store.Failed || r.gone || slices.Contains(y.log[y.logRead:], r) || y.isBeingWritten(r)
	})
	if len(failed) == 0 {
		return
	}
	r := rapid.SampledFrom(failed).Draw(t, "row")
	r.status, r.requeued, r.poison, r.deliveredEpoch = store.Pending, true, false, 0
	if y.holds[r.key].ID == r.id {
		delete(y.holds, r.key)
	}
	it := r.item()
	if y.logOnly != nil { // it becomes a spilled row again
		it.Seq, it.Txn = r.failedSeq, 0
		_ = y.spilled.Spill(context.Background(), y.epoch, []store.Item{it})
	}
	y.core.requeue([]store.Item{it})
	y.core.releaseFixed([]store.Ref{it.Ref}, y.now)
}

// sweep takes the next step of a sweep: the snapshot, then the held rows, then, at the
// marker, the unknown rows. Only rows that were reset may be among them.
func (y *spillModel) sweep(*rapid.T) {
	switch {
	case y.ended, y.logOnly != nil: // such a table is not swept
	case y.sweepStep == 0 && y.logRead == len(y.log):
		y.sweepStep, y.found = 1, nil
		y.core.trackSettled(true)
		for _, r := range y.log {
			if !r.settled() && !y.spilled.has(r.id) {
				y.found = append(y.found, r.item())
			}
		}
	case y.sweepStep == 1:
		y.sweepStep, y.mark = 2, len(y.log)
		held := map[string]bool{}
		for _, kind := range []string{"EVENT", "JOB"} {
			for _, id := range y.core.heldIDs("box " + kind) {
				held[id] = true
			}
		}
		y.found = slices.DeleteFunc(y.found, func(it store.Item) bool { return held[it.ID] })
	case y.sweepStep == 2 && y.logRead >= y.mark:
		y.sweepStep = 0
		for _, it := range y.found {
			r := y.byID[it.ID]
			known := slices.Contains(y.core.heldIDs(it.Outbox), it.ID) || y.core.hasLeft(it.Ref)
			if !known && !r.requeued {
				y.t.Fatalf("row %s is %s, and no lane knows it\n%s", r.id, r.status, y.describe())
			}
			if !known && y.spilled.has(it.ID) {
				y.t.Fatalf("row %s is placed beside its spilled copy", r.id)
			}
			y.core.insertFound([]store.Item{it}, y.now)
		}
		y.core.trackSettled(false)
	}
}

// skip skips the head of a lane.
func (y *spillModel) skip(t *rapid.T) {
	l := y.core.live()[LaneName{LaneKey: rapid.SampledFrom(y.keys).Draw(t, "lane")}]
	if l != nil && l.Blocked == nil && !y.ended {
		_, _ = y.core.skip(l, "passed over", y.now)
	}
}

// end is a graceful shutdown: everything in flight ends, and no row stays claimed.
func (y *spillModel) end(t *rapid.T) {
	y.core.end()
	y.ended = true
	for range 3 {
		y.written(t)
		y.answerClaims(t)
		for len(y.sending) > 0 {
			y.answer(t)
		}
		if y.reading {
			y.read(t)
		}
		for y.spill(t); len(y.spilling) > 0; y.spill(t) { // begins the next statement
			y.spill(t) // ends it
		}
		for range 300 {
			if y.takeOutcomes(t); len(y.writing[0])+len(y.writing[1])+y.core.unwrittenCount() == 0 {
				break
			}
			y.write(t)
			y.written(t)
		}
		for y.core.unrecordedCount() > 0 {
			y.recordFinished(t)
		}
	}
	if !y.core.drained() {
		t.Fatalf("an ended core is not quiet")
	}
	if y.core.nextSpills(10) != nil || y.core.nextDeletes(10) != nil {
		t.Fatalf("an ended core spills")
	}
	for _, r := range y.log {
		if r.status == store.Processing && r.claimEpoch == y.epoch && !r.gone && !y.unwritten(r.id) {
			t.Fatalf("row %s is left PROCESSING by a clean end\n%s", r.id, y.describe())
		}
	}
	for _, b := range y.batches {
		held := func(r *storedRow) bool { return r.unspillable || y.unwritten(r.id) }
		if y.logOnly != nil && b.done < len(b.rows) && !slices.ContainsFunc(b.rows, held) {
			t.Fatalf("a clean end leaves %d rows, that only the log has, to the log\n%s", len(b.rows)-b.done, y.describe())
		}
	}
	y.crash(t)
}

// unwritten reports whether a row has an outcome that is not in the table.
func (y *spillModel) unwritten(id string) bool {
	for o := range y.core.unwrittenOutcomes() {
		if o.ID == id {
			return true
		}
	}
	return false
}

// crash ends the core. A statement in flight may have been carried out.
func (y *spillModel) crash(t *rapid.T) {
	if len(y.spilling) > 0 && rapid.Bool().Draw(t, "spilled after all") {
		_ = y.spilled.Spill(context.Background(), y.epoch, y.spilling)
	}
	if len(y.recording) > 0 && rapid.Bool().Draw(t, "noted after all") {
		y.delete(y.recording)
	}
	for _, b := range y.batches {
		if b.done < len(b.rows) || rapid.IntRange(0, 3).Draw(t, "not saved") == 0 {
			break
		}
		y.passed, y.seq = b.end, b.last
	}
	y.logLost = rapid.IntRange(0, 5).Draw(t, "log lost") == 0 && y.logOnly == nil // a snapshot has no such row
	y.start()
}
