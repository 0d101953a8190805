package dispatch

import (
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// insert adds rows to the table, most of them good.
func (w *coreModel) insert(t *rapid.T, most int) []*record {
	rare := func(what string) bool { return rapid.IntRange(0, 9).Draw(t, what) == 0 }
	rows := make([]*record, rapid.IntRange(1, most).Draw(t, "rows"))
	for i := range rows {
		rows[i] = &record{
			id: fmt.Sprint(len(w.table) + 1), key: rapid.SampledFrom(w.keys).Draw(t, "lane"),
			size: rapid.IntRange(1, 50).Draw(t, "size"), dropped: rare("dropped"),
			to: rapid.SampledFrom(rowEndpoints()).Draw(t, "to"), poison: rare("poison"), visible: !rare("unseen"), status: store.Pending,
		}
		if rare("locked") {
			rows[i].lock = rapid.IntRange(1, 8).Draw(t, "locks")
		}
		if rare("refused") {
			rows[i].refuse = rapid.IntRange(1, 8).Draw(t, "refusals")
		}
		w.table[rows[i].id] = rows[i]
	}
	return rows
}

func (w *coreModel) appendRows(t *rapid.T) {
	if w.core.heldRows() >= w.cfg.BufferRows {
		return
	}
	rows := w.insert(t, 6)
	for _, r := range rows {
		name := w.lane(r)
		w.truth[name] = append(w.truth[name], r.id)
		w.queue[name] = append(w.queue[name], r.id)
	}
	if w.late {
		w.appendFresh(t, rows)
	} else {
		w.enterRows(w.core.append, rows...)
	}
	w.check()
}

// insertFront puts rows in front of their lanes, in order.
func (w *coreModel) insertFront(rows []*record) {
	placed := map[LaneName]int{}
	for _, r := range rows {
		name := w.lane(r)
		at := w.inFlight(name) + placed[name]
		for r.requeued && at < len(w.queue[name]) && w.table[w.queue[name][at]].requeued {
			at++
		}
		placed[name]++
		first := len(w.truth[name])
		if at < len(w.queue[name]) {
			first = slices.Index(w.truth[name], w.queue[name][at])
		}
		w.truth[name] = slices.Insert(w.truth[name], first, r.id)
		w.queue[name] = slices.Insert(w.queue[name], at, r.id)
	}
}

// inFlight counts the first rows of a lane that no row may overtake.
func (w *coreModel) inFlight(name LaneName) int {
	for _, req := range slices.Concat(w.claiming, w.sending, w.core.unsent(), w.core.toClaim()) {
		for _, r := range req.Runs {
			if r.Lane.Name == name {
				return len(r.Rows)
			}
		}
	}
	if l := w.core.laneOf(name); l != nil && l.State == laneWriting {
		return 1
	}
	return 0
}

// interfere changes a row in the table like another session.
func (w *coreModel) interfere(t *rapid.T) {
	if len(w.table) == 0 {
		return
	}
	r := w.table[fmt.Sprint(rapid.IntRange(1, len(w.table)).Draw(t, "row"))]
	if r.settled() {
		return
	}
	r.changed = true
	switch rapid.IntRange(0, 2).Draw(t, "how") {
	case 0:
		r.status = store.Completed
	case 1:
		r.gone = true
	case 2:
		r.status, r.claimEpoch = store.Processing, -1
		r.until = w.now.Add(time.Duration(rapid.IntRange(1, 20000).Draw(t, "held")) * time.Millisecond)
	}
}

func (w *coreModel) claim(t *rapid.T) {
	if len(w.claiming)+len(w.lateRows) > 0 {
		return
	}
	most, taken, before := rapid.IntRange(1, 20).Draw(t, "most"), 0, len(w.core.unsent())
	w.core.tick(w.now)
	halves := slices.Clone(w.core.toClaim())
	w.claiming = w.core.nextClaims(most, w.now)
	for _, req := range w.claiming {
		w.checkShare(req)
		if w.frozen || w.ended || taken >= most {
			t.Fatalf("a claim while frozen %v, ended %v, with %d rows of %d", w.frozen, w.ended, taken, most)
		}
		taken += req.Size()
		w.checkRequest(req, slices.Contains(halves, req))
		w.checkJob(req, false)
		w.checkChecks(req)
	}
	for _, req := range w.core.unsent()[before:] {
		if w.frozen || w.ended {
			t.Fatalf("a replay while frozen %v, ended %v", w.frozen, w.ended)
		}
		if req.Unclaimed {
			continue // see send
		}
		w.checkRequest(req, false)
		w.checkJob(req, true)
	}
	w.claimLate(most)
	if wake, ok := w.core.nextWake(w.now); ok && taken < most && !wake.After(w.now) {
		t.Fatalf("the claimer would spin: nothing more to claim at %v, and the next wake is %v", w.now, wake)
	}
	for _, recv := range w.core.endpoints() {
		if w.waitsForSender() || w.waitsForOutcomes() || recv.Named && w.isBusy(recv) {
			continue // it has part of the senders only
		}
		if !w.frozen && !w.ended && !isOpen(recv) && taken < most && w.core.freeRequests() > 0 && len(readyLanes(recv)) > 0 {
			t.Fatalf("a ready lane of %s and a free sender are left", recv.Endpoint)
		}
		if !w.frozen && !w.ended && !isOpen(recv) && taken < most && w.core.freeRequests() > 0 && len(readyReplayLanes(recv)) > 0 && w.core.replayRequestRoom(w.now) > 0 {
			t.Fatalf("a ready lane of a job and a sender for jobs are left")
		}
	}
	w.send()
	w.check()
}

// isBusy reports whether a request to an endpoint is in flight.
func (w *coreModel) isBusy(recv *receiver) bool {
	return slices.ContainsFunc(slices.Concat(w.claiming, w.sending, w.core.unsent()), func(req *request) bool { return req.Receiver() == recv })
}

// checkRequest checks the contents of a request and its time. half: it is a half of a request that failed.
func (w *coreModel) checkRequest(req *request, half bool) {
	n, bytes, kind := req.Size(), 0, req.Runs[0].Lane.Name.Kind
	for _, r := range req.Runs {
		name := r.Lane.Name
		if name.Kind != kind || len(r.Rows) == 0 || w.mode(kind) == sink.PerItem && len(r.Rows) > 1 ||
			!half && w.onHold(name) && w.row(w.queue[name][0]).skipped == nil {
			w.t.Fatalf("a run of %d rows of lane %s, standing %v, in a request of kind %s", len(r.Rows), name, w.onHold(name), kind)
		}
		for i, rw := range r.Rows {
			bytes += w.of(rw).size
			if i >= len(w.queue[name]) || w.queue[name][i] != label(rw) {
				w.t.Fatalf("row %s is taken from the lane of %v", label(rw), w.queue[name])
			}
		}
		if w.known[name.Outbox] && name.Job == "" && !half {
			w.t.Fatalf("lane %s is claimed though its table is locked", name)
		}
		if w.isPaused(name) {
			w.t.Fatalf("lane %s is claimed though its outbox is paused", name)
		}
		if w.now.Before(w.notBefore[name]) || w.now.Before(w.paused[name]) {
			w.t.Fatalf("lane %s goes on at %v, Retry-After %v, backoff %v", name, w.now, w.notBefore[name], w.paused[name])
		}
		most := 4 // 7 rows, 3, 1, 1
		if w.named[kind] {
			most = 12 // and a claim that finds out the endpoint before each
		}
		if w.claims[name]++; w.claims[name] > most {
			w.t.Fatalf("lane %s spins at %v", name, w.now)
		}
	}
	limits := w.limits[kind]
	if limits.MaxLanes > 0 && len(req.Runs) > limits.MaxLanes {
		w.t.Fatalf("a request of %d lanes; limits %+v", len(req.Runs), limits)
	}
	if n > 1 && (n > w.cfg.APIBatchSize || n > limits.MaxItems || bytes > limits.MaxBytes) {
		w.t.Fatalf("a request of %d rows, %d bytes; limits %+v", n, bytes, limits)
	}
	if !w.named[kind] && w.endpointNamed(limits.Endpoint).breakerOpen && n > 1 {
		w.t.Fatalf("a request of %d rows to an endpoint with an open breaker", n)
	}
}

func (w *coreModel) answerClaims(t *rapid.T) {
	for _, req := range w.claiming {
		if req.Checks && w.answerCheck(t, req) {
			continue
		}
		var answers []store.ClaimAnswer
		for _, r := range req.Runs {
			for _, rw := range r.Rows {
				rec := w.table[rw.ID]
				a := w.answerClaim(t, rec, rw)
				answers = append(answers, a)
				switch a.Result {
				case store.AlreadySettled, store.Gone:
					rec.over = true
					w.removeRow(rec)
				case store.TableLocked:
					w.known[rec.key.Outbox] = true
					w.claims[r.Lane.Name] = 0
				}
			}
		}
		w.core.claimed(req, answers, w.now, w.now)
		w.allow() // a probe that was not sent makes room for another
	}
	w.claiming = nil
	w.answerLate(t)
	w.send()
	w.check()
}

// send passes claimed requests to the senders.
func (w *coreModel) send() {
	for req := w.core.nextRequest(w.now); req != nil; req = w.core.nextRequest(w.now) {
		if req.IsStale(w.now) {
			for _, r := range req.Runs {
				w.claims[r.Lane.Name] = 0
			}
			w.core.takeBackStale(req)
			continue
		}
		w.sending = append(w.sending, req)
		if w.ended || len(w.sending) > w.cfg.MaxConcurrentGroups {
			w.t.Fatalf("%d requests at once, ended %v", len(w.sending), w.ended)
		}
		if req.Unclaimed {
			w.checkUnclaimed(req)
		}
		head := w.of(req.Runs[0].Rows[0])
		by := w.endpoint(head)
		if to := req.Receiver().Endpoint; w.named[head.key.Kind] && to != head.to {
			w.t.Fatalf("row %s of %s is sent as one of %s", head.id, head.to, to)
		}
		if by.breakerOpen {
			if by.probes++; by.probes > by.allowedProbes || req.Size() > 1 {
				w.t.Fatalf("%d requests to an endpoint with an open breaker, %d are allowed; %d rows", by.probes, by.allowedProbes, req.Size())
			}
		}
		for _, r := range req.Runs {
			if w.pauses[r.Lane.Name.Outbox] {
				w.t.Fatalf("lane %s sends though its outbox is paused", r.Lane.Name)
			}
			for i, rw := range r.Rows {
				rec := w.of(rw)
				if w.named[rec.key.Kind] && rec.to != head.to {
					w.t.Fatalf("a request to %s has row %s of %s", head.to, rec.id, rec.to)
				}
				rec.tries++
				rec.proof = !rec.lastFailed.IsZero() && by.accepted.After(rec.lastFailed)
				if len(rw.Payload) != rec.size || rec.job == "" && !req.Unclaimed && rec.taken != w.epoch || w.queue[r.Lane.Name][i] != rec.id {
					w.t.Fatalf("row %s is sent with %d bytes of %d, claimed by %d, from %v", rec.id, len(rw.Payload), rec.size, rec.taken, w.queue[r.Lane.Name])
				}
			}
		}
	}
}

func (w *coreModel) answerClaim(t *rapid.T, rec *record, rw *row) store.ClaimAnswer {
	if w.unclaimed && rw.Payload != nil && rw.Txn != 0 {
		rec.claimEpoch, rec.taken = w.epoch, w.epoch
		return store.ClaimAnswer{Result: store.Claimed, Unwritten: true}
	}
	switch {
	case w.locked[rec.key.Outbox]:
		return store.ClaimAnswer{Result: store.TableLocked}
	case rec.gone:
		return store.ClaimAnswer{Result: store.Gone}
	case rec.status.Settled():
		return store.ClaimAnswer{Result: store.AlreadySettled}
	case !rec.visible:
		rec.visible = rapid.Bool().Draw(t, "seen now")
		return store.ClaimAnswer{Result: store.NotYetVisible}
	case rec.until.After(w.now) && !w.unclaimed:
		until := rec.until
		if rapid.IntRange(0, 4).Draw(t, "clocks differ") == 0 {
			until = w.now.Add(-time.Second)
		}
		return store.ClaimAnswer{Result: store.Held, Until: until}
	}
	a := store.ClaimAnswer{Result: store.Claimed, Unwritten: w.unclaimed}
	rec.taken = w.epoch
	if rec.claimEpoch = w.epoch; !w.unclaimed {
		rec.status = store.Processing
	}
	if w.counted(rec.key) {
		a.RetryCount = rec.retries
	}
	if rw.Payload == nil {
		rec.size = rapid.IntRange(1, 50).Draw(t, "size now")
		a.Payload, a.Attributes = make([]byte, rec.size), rec.attributes()
	}
	return a
}

func (w *coreModel) advance(t *rapid.T) {
	w.sleep(time.Duration(rapid.IntRange(1, 5000).Draw(t, "ms")) * time.Millisecond)
}

func (w *coreModel) sleep(d time.Duration) {
	w.now = w.now.Add(d)
	w.allow() // the backoff may be over
	clear(w.claims)
	w.core.tick(w.now)
	wake, ok := w.core.nextWake(w.now)
	probe := slices.ContainsFunc(w.core.endpoints(), func(r *receiver) bool { return isOpen(r) && !wake.Before(nextProbeAt(r)) })
	late, some := w.core.nextLate()
	slowFrom, _ := w.core.late.slowFrom()
	slow := w.waitsForOutcomes() && !wake.Before(slowFrom)
	if claims := some && !wake.Before(late) || slow; ok && !probe && !claims && !wake.After(w.now) {
		w.t.Fatalf("what was due at %v still waits at %v", wake, w.now)
	}
	for _, l := range w.core.timedLanes() {
		if !ok || l.WakeAt.Before(wake) {
			w.t.Fatalf("lane %s is due at %v, before the next wake at %v", l.Name, l.WakeAt, wake)
		}
	}
	for _, o := range w.core.retrying() {
		if !ok || dueOf(&o).Before(wake) {
			w.t.Fatalf("the outcome of row %s is due at %v, before the next wake at %v", o.ID, dueOf(&o), wake)
		}
	}
	w.check()
}

func (w *coreModel) end() {
	if !w.ended {
		w.core.end()
		w.ended = true
		for _, id := range w.ids {
			w.withdrawRows(id)
		}
	}
	w.check()
}
