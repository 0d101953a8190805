package dispatch

import (
	"slices"

	"pgregory.net/rapid"
)

// check checks the invariants.
func (w *coreModel) check() {
	c := w.core
	claiming, sending, _ := c.inFlightCounts()
	if claiming != len(w.claiming) || sending != len(w.sending) ||
		sending > w.cfg.MaxConcurrentGroups || claiming > 2*w.cfg.MaxConcurrentGroups+w.cfg.claimAhead() { // halves of unclaimed requests too
		w.t.Fatalf("%d claims of %d, %d requests of %d, %d allowed", claiming, len(w.claiming), sending, len(w.sending), w.cfg.MaxConcurrentGroups)
	}
	rows, over := 0, map[string]bool{}
	for _, b := range w.batches {
		done := 0
		for _, r := range b.rows {
			over[r.id] = r.over
			if r.over {
				done++
				continue
			}
			rows++
		}
		if b.done != done && !b.withoutTicket {
			w.t.Fatalf("a ticket counts %d rows, %d of its %d are done", b.done, done, len(b.rows))
		}
	}
	if c.heldRows() != rows {
		w.t.Fatalf("%d rows are counted, %d are held", c.heldRows(), rows)
	}
	held := map[string]bool{}
	for kind := range w.limits {
		for _, id := range c.heldIDs("box" + kind) {
			held[id] = true
			if w.table[id].key.Kind != kind {
				w.t.Fatalf("row %s of %s is held in box%s", id, w.table[id].key, kind)
			}
		}
	}
	for id, isOver := range over {
		if held[id] == isOver {
			w.t.Fatalf("row %s: over %v, held %v", id, isOver, held[id])
		}
	}
	for _, recv := range c.endpoints() {
		if by := w.endpointNamed(recv.Endpoint); isOpen(recv) != by.breakerOpen {
			w.t.Fatalf("endpoint %s has its breaker open %v, by the rule %v after %d failed requests", recv.Endpoint, isOpen(recv), by.breakerOpen, by.failures)
		}
	}
	w.forgetEndpoints()
	w.checkProbes()
	checkReceivers(w.t, c)
	w.checkBytes()
	w.checkLargeInFlight()
	w.checkLanes()
	w.checkReplays()
	w.checkSkips()
	w.checkLocks()
}

// checkProbes checks that the probes of the endpoints that rows name take part of the senders
// only, except for those that an operator asked for.
func (w *coreModel) checkProbes() {
	probes := 0
	for _, req := range slices.Concat(w.claiming, w.sending, w.core.unsent()) {
		if w.named[req.Runs[0].Lane.Name.Kind] && isProbe(req) && !isRequested(req) {
			probes++
		}
	}
	if most := max(1, w.cfg.MaxConcurrentGroups/4); probes > most {
		w.t.Fatalf("%d probes of the endpoints of rows are in flight, want at most %d", probes, most)
	}
}

// checkReceivers checks that each endpoint knows how many lanes wait for it, so that
// readiness fails only while a lane waits.
func checkReceivers(t *rapid.T, c *core) {
	for _, recv := range c.endpoints() {
		lanes, held := 0, 0
		for l := range c.allLanes() {
			switch {
			case l.Receiver != recv:
			case l.State == laneHeld:
				held++
				fallthrough
			default:
				lanes++
			}
		}
		if recv.Lanes != lanes || recv.Held != held {
			t.Fatalf("endpoint %s counts %d lanes, %d held; there are %d, %d held", recv.Endpoint, recv.Lanes, recv.Held, lanes, held)
		}
	}
}

// checkBytes checks that beyond BufferBytes only payloads in flight are kept.
func (w *coreModel) checkBytes() {
	bytes, late := 0, 0
	for _, l := range w.core.live() {
		for i, rw := range l.Rows {
			bytes += rw.ContentBytes()
			if i < l.InFlight || rw.Attempts > 0 || wasSeen(rw) {
				late += rw.ContentBytes()
			}
		}
	}
	for o := range w.core.unwrittenOutcomes() {
		if outcomeLane(o) == nil && o.Status.Settled() {
			bytes += outcomeRow(o).ContentBytes()
			late += outcomeRow(o).ContentBytes()
		}
	}
	if w.core.heldBytes() != int64(bytes) || !w.ended && int64(bytes-late) > w.cfg.BufferBytes {
		w.t.Fatalf("%d bytes are counted, %d are held, %d of rows that wait; %d allowed", w.core.heldBytes(), bytes, bytes-late, w.cfg.BufferBytes)
	}
}

// checkLargeInFlight checks the large rows in flight: at most BufferBytes together, or a
// single row. Probes of endpoints that are down, and operators' retries, do not count.
func (w *coreModel) checkLargeInFlight() {
	var large, largest, all int64
	for _, req := range slices.Concat(w.claiming, w.sending, w.core.unsent()) {
		if all += req.LargeBytes; !isProbe(req) {
			large += req.LargeBytes
			largest = max(largest, req.LargeBytes)
		}
	}
	if w.core.largeInFlight() != all || large > w.cfg.BufferBytes && large > largest {
		w.t.Fatalf("large rows of %d bytes are under way, %d with probes, counted %d; the buffer has %d", large, all, w.core.largeInFlight(), w.cfg.BufferBytes)
	}
}

// checkShare checks that a request carries at most its share of BufferBytes, or one large
// row.
func (w *coreModel) checkShare(req *request) {
	bytes := int64(0)
	for _, r := range req.Runs {
		for _, rw := range r.Rows {
			bytes += int64(rw.PayloadSize)
		}
	}
	if over := bytes > w.core.requestShare(); over && req.Size() > 1 || over != (req.LargeBytes == bytes && bytes > 0) {
		w.t.Fatalf("a request of %d rows has %d bytes and counts as large with %d, its share is %d", req.Size(), bytes, req.LargeBytes, w.core.requestShare())
	}
}

// checkSkips checks that a skip returns when the row leaves, and not before.
func (w *coreModel) checkSkips() {
	for id, r := range w.table {
		if r.skipped != nil && (len(r.skipped) == 1) != r.over {
			w.t.Fatalf("row %s: done %v, skip reported %v", id, r.over, len(r.skipped) == 1)
		}
	}
}

// checkLanes checks each lane against the model, and that it is in exactly the queue of its
// state.
func (w *coreModel) checkLanes() {
	places := w.laneQueues()
	for l, in := range places {
		if w.core.laneOf(l.Name) != l || len(in) != 1 || in[0] != l.State {
			w.t.Fatalf("lane %s, %s, is in %v", l.Name, l.State, in)
		}
	}
	for l := range w.core.allLanes() {
		name := l.Name
		ids := make([]string, len(l.Rows))
		for i, rw := range l.Rows {
			ids[i] = label(rw)
		}
		standing := w.onHold(name)
		if len(ids) == 0 && (!standing || name.Job != "") || !slices.Equal(ids, w.queue[name]) || l.OnHold() != standing {
			w.t.Fatalf("lane %s, standing %v, holds %v; left are %v, standing %v", name, l.OnHold(), ids, w.queue[name], standing)
		}
		if l.State == laneHeld && !standing || !w.ended && len(places[l]) != 1 && l.State != laneHeld {
			w.t.Fatalf("lane %s, %s, is nowhere", name, l.State)
		}
	}
	for name, left := range w.queue {
		if len(left) > 0 && w.core.laneOf(name) == nil {
			w.t.Fatalf("lane %s is forgotten with %v", name, left)
		}
	}
	for _, key := range w.keys {
		if w.onHold(LaneName{LaneKey: key}) && w.core.live()[LaneName{LaneKey: key}] == nil {
			w.t.Fatalf("lane %s is removed though it is on hold", key)
		}
	}
}

// laneQueues finds the queues of each lane.
func (w *coreModel) laneQueues() map[*lane][]laneState {
	c, places := w.core, map[*lane][]laneState{}
	put := func(state laneState, lanes ...*lane) {
		for _, l := range lanes {
			places[l] = append(places[l], state)
		}
	}
	put(laneReady, c.queuedLanes()...)
	put(laneWaiting, c.timedLanes()...)
	for state, reqs := range map[laneState][]*request{
		laneClaiming: slices.Concat(w.claiming, c.toClaim()), laneSending: slices.Concat(w.sending, c.unsent()),
	} {
		for _, req := range reqs {
			for _, r := range req.Runs {
				put(state, r.Lane)
			}
		}
	}
	for o := range c.unwrittenOutcomes() {
		if outcomeLane(o) != nil {
			put(laneWriting, outcomeLane(o))
		}
	}
	for _, rw := range w.lateRows {
		if o := pendingOutcome(rw); o != nil && outcomeLane(o) != nil {
			put(laneWriting, outcomeLane(o))
		}
	}
	put(laneWriting, c.lanesOfFinishedRows()...)
	return places
}
