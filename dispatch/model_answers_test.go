package dispatch

import (
	"slices"
	"time"

	"pgregory.net/rapid"

	pending "github.com/sluicebox/sluicebox/dispatch/internal/outcome"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

func (w *coreModel) answer(t *rapid.T) {
	if len(w.sending) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.sending)-1).Draw(t, "request")
	req := w.sending[i]
	w.sending = slices.Delete(w.sending, i, i+1)
	res := w.receive(t, req)
	w.expectFrom(req, &res)
	w.core.answered(req, &res, w.now)
	w.sendPings()
	w.withdrawRows(req.Runs[0].Lane.Name.Job)
	w.send()
	w.check()
}

// receive answers a request like a receiver.
func (w *coreModel) receive(t *rapid.T, req *request) sink.Result {
	var rows []*record
	for _, r := range req.Runs {
		for _, rw := range r.Rows {
			rows = append(rows, w.of(rw))
		}
	}
	if rapid.IntRange(0, 15).Draw(t, "cannot be sent") == 0 {
		return sink.RejectFirst(len(rows), sink.Rejected.String())
	}
	if w.down {
		away := rapid.SampledFrom([]sink.Class{sink.Unavailable, sink.Misconfigured, sink.Refused, sink.Rejected, 0}).Draw(t, "away")
		res := sink.Result{Outcome: outcomeOf(away)}
		if rapid.Bool().Draw(t, "come back later") {
			res.RetryAfter = time.Duration(rapid.IntRange(1, 40000).Draw(t, "after")) * time.Millisecond
		}
		return res
	}
	if rapid.IntRange(0, 9).Draw(t, "flaky") == 0 { // one of its servers is down
		return sink.Result{Outcome: outcomeOf(rapid.SampledFrom([]sink.Class{sink.Unavailable, sink.Misconfigured}).Draw(t, "flake"))}
	}
	poison := rapid.SampledFrom([]sink.Class{sink.Rejected, sink.Refused}).Draw(t, "poisoned")
	switch w.mode(rows[0].key.Kind) {
	case sink.Atomic:
		if slices.ContainsFunc(rows, func(r *record) bool { return r.poison }) {
			return sink.Result{Outcome: outcomeOf(poison)}
		}
		for _, r := range rows {
			w.arrive(r)
		}
		if rapid.IntRange(0, 9).Draw(t, "lost") == 0 {
			return sink.Result{Outcome: outcomeOf(sink.Unavailable)} // it has the rows, and the answer got lost
		}
		return sink.Result{Outcome: outcomeOf(sink.Delivered)}
	case sink.Ordered:
		return w.receiveInOrder(t, rows, poison)
	case sink.Prefix:
		return w.receivePrefixes(t, req, poison)
	}
	res := sink.Result{Items: make([]sink.Outcome, len(rows))}
	for i, r := range rows {
		if res.Items[i] = outcomeOf(sink.Delivered); r.poison {
			res.Items[i] = outcomeOf(poison)
			continue
		}
		w.arrive(r)
	}
	return res
}

// receiveInOrder stops at the first failure, or at the end of the rows that fit.
func (w *coreModel) receiveInOrder(t *rapid.T, rows []*record, poison sink.Class) sink.Result {
	stop, why := slices.IndexFunc(rows, func(r *record) bool { return r.poison }), poison
	if stop < 0 {
		stop, why = len(rows), sink.NotSent
		if len(rows) > 1 && rapid.IntRange(0, 5).Draw(t, "fits") == 0 {
			stop = rapid.IntRange(1, len(rows)-1).Draw(t, "first of the rest")
		}
	}
	res := sink.Result{Items: make([]sink.Outcome, len(rows))}
	for i, r := range rows {
		switch {
		case i < stop:
			w.arrive(r)
			res.Items[i] = outcomeOf(sink.Delivered)
		case i == stop:
			res.Items[i] = outcomeOf(why)
		default:
			res.Items[i] = outcomeOf(sink.NotSent)
		}
	}
	return res
}

// receivePrefixes stores a prefix of each lane. A failure concerns the first row that was not
// stored, or also those behind it, as in a log that refuses the rest of a batch.
func (w *coreModel) receivePrefixes(t *rapid.T, req *request, poison sink.Class) sink.Result {
	var res sink.Result
	for _, r := range req.Runs {
		w.receivePrefix(t, r, poison, &res)
	}
	return res
}

func (w *coreModel) receivePrefix(t *rapid.T, r *run, poison sink.Class, res *sink.Result) {
	good, why := slices.IndexFunc(r.Rows, func(rw *row) bool { return w.of(rw).poison }), poison
	if good < 0 {
		good, why = len(r.Rows), sink.Unavailable
	}
	stored, together := good, rapid.Bool().Draw(t, "together")
	if together && good < len(r.Rows) { // the poisoned row takes others along
		stored = rapid.IntRange(0, good).Draw(t, "stored")
	}
	if rapid.IntRange(0, 3).Draw(t, "breaks off") == 0 {
		stored = rapid.IntRange(0, good).Draw(t, "stored before")
		why = rapid.SampledFrom([]sink.Class{sink.Unavailable, sink.Misconfigured, sink.NotSent}).Draw(t, "why")
	}
	if why == sink.NotSent && len(res.Items)+stored == 0 {
		why = sink.Unavailable // the first message is sent
	}
	landed := stored
	if why == sink.Unavailable && rapid.IntRange(0, 5).Draw(t, "lands") == 0 { // the answer got lost
		landed = rapid.IntRange(stored, good).Draw(t, "landed")
	}
	for i, rw := range r.Rows {
		if i < landed {
			w.arrive(w.of(rw))
		}
		switch {
		case i < stored:
			res.Items = append(res.Items, outcomeOf(sink.Delivered))
		case i == stored, together:
			res.Items = append(res.Items, outcomeOf(why))
		default:
			res.Items = append(res.Items, outcomeOf(sink.NotSent))
		}
	}
}

func outcomeOf(c sink.Class) sink.Outcome {
	o := sink.Outcome{Class: c, Detail: c.String(), Reason: store.ReasonInternal}
	if c == sink.Rejected || c == sink.Misconfigured {
		o.Reason = store.ReasonBadRequest
	}
	return o
}

// arrive checks that the first arrivals of a lane are in order.
func (w *coreModel) arrive(rec *record) {
	for _, id := range w.truth[w.lane(rec)] {
		if id == rec.id {
			break
		}
		if before := w.row(id); !rec.arrived && !before.arrived && !before.settled() {
			w.t.Fatalf("row %s arrives before row %s, which is %s", rec.id, id, before.status)
		}
	}
	if rec.job != "" && rec.known {
		w.t.Fatalf("row %s is sent again after it was taken", rec.id)
	}
	rec.arrived = true
}

// expectFrom records the steps of the core that the answer to a request allows.
func (w *coreModel) expectFrom(req *request, res *sink.Result) {
	w.updateEndpoint(req, res)
	if res.Items == nil && res.Class != sink.Delivered && len(req.Runs) > 1 {
		w.failShared(req, res)
		return
	}
	at := 0
	for _, r := range req.Runs {
		w.expectFromRun(req, r, res, at)
		at += len(r.Rows)
	}
}

// updateEndpoint records the proof in an answer.
func (w *coreModel) updateEndpoint(req *request, res *sink.Result) {
	first, taken := sink.Class(0), res.Items == nil && res.Class == sink.Delivered
	if res.Items == nil {
		first = res.Class
	}
	for _, o := range res.Items {
		taken = taken || o.Class == sink.Delivered
		if first == 0 && o.Class != sink.Delivered {
			first = o.Class
		}
	}
	head := w.of(req.Runs[0].Rows[0])
	by := w.endpoint(head)
	switch {
	case res.Unsent: // it proves nothing, and another row may be the probe
		by.allowedProbes++
	case taken:
		by.recordAccepted(w, req.Started)
		by.rejections, by.pings = 0, 0
	default:
		by.failures++
		if first == sink.Rejected {
			by.failures = 0
			by.rejections++
		}
		proof := by.accepted.After(req.Started) || head.proof
		if !by.breakerOpen && (by.failures == breakerFailures || by.rejections >= breakerRejections || first == sink.Misconfigured && !proof) {
			by.breakerOpen, by.openedAt = true, w.now
			by.probes, by.allowedProbes = 0, maxEagerProbes+1
		}
	}
}

// recordAccepted records that an endpoint accepted a request that began at a time.
func (s *endpointModel) recordAccepted(w *coreModel, began time.Time) {
	if s.failures = 0; !began.Before(s.openedAt) {
		clear(w.claims)
		s.breakerOpen = false
	}
	s.accepted = later(s.accepted, began)
}

// failShared records the failure of a request shared by lanes. If one row may be the cause,
// the request is bisected at once.
func (w *coreModel) failShared(req *request, res *sink.Result) {
	busy := res.RetryAfter > 0 && res.Class != sink.Rejected
	split := !w.endpoint(w.of(req.Runs[0].Rows[0])).breakerOpen && (res.Class == sink.Rejected ||
		!busy && (res.Class == sink.Refused || res.Class == sink.Misconfigured))
	for _, r := range req.Runs {
		for _, rw := range r.Rows {
			w.of(rw).fail(w.now)
		}
		if !split {
			w.backOff(r.Lane.Name, busy, res.RetryAfter)
		}
	}
}

// backOff records how long a lane must wait.
func (w *coreModel) backOff(name LaneName, busy bool, retryAfter time.Duration) {
	if w.row(w.queue[name][0]).skipped != nil {
		return // after a skip the next row is sent at once
	}
	if busy {
		w.notBefore[name] = w.now.Add(min(retryAfter, w.cfg.RetryAfterMax))
	}
	if !w.endpoint(w.row(w.queue[name][0])).breakerOpen || busy {
		w.paused[name] = w.now.Add(w.cfg.Backoff.Initial * 4 / 5)
	}
}

func (r *record) fail(now time.Time) {
	r.lastFailed = now
	if r.firstFailed.IsZero() {
		r.firstFailed = now
	}
}

func (w *coreModel) expectFromRun(req *request, r *run, res *sink.Result, at int) {
	prefix := res.Items != nil && w.mode(r.Lane.Name.Kind) == sink.Prefix
	head := true // until the first row that was not delivered
	for i, rw := range r.Rows {
		rec, class := w.of(rw), res.At(at+i).Class
		switch {
		case class == sink.Delivered:
			rec.known = true
			w.removeRow(rec)
			continue
		case class == sink.NotSent:
			rec.tries--
		case head:
			next := at + i + 1 // behind it
			several := prefix && i < len(r.Rows)-1 && res.At(next).Class == class
			w.failure(rec, res.At(at+i), len(r.Rows) == 1 || res.Items != nil && !several, req.Split, res.RetryAfter)
			rec.fail(w.now)
		case !prefix:
			rec.fail(w.now) // nothing is known of rows behind the prefix
		}
		head = false
	}
}

// failure records a failed attempt of the row at the head of its lane.
func (w *coreModel) failure(rec *record, out sink.Outcome, alone, searching bool, retryAfter time.Duration) {
	rec.detail = out.Detail
	proof := rec.proof
	busy := retryAfter > 0 && out.Class != sink.Rejected
	counts := out.Class == sink.Rejected || out.Class == sink.Refused // unavailability costs nothing
	switch w.cfg.Retry.Compat {
	case CompatFlowCatalyst:
		counts = true
	case CompatPostbox:
		counts = out.Reason == store.ReasonBadRequest
	case CompatNone:
		counts = counts && !busy
	}
	if alone && counts {
		rec.countable++
	}
	halved := out.Class == sink.Rejected || proof || out.Class == sink.Refused && !searching
	if alone || busy || w.endpoint(rec).breakerOpen || !halved {
		w.backOff(w.lane(rec), busy, retryAfter)
	}
	if alone && out.Class == sink.Rejected && rec.skipped == nil && w.paused[w.lane(rec)].Before(w.now) {
		w.paused[w.lane(rec)] = w.now.Add(w.cfg.Backoff.Initial * 4 / 5)
	}
}

func (w *coreModel) takeOutcomes(t *rapid.T) {
	writer := rapid.IntRange(0, pending.Writers-1).Draw(t, "writer")
	if len(w.writing[writer]) > 0 {
		if more := w.core.late.nextOutcomes(writer, 1, w.now); more != nil {
			t.Fatalf("a second batch of outcomes: %v", more)
		}
		return
	}
	most, waiting := rapid.IntRange(1, 4).Draw(t, "most"), w.core.unwrittenCount()
	batch := w.core.late.nextOutcomes(writer, most, w.now)
	w.writing[writer] = batch
	if len(batch) > 0 {
		w.writes[writer] = w.now
	}
	if len(batch) > most || len(batch) == 0 && waiting > 0 && len(w.writing[1-writer]) == 0 {
		t.Fatalf("%d outcomes of %d, at most %d", len(batch), waiting, most)
	}
	checkBatches(t, w.core, w.writing)
	for _, o := range batch {
		if w.table[o.ID].lateClaiming {
			t.Fatalf("the outcome of row %s is written while it is claimed late", o.ID)
		}
		if w.known[o.Outbox] {
			t.Fatalf("the outcome of row %s is tried though its table is locked", o.ID)
		}
		if r := w.table[o.ID]; r.refusals > 0 && (len(batch) > 1 || w.now.Before(r.due)) {
			t.Fatalf("the outcome of row %s, refused %d times, is tried among %d, due %v, at %v", o.ID, r.refusals, len(batch), r.due, w.now)
		}
	}
}

func (w *coreModel) write(t *rapid.T) {
	writer := rapid.IntRange(0, pending.Writers-1).Draw(t, "writer")
	batch := w.writing[writer]
	if len(batch) == 0 {
		return
	}
	results := make([]store.SettleResult, len(batch))
	for i := range batch {
		o := &batch[i]
		r := w.table[o.ID]
		if results[i] = w.settle(t, r, o); results[i].NeedsRetry() {
			continue
		}
		r.refusals = 0
		if o.Status.Settled() || outcomeLane(o) != nil && results[i] != store.Written {
			r.over = true
			w.removeRow(r)
		}
		w.block(r, o, results[i])
	}
	w.writing[writer], w.writes[writer] = nil, time.Time{}
	w.core.wrote(writer, results, w.now)
	w.check()
}

// settle answers the write of an outcome like the table.
func (w *coreModel) settle(t *rapid.T, r *record, o *outcome) store.SettleResult {
	switch {
	case r.over && o.Status.Settled():
		t.Fatalf("row %s is settled twice", r.id)
	case o.Status == store.Completed && (!r.arrived || !r.known):
		t.Fatalf("row %s COMPLETED; arrived %v, known %v", r.id, r.arrived, r.known)
	case o.Status == store.Pending && outcomeLane(o) == nil && (!w.ended || r.over || w.unclaimed):
		t.Fatalf("row %s is given back; ended %v, over %v, unclaimed %v", r.id, w.ended, r.over, w.unclaimed)
	case !r.visible && o.Txn == 0:
		t.Fatalf("row %s has the outcome %s without its transaction, and no claim has seen it", r.id, o.Status)
	case !r.visible && !w.unclaimed && !r.unclaimed:
		t.Fatalf("row %s has the outcome %s, and no claim has seen it", r.id, o.Status)
	case r.skipped != nil && o.Status == store.Failed && o.Error == "passed over":
	case outcomeLane(o) != nil && (o.Error != r.detail || o.RetryCount > min(r.countable, w.cfg.MaxRetries)):
		t.Fatalf("row %s: error %q, count %d after %s and %d failures that count", r.id, o.Error, o.RetryCount, r.detail, r.countable)
	}
	switch {
	case w.locked[r.key.Outbox]:
		w.known[r.key.Outbox] = true
		return store.TableWasLocked
	case r.lock > 0:
		r.lock--
		return store.WasLocked
	case r.refuse > 0:
		r.refuse--
		r.due = w.now.Add(min(time.Second<<r.refusals, time.Minute))
		r.refusals++
		refuse(o, "a trigger objects")
		return store.Refused
	case r.gone:
		return store.WasGone
	case !r.visible:
		r.visible = rapid.Bool().Draw(t, "seen now")
		return store.TooEarly
	case r.status.Settled():
		return store.WasSettled
	}
	r.status = o.Status
	if o.Status != store.Completed {
		if o.RetryCount < r.retries && o.Error != "passed over" && !w.unclaimed { // a row not claimed yet
			t.Fatalf("row %s: the count goes back from %d to %d", r.id, r.retries, o.RetryCount)
		}
		r.retries = o.RetryCount
	}
	gaveUp := w.cfg.GiveUpAfter > 0 && !r.firstFailed.IsZero() && r.lastFailed.Sub(r.firstFailed) >= w.cfg.GiveUpAfter
	if o.Status == store.Failed && o.Error != "passed over" && !gaveUp && (r.countable <= w.cfg.MaxRetries || r.retries != w.cfg.MaxRetries) {
		t.Fatalf("row %s FAILED after %d retries with %d failures that count", r.id, r.retries, r.countable)
	}
	if o.Status.Settled() && rapid.IntRange(0, 5).Draw(t, "answer lost") == 0 {
		return store.WasSettled // by the try before
	}
	return store.Written
}

// block records that a FAILED row blocks its lane.
func (w *coreModel) block(r *record, o *outcome, result store.SettleResult) {
	blocks := w.cfg.OnFailed == Block && w.lane(r).RowID == "" && o.Status == store.Failed && o.Error != "passed over"
	if blocks != (o.Block != nil) {
		w.t.Fatalf("row %s %s with %q: blocks %v, asked to block %v", r.id, o.Status, o.Error, blocks, o.Block != nil)
	}
	if blocks && result != store.WasGone {
		w.hold(store.Hold{Lane: r.key, Kind: store.Blocked, ID: r.id})
	}
}

func (w *coreModel) hold(h store.Hold) {
	if w.holds[h.Lane] == nil {
		w.holds[h.Lane] = map[store.HoldKind]store.Hold{}
	}
	w.holds[h.Lane][h.Kind] = h
}
