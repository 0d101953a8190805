package dispatch

import (
	"iter"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/dispatch/internal/breaker"
	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	pending "github.com/sluicebox/sluicebox/dispatch/internal/outcome"
	"github.com/sluicebox/sluicebox/dispatch/internal/replay"
	"github.com/sluicebox/sluicebox/dispatch/internal/spill"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// The limits of the circuit breaker, as the model knows them.
const (
	breakerFailures   = breaker.MaxFailures
	breakerRejections = breaker.MaxRejections
	maxEagerProbes    = breaker.MaxEagerProbes
)

// The waits for locks.
const (
	maxTableLockWait = pending.MaxTableWait
	maxRowLockWait   = pending.MaxRowLockWait
)

// The states of a lane.
type laneState = lanes.State

const (
	laneIdle     = lanes.Idle
	laneReady    = lanes.Ready
	laneClaiming = lanes.Claiming
	laneSending  = lanes.Sending
	laneWriting  = lanes.Writing
	laneWaiting  = lanes.Waiting
	laneHeld     = lanes.Held
	stateSpilled = lanes.Spilled
)

// The limit of lanes that are reloaded as probes.
const maxProbeLanes = spill.MaxProbeLanes

// The waits for a row that is not yet visible.
const (
	minVisibilityWait = lanes.MinVisibilityWait
	maxVisibilityWait = lanes.MaxVisibilityWait
)

// Tests read the parts of the core through this file, so that a part can move without a
// change of a test.

// live returns the live lanes, endpoints the receivers, shrinkingLanes the lanes that evict
// their rows once those are spilled.
func (c *core) live() map[LaneName]*lane       { return c.lanes.Live() }
func (c *core) endpoints() []*receiver         { return c.lanes.Endpoints.All() }
func (c *core) shrinkingLanes() map[*lane]bool { return c.spill.Shrinking() }
func (c *core) isShrinking(l *lane) bool       { return c.spill.Shrinking()[l] }

// enableSpill lets rows with a refused outcome be spilled.
func (c *core) enableSpill() { c.spill.AllowUnwritten() }

// hasLeft reports whether a row has left its lane since trackSettled.
func (c *core) hasLeft(ref store.Ref) bool { return c.operator.left[ref] }

// heldRows is the number of rows that the core counts.
func (c *core) heldRows() int { return c.lanes.Memory.Total() }

// heldBytes is the payload that the core counts.
func (c *core) heldBytes() int64 { return c.lanes.Memory.Bytes() }

// largeInFlight is the payload of large requests in flight that the core counts.
func (c *core) largeInFlight() int64 { return c.lanes.Memory.LargeBytes() }

// inFlightCounts are the counts of claims, requests, and requests with replayed rows.
func (c *core) inFlightCounts() (claiming, sending, replaying int) {
	return c.lanes.Requests.Counts()
}

// unsent returns the claimed requests that no sender has.
func (c *core) unsent() []*request { return c.lanes.Requests.Unsent() }

// toClaim returns the halves of unclaimed requests that are not being claimed yet.
func (c *core) toClaim() []*request { return c.lanes.Requests.Unclaimed() }

// setLate lets fresh rows go unclaimed while allowed says so. setUnwritten makes known that claims
// write nothing into the outboxes.
func (c *core) setLate(allowed func() bool) { c.late.allowed = allowed }
func (c *core) setUnwritten(keys []store.LaneKey) {
	c.lanes.Requests.Fresh.Unwritten = map[string]bool{}
	for _, key := range keys {
		c.lanes.Requests.Fresh.Unwritten[key.Outbox] = true
	}
}

// nextLate is when the next rows are to be claimed late.
func (c *core) nextLate() (at time.Time, ok bool) { return c.lanes.Requests.Fresh.NextDue() }

// timedLanes returns the lanes that wait for a time.
func (c *core) timedLanes() []*lane { return c.lanes.Timed() }

// queuedLanes returns the lanes in the ready queues, receivers' and locked tables' queues
// included.
func (c *core) queuedLanes() []*lane { return c.lanes.Queued() }

// isOpen reports whether the receiver's breaker is open.
func isOpen(r *receiver) bool { return r.Breaker.Open() }

// nextProbeAt is the time of the receiver's next probe.
func nextProbeAt(r *receiver) time.Time { return r.Breaker.NextProbe() }

// isProbe reports whether the request is a probe.
func isRequested(req *request) bool { return req.Probe == breaker.Requested }
func isProbe(r *request) bool       { return r.Probe != breaker.None }

// readyLanes and readyReplayLanes return the lanes in the receiver's queues.
func readyLanes(r *receiver) []*lane       { return r.Untried() }
func readyReplayLanes(r *receiver) []*lane { return r.ReadyReplays() }

// forceOpen opens the receiver's breaker.
func forceOpen(r *receiver) {
	for !r.Breaker.Open() {
		r.Breaker.Answered(&breaker.Answer{Failure: sink.Outcome{Class: sink.Unavailable}}, time.Unix(1e9, 0))
	}
}

// unwrittenCount is the number of outcomes that wait for the next write.
func (c *core) unwrittenCount() int { return c.outcomes.Waiting() }

// splitOutcomes sets from how many outcomes on a half of the lanes has its own batch.
func (c *core) splitOutcomes(from int) {
	c.outcomes = pending.NewQueue(pending.Config[owner]{EarlyWait: lanes.VisibilityWait, Half: halves(c.lanes), MinHalf: from})
}

// checkBatches checks that no lane has outcomes in two batches.
func checkBatches(t *rapid.T, c *core, batches [pending.Writers][]outcome) {
	of := map[LaneName]int{}
	for writer, batch := range batches {
		for i := range batch {
			name := c.lanes.NameOf(&outcomeRow(&batch[i]).Item)
			if other, found := of[name]; found && other != writer {
				t.Fatalf("outcomes of lane %v are in both batches", name)
			}
			of[name] = writer
		}
	}
}

// outcomeRow and outcomeLane return the row of an outcome, and the lane that waits for it; nil if
// the lane went on.
func outcomeRow(o *outcome) *row   { return o.Of.Row }
func outcomeLane(o *outcome) *lane { return o.Of.Lane }

// pendingOutcome is the outcome of a row that waits for its copy or its late claim.
func pendingOutcome(rw *row) *outcome { return rw.PendingOutcome }

// dueOf is the time of the next try.
func dueOf(o *outcome) time.Time { return o.Due() }

// rowIsLocked reports whether the outcome has found its row locked.
func rowIsLocked(o *outcome) bool { return o.RowWasLocked() }

// refuse records the database's error.
func refuse(o *outcome, text string) { o.Refusal = text }

// retrying returns the outcomes that wait for a retry.
func (c *core) retrying() []outcome { return c.outcomes.Deferred() }

// deferredCount is the number of outcomes that wait for a retry or a locked table.
func (c *core) deferredCount() (n int) {
	for range c.outcomes.Unready() {
		n++
	}
	return n
}

// refusedCount is the number of refused outcomes that the core counts.
func (c *core) refusedCount() int { return c.outcomes.Refused() }

// unwrittenOutcomes iterates over all outcomes that are not yet in the store.
func (c *core) unwrittenOutcomes() iter.Seq[*outcome] { return c.outcomes.All() }

// nextLockedTable and deferTable schedule the waits for locked tables.
func (c *core) nextLockedTable() (outbox string, due time.Time, ok bool) {
	return c.outcomes.NextTable()
}
func (c *core) deferTable(outbox string, due time.Time) { c.outcomes.DeferTable(outbox, due) }

// lockedOutboxes returns the outboxes whose table is locked.
func (c *core) lockedOutboxes() (outboxes []string) { return c.lanes.LockedTables() }

// tableDue returns when the store is asked about the next locked table; false if the table
// is not locked.
func (c *core) tableDue(outbox string) (due time.Time, locked bool) {
	if _, due, _ = c.outcomes.NextTable(); c.outcomes.TableLocked(outbox) {
		return due, true
	}
	return due, false
}

// pendingSpills iterates over the rows that are to be spilled or being spilled.
func (c *core) pendingSpills() iter.Seq[*spill.Pending] { return c.spill.All() }

// unspilledCount is the number of rows that wait to be spilled, beingSpilled of those being
// spilled.
func (c *core) unspilledCount() int { return c.spill.Counts().Waiting }
func (c *core) beingSpilled() int   { return c.spill.Counts().Writing }

// spillCounts are the core's counts of rows.
type spillCounts struct{ spilled, direct, unspillable, reloaded, detached int }

func (c *core) spillCounts() spillCounts {
	n := c.spill.Counts()
	return spillCounts{n.Stored, n.Direct, n.Unspillable, c.lanes.Memory.Rows(lanes.Reloaded), c.lanes.Memory.Rows(lanes.Detached)}
}

func isSpilled(rw *row) bool     { return rw.Copy == lanes.CopyStored }
func isSpilling(rw *row) bool    { return rw.Copy == lanes.CopyWriting }
func isUnspillable(rw *row) bool { return rw.Copy == lanes.CopyRefused }
func isReloaded(rw *row) bool    { return rw.Account == lanes.Reloaded }
func isDetached(rw *row) bool    { return rw.Account == lanes.Detached }
func isUnclaiming(rw *row) bool  { return rw.Sight == lanes.Unclaiming }
func isClaimed(rw *row) bool     { return !rw.Claimed.IsZero() }
func isRequeued(rw *row) bool    { return rw.Origin == lanes.Requeued }
func isDone(rw *row) bool        { return rw.Stage == lanes.Done }
func wasSeen(rw *row) bool       { return rw.Sight != lanes.Unseen }

// isSettling reports whether the outcome or the delete of a spilled row is in flight.
func (c *core) isSettling(ref store.SpilledRef) bool { return c.spill.IsSettling(ref) }
func (c *core) settlingCount() int                   { return c.spill.Counts().Settling }

// reloadWaiting returns the lanes that wait to be reloaded.
func (c *core) reloadWaiting() []*lane { return c.spill.Reloads.Queue() }

// isSpilledLane reports whether the lane of a row is known as spilled, or is being
// reloaded as one.
func (c *core) isSpilledLane(outbox string, hash store.LaneHash) bool {
	return c.spill.Knows(outbox, hash)
}

// The models run the commands of the spiller through these.
func (c *core) nextSpills(limit int) []store.Item        { return c.spill.Next(limit) }
func (c *core) spillsWritten(refused []bool)             { c.spill.Written(refused) }
func (c *core) nextDeletes(limit int) []store.SpilledRef { return c.spill.NextDeletes(limit) }
func (c *core) spilledDeleted(refs ...store.SpilledRef)  { c.spill.Deleted(refs...) }
func (c *core) addSpilledLanes(all []store.SpilledLane)  { c.spill.AddLanes(all) }
func (c *core) hasSpilledLanes() bool                    { return c.spill.Counts().Lanes > 0 }
func (c *core) spillExcess(others bool)                  { c.spill.Excess(others, time.Time{}) }
func (c *core) shrink(l *lane, keep int) int             { return c.spill.Shrink(l, keep) }
func (c *core) retryUnspillable()                        { c.spill.RetryUnspillable() }
func (c *core) nextReloads(now time.Time) ([]store.SpilledRange, int) {
	return c.spill.Reloads.Next(now)
}

// lanesOfFinishedRows returns the lanes that wait until a finished row is recorded.
func (c *core) lanesOfFinishedRows() (lanes []*lane) {
	for d := range c.replays.jobs.Results() {
		if d.Of.Lane != nil {
			lanes = append(lanes, d.Of.Lane)
		}
	}
	return lanes
}

// unrecordedCount is the number of finished rows of jobs that are not yet recorded.
func (c *core) unrecordedCount() int { return c.replays.jobs.Unrecorded() }

// nextReplayDone and takeReplayChanged drive the jobs.
func (c *core) nextReplayDone(limit int) (id string, done []store.FinishedRow) {
	return c.replays.jobs.Next(limit)
}
func (c *core) takeReplayChanged() bool { return c.replays.jobs.TakeChanged() }

// jobID is the id of a job.
func jobID(j *replay.Job) string { return j.ID() }

// jobRows is the number of a job's rows in memory; 0 if the core does not know the job.
func (c *core) jobRows(id string) int {
	rows, _, _ := c.replays.jobs.Load(id)
	return rows
}

// replayLoad is the load of a job, in total and by lane.
func (c *core) replayLoad(id string) (load JobLoad, byLane map[store.LaneKey]int) {
	load.Rows, load.Bytes, byLane = c.replays.jobs.Load(id)
	return load, byLane
}

// jobCount is the number of jobs with rows in memory.
func (c *core) jobCount() (n int) {
	for range c.replays.jobs.All() {
		n++
	}
	return n
}

// heldLaneCount is the number of keys whose rows in flight a replay waits for.
func (c *core) heldLaneCount() int { return c.replays.holds.Len() }

// The lanes, their names and requests.
func (c *core) laneOf(name LaneName) *lane          { return c.lanes.Get(name) }
func (c *core) allLanes() iter.Seq[*lane]           { return c.lanes.All() }
func (c *core) lanesByAge() []*lane                 { return c.lanes.ByAge() }
func (c *core) laneNameOf(it *store.Item) LaneName  { return c.lanes.NameOf(it) }
func (c *core) freeRequests() int                   { return c.lanes.Requests.Free() }
func (c *core) replayRequestRoom(now time.Time) int { return c.lanes.ReplayRequestRoom(now) }
func (c *core) requestShare() int64                 { return c.lanes.Memory.RequestShare() }
func (c *core) nextRequest(now time.Time) *request  { return c.lanes.Requests.Next(now) }

// freeze suspends or resumes claims.
func (c *core) freeze(frozen bool) {
	c.notBefore = time.Time{}
	if frozen {
		c.notBefore = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
	}
}

// Freeze suspends or resumes claims.
func (d *Dispatcher) Freeze(frozen bool) {
	d.mu.Lock()
	d.core.freeze(frozen)
	d.mu.Unlock()
	notify(d.toClaim)
}

// Answers of the receiver, and pings.
func (c *core) answered(req *request, res *sink.Result, now time.Time) { c.answers.take(req, res, now) }
func (c *core) setPingable(possible bool)                              { c.answers.pings.possible = possible }
func (c *core) nextPing() *ping                                        { return c.answers.pings.next() }
func (c *core) pinged(p *ping, res *sink.Result, ok bool, began, now time.Time) {
	c.answers.pings.answered(p, res, ok, began, now)
}

// What operators and replays ask for.
func (c *core) nextOutcomes(limit int) []outcome                    { return c.late.nextOutcomes(0, limit, time.Time{}) }
func (c *core) written(results []store.SettleResult, now time.Time) { c.wrote(0, results, now) }
func (c *core) pause(name LaneName, h store.Hold)                   { c.operator.pause(name, h) }
func (c *core) resume(l *lane, now time.Time)                       { c.operator.resume(l, now) }
func (c *core) unblock(l *lane, now time.Time)                      { c.operator.unblock(l, now) }
func (c *core) restore(holds []store.Hold)                          { c.operator.restore(holds) }
func (c *core) requeue(items []store.Item)                          { c.operator.requeue(items) }
func (c *core) trackSettled(on bool)                                { c.operator.trackSettled(on) }
func (c *core) retryNow(l *lane) error                              { return c.operator.retryNow(l) }
func (c *core) releaseFixed(refs []store.Ref, now time.Time)        { c.operator.releaseFixed(refs, now) }
func (c *core) insertFound(items []store.Item, now time.Time) int {
	return c.operator.insertFound(items, now)
}
func (c *core) skip(l *lane, reason string, now time.Time) (<-chan error, error) {
	return c.operator.skip(l, reason, now)
}
func (c *core) replay(id string, rows []store.ReplayRow)   { c.replays.add(id, rows) }
func (c *core) withdrawJob(id string)                      { c.replays.withdraw(id) }
func (c *core) replayDoneWritten(now time.Time)            { c.replays.recorded(now) }
func (c *core) holdForReplay(id string, key store.LaneKey) { c.replays.hold(id, key) }
func (c *core) heldLane(key store.LaneKey) HeldLane        { return c.replays.heldLane(key) }
func (c *core) releaseReplayHold(id string, key store.LaneKey, now time.Time) {
	c.replays.release(id, key, now)
}

// reloadRoom is how many rows may be reloaded; negative if too many are.
func (c *core) reloadRoom(time.Time) int {
	return max(1, c.cfg.BufferRows/2) - c.lanes.Memory.Used(lanes.Reloaded)
}

// newTestCore returns the core of a destination without other users.
func newTestCore(cfg Config, limits func(kind string) sink.Limits, random func() float64) *core {
	return newCore(cfg, cfg.lanes(limits, random))
}
