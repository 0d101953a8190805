package dispatch

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/store"
)

// replayModel is the model's replays: the rows of each job that are still in the store, and
// the rows in memory.
type replayModel struct {
	ids            []string
	copies         map[string]*record   // by label
	inStore        map[string][]*record // in the store, by n
	withdrawn      map[string]bool      // the job was withdrawn
	replayHolds    map[store.LaneKey]map[string]bool
	inFlightAtHold map[store.LaneKey]map[string]bool // rows in flight at the hold
	noteFor        string
	noting         []store.FinishedRow
}

func newReplayModel() replayModel {
	return replayModel{ids: []string{"a", "b"}, copies: map[string]*record{}, inStore: map[string][]*record{}}
}

// startReplays starts with the state that a new leader finds: the remaining rows and no
// hold. A write in flight may have been carried out.
func (w *coreModel) startReplays() {
	if len(w.noting) > 0 && rapid.Bool().Draw(w.t, "noted after all") {
		w.deleteFinished()
	}
	w.withdrawn = map[string]bool{}
	w.replayHolds, w.inFlightAtHold = map[store.LaneKey]map[string]bool{}, map[store.LaneKey]map[string]bool{}
	w.noteFor, w.noting = "", nil
	for _, r := range w.copies {
		r.known = false
		r.forget()
	}
}

// forget clears the core's state of a row that leaves memory.
func (r *record) forget() {
	none := record{}
	r.firstFailed, r.lastFailed, r.countable, r.proof = none.firstFailed, none.lastFailed, 0, false
}

// label distinguishes rows of the table from rows of jobs.
func label(rw *row) string {
	if rw.Job == nil {
		return rw.ID
	}
	return fmt.Sprintf("%s#%d", jobID(rw.Job), rw.ReplayN)
}

func (w *coreModel) of(rw *row) *record { return w.row(label(rw)) }

func (w *coreModel) row(label string) *record {
	if r := w.copies[label]; r != nil {
		return r
	}
	return w.table[label]
}

// copyRows copies rows of the table for a job, whatever their status.
func (w *coreModel) copyRows(t *rapid.T) {
	id := rapid.SampledFrom(w.ids).Draw(t, "job")
	if len(w.table) == 0 || len(w.inStore[id]) > 30 {
		return
	}
	for range rapid.IntRange(1, 6).Draw(t, "rows") {
		of := w.table[fmt.Sprint(rapid.IntRange(1, len(w.table)).Draw(t, "row"))]
		n := int64(1)
		if had := w.inStore[id]; len(had) > 0 {
			n = had[len(had)-1].n + 1
		}
		for w.copies[fmt.Sprintf("%s#%d", id, n)] != nil {
			n++
		}
		r := &record{
			id: fmt.Sprintf("%s#%d", id, n), copyOf: of.id, job: id, n: n, key: of.key, size: of.size, to: of.to,
			poison: of.poison || rapid.IntRange(0, 9).Draw(t, "poison") == 0, status: store.Pending,
		}
		w.copies[r.id], w.inStore[id] = r, append(w.inStore[id], r)
		w.truth[w.lane(r)] = append(w.truth[w.lane(r)], r.id)
	}
}

// inMemory reports whether the core has a row of a job.
func (w *coreModel) inMemory(r *record) bool {
	return r.known || slices.Contains(w.queue[w.lane(r)], r.id)
}

// replay gives rows of a job to the core, some of them twice.
func (w *coreModel) replay(t *rapid.T) {
	id := rapid.SampledFrom(w.ids).Draw(t, "job")
	if w.withdrawn[id] && slices.ContainsFunc(w.inStore[id], w.inMemory) {
		return // a withdrawn job waits until none is in memory
	}
	most, full := rapid.IntRange(1, 8).Draw(t, "rows"), map[LaneName]bool{}
	var rows []store.ReplayRow
	for _, r := range w.inStore[id] {
		name := w.lane(r)
		if most == 0 || full[name] {
			continue
		}
		if full[name] = rapid.IntRange(0, 4).Draw(t, "later") == 0; full[name] {
			continue
		}
		it := w.items([]*record{r})[0]
		it.ID, it.Seq, it.RetryCount = r.copyOf, 7, 9
		rows = append(rows, store.ReplayRow{N: r.n, Item: it})
		if !w.inMemory(r) && !w.ended {
			w.queue[name] = append(w.queue[name], r.id)
			most--
		}
	}
	if w.core.replay(id, rows); len(rows) > 0 && !w.ended {
		w.withdrawn[id] = false
	}
	w.check()
}

// withdrawReplay withdraws a job: one with rows in a request, or sometimes any.
func (w *coreModel) withdrawReplay(t *rapid.T) {
	var ids []string
	for _, req := range slices.Concat(w.sending, w.core.unsent()) {
		if j := req.Job(); j != nil {
			ids = append(ids, jobID(j))
		}
	}
	if len(ids) == 0 && rapid.IntRange(0, 3).Draw(t, "seldom") == 0 {
		ids = w.ids
	}
	if len(ids) == 0 {
		return
	}
	id := rapid.SampledFrom(ids).Draw(t, "job")
	w.core.withdrawJob(id)
	w.withdrawn[id] = true
	w.withdrawRows(id)
	w.allow()
	w.check()
}

// withdrawRows removes the rows from the lanes of a withdrawn job, or of any job after the
// end. Rows in requests stay, and so do rows whose refusal is being recorded.
func (w *coreModel) withdrawRows(id string) {
	if id == "" || !w.withdrawn[id] && !w.ended {
		return
	}
	for name, ids := range w.queue {
		if name.Job != id {
			continue
		}
		n := 0
		for _, req := range w.sending {
			for _, r := range req.Runs {
				if r.Lane.Name == name {
					n = len(r.Rows)
				}
			}
		}
		if l := w.core.laneOf(name); l != nil && l.State == laneWriting {
			n = 1
		}
		for _, gone := range ids[n:] {
			w.copies[gone].forget()
		}
		if w.queue[name] = ids[:n:n]; n == 0 {
			delete(w.notBefore, name)
			delete(w.paused, name)
			delete(w.claims, name)
		}
	}
}

// recordFinished takes finished rows, or records them.
func (w *coreModel) recordFinished(t *rapid.T) {
	if len(w.noting) == 0 {
		w.noteFor, w.noting = w.core.nextReplayDone(rapid.IntRange(1, 4).Draw(t, "most"))
		for _, d := range w.noting {
			w.checkDone(d)
		}
		return
	}
	if _, more := w.core.nextReplayDone(1); more != nil {
		t.Fatalf("a second batch of rows that are done with: %v", more)
	}
	for _, r := range w.deleteFinished() {
		r.known = false
		if r.status == store.Failed {
			w.removeRow(r)
		}
	}
	w.noting = nil
	w.core.replayDoneWritten(w.now)
	w.withdrawRows(w.noteFor)
	w.check()
}

// checkDone checks the result of a row of a job.
func (w *coreModel) checkDone(d store.FinishedRow) {
	r := w.copies[fmt.Sprintf("%s#%d", w.noteFor, d.N)]
	gaveUp := w.cfg.GiveUpAfter > 0 && !r.firstFailed.IsZero() && r.lastFailed.Sub(r.firstFailed) >= w.cfg.GiveUpAfter
	switch {
	case r.ID() != d.ID || r.key != d.Lane:
		w.t.Fatalf("row %s is noted as %+v", r.id, d)
	case d.Result == store.ReplaySent && r.arrived && r.known && d.Error == "":
	case d.Result == store.ReplayRefused && !r.known && d.Error == r.detail && (gaveUp || r.countable > w.cfg.MaxRetries):
	default:
		w.t.Fatalf("row %s is noted as %+v; arrived %v, known %v, %d failures that count, %q", r.id, d, r.arrived, r.known, r.countable, r.detail)
	}
}

// ID is the row's own id.
func (r *record) ID() string { return cmp.Or(r.copyOf, r.id) }

// deleteFinished deletes finished rows of a job from the store.
func (w *coreModel) deleteFinished() (rows []*record) {
	for _, d := range w.noting {
		r := w.copies[fmt.Sprintf("%s#%d", w.noteFor, d.N)]
		if !slices.Contains(w.inStore[w.noteFor], r) {
			w.t.Fatalf("row %s is noted twice", r.id)
		}
		w.inStore[w.noteFor] = slices.DeleteFunc(w.inStore[w.noteFor], func(other *record) bool { return other == r })
		if r.status = store.Completed; d.Result == store.ReplayRefused {
			r.status = store.Failed
		}
		rows = append(rows, r)
	}
	return rows
}

func (w *coreModel) holdForReplay(t *rapid.T) {
	id, key := rapid.SampledFrom(w.ids).Draw(t, "job"), rapid.SampledFrom(w.keys).Draw(t, "lane")
	if !key.Group.Valid && w.cfg.Ungrouped == Parallel {
		w.inFlightAtHold[key] = w.inFlightRows(key)
	} else {
		if w.replayHolds[key] == nil {
			w.replayHolds[key] = map[string]bool{}
		}
		w.replayHolds[key][id] = true
	}
	w.core.holdForReplay(id, key)
	w.check()
}

func (w *coreModel) releaseReplayHold(t *rapid.T) {
	w.release(rapid.SampledFrom(w.ids).Draw(t, "job"), rapid.SampledFrom(w.keys).Draw(t, "lane"))
	w.check()
}

func (w *coreModel) release(id string, key store.LaneKey) {
	if w.replayHolds[key][id] {
		w.holdEnds(LaneName{LaneKey: key})
	}
	delete(w.replayHolds[key], id)
	delete(w.inFlightAtHold, key)
	w.core.releaseReplayHold(id, key, w.now)
}

// inFlightRows returns the live rows of a key whose status in the table may be out of date.
func (w *coreModel) inFlightRows(key store.LaneKey) map[string]bool {
	rows := map[string]bool{}
	for name, ids := range w.truth {
		if name.LaneKey != key || name.Job != "" {
			continue
		}
		for _, id := range ids {
			if r := w.table[id]; r.known && !r.over {
				rows[id] = true // its COMPLETED is being written
			}
		}
	}
	for name, ids := range w.queue {
		if name.LaneKey == key && name.Job == "" {
			for _, id := range ids[:w.inFlight(name)] {
				rows[id] = true
			}
		}
	}
	return rows
}

// checkJob checks which requests are claimed, and that no request mixes rows of a job with
// others.
func (w *coreModel) checkJob(req *request, replayed bool) {
	for i, m := range req.Messages() {
		if (m.Replay != "") != replayed || m.Replay != req.Runs[0].Lane.Name.Job {
			w.t.Fatalf("row %s (%d) of job %q in a request of job %q, unclaimed %v", m.ID, i, m.Replay, req.Runs[0].Lane.Name.Job, replayed)
		}
	}
}

// checkReplays checks the core's counts of jobs, and that a lane is quiescent only once the
// table is up to date for it.
func (w *coreModel) checkReplays() {
	for _, id := range w.ids {
		rows, bytes, byLane := 0, 0, map[store.LaneKey]int{}
		for _, r := range w.inStore[id] {
			if w.inMemory(r) {
				rows++
				bytes += r.size + r.attributes().Bytes()
				byLane[r.key]++
			}
		}
		load, held := w.core.replayLoad(id)
		if load.Rows != rows || load.Bytes != int64(bytes) || !maps.Equal(held, byLane) {
			w.t.Fatalf("job %s has %d rows in memory, %d bytes, %v: counted %+v, %v", id, rows, bytes, byLane, load, held)
		}
	}
	n := 0
	for _, req := range w.sending {
		if req.Job() != nil {
			n++
		}
	}
	if _, _, counted := w.core.inFlightCounts(); counted != n {
		w.t.Fatalf("%d requests of jobs are being sent, %d are counted", n, counted)
	}
	for _, recv := range w.core.endpoints() {
		if !isOpen(recv) && slices.ContainsFunc(readyLanes(recv), func(l *lane) bool { return l.Job != nil }) || isOpen(recv) && len(readyReplayLanes(recv)) > 0 {
			w.t.Fatalf("lanes of jobs wait in the wrong queue of %s, breaker open %v", recv.Endpoint, isOpen(recv))
		}
		n := 0
		for name, ids := range w.queue {
			if name.Job != "" && len(ids) > 0 && w.core.laneOf(name).Receiver == recv {
				n++
			}
		}
		if recv.ReplayLanes != n {
			w.t.Fatalf("%d lanes of jobs go to %s, %d are counted", n, recv.Endpoint, recv.ReplayLanes)
		}
	}
	for _, key := range w.keys {
		rows, resting := w.inFlightAtHold[key]
		if !resting && len(w.replayHolds[key]) == 0 {
			continue
		}
		now, paused := w.inFlightRows(key), false
		if resting {
			maps.DeleteFunc(rows, func(id string, _ bool) bool { return !now[id] })
			now = rows
		} else {
			_, paused = w.holds[key][store.Paused]
			paused = paused || w.pauses[key.Outbox]
		}
		held := w.core.heldLane(key)
		if held.Quiescent != (len(now) == 0) || paused != held.Paused || !held.Quiescent && !w.core.takeReplayChanged() {
			w.t.Fatalf("lane %s is %+v; in flight are %v, paused %v", key, held, now, paused)
		}
	}
}

// replaysDone reports whether no row of any job is left.
func (w *coreModel) replaysDone() bool {
	return !slices.ContainsFunc(w.ids, func(id string) bool { return len(w.inStore[id]) > 0 })
}

// finishReplays checks that every row of every job was accepted, or refused for good.
func (w *coreModel) finishReplays() {
	if c := w.core; !w.replaysDone() || c.jobCount() > 0 || c.heldLaneCount() > 0 {
		w.t.Fatalf("left over: %v of jobs; in memory %d jobs, %d held lanes", w.inStore, c.jobCount(), c.heldLaneCount())
	}
	for _, r := range w.copies {
		if !r.settled() || r.status == store.Completed && !r.arrived || r.poison && r.status != store.Failed {
			w.t.Fatalf("row %s, poisoned %v, arrived %v, is %s", r.id, r.poison, r.arrived, r.status)
		}
	}
}
