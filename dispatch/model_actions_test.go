package dispatch

import (
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// insert makes rows of the table, most of them sound.
func (w *world) insert(t *rapid.T, most int) []*record {
	rare := func(what string) bool { return rapid.IntRange(0, 9).Draw(t, what) == 0 }
	rows := make([]*record, rapid.IntRange(1, most).Draw(t, "rows"))
	for i := range rows {
		rows[i] = &record{
			id: fmt.Sprint(len(w.table) + 1), key: rapid.SampledFrom(w.keys).Draw(t, "lane"),
			size: rapid.IntRange(1, 50).Draw(t, "size"), dropped: rare("dropped"),
			poison: rare("poison"), visible: !rare("unseen"), status: store.Pending,
		}
		if rare("refused") {
			rows[i].refuse = rapid.IntRange(1, 8).Draw(t, "refusals")
		}
		w.table[rows[i].id] = rows[i]
	}
	return rows
}

func (w *world) appendRows(t *rapid.T) {
	if !w.core.room() {
		return
	}
	rows := w.insert(t, 6)
	for _, r := range rows {
		w.truth[r.key] = append(w.truth[r.key], r.id)
		w.queue[r.key] = append(w.queue[r.key], r.id)
	}
	w.enter(w.core.append, rows...)
	w.check()
}

// prependRows places rows that were found outside the log: in front of their
// lanes, behind what is in flight.
func (w *world) prependRows(t *rapid.T) {
	if !w.core.room() {
		return
	}
	rows := w.insert(t, 3)
	placed := map[store.LaneKey]int{}
	for _, r := range rows {
		at := w.inFlight(r.key) + placed[r.key]
		placed[r.key]++
		first := len(w.truth[r.key])
		if at < len(w.queue[r.key]) {
			first = slices.Index(w.truth[r.key], w.queue[r.key][at])
		}
		w.truth[r.key] = slices.Insert(w.truth[r.key], first, r.id)
		w.queue[r.key] = slices.Insert(w.queue[r.key], at, r.id)
	}
	w.enter(w.core.prepend, rows...)
	w.check()
}

// inFlight counts the first rows of a lane that nothing may overtake.
func (w *world) inFlight(key store.LaneKey) int {
	for _, r := range slices.Concat(w.claiming, w.sending) {
		if r.lane.key == key {
			return len(r.rows)
		}
	}
	if l := w.core.lanes[key]; l != nil && l.state == laneWriting {
		return 1
	}
	return 0
}

// interfere changes a row in the table as somebody else would.
func (w *world) interfere(t *rapid.T) {
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
		r.status, r.holder = store.Processing, -1
		r.until = w.now.Add(time.Duration(rapid.IntRange(1, 20000).Draw(t, "held")) * time.Millisecond)
	}
}

func (w *world) claim(t *rapid.T) {
	if len(w.claiming) > 0 {
		return
	}
	most, taken := rapid.IntRange(1, 20).Draw(t, "most"), 0
	w.claiming = w.core.nextClaims(most)
	for _, r := range w.claiming {
		if w.held || w.ended || taken >= most {
			t.Fatalf("a claim while held %v, ended %v, with %d rows of %d", w.held, w.ended, taken, most)
		}
		taken += len(r.rows)
		w.checkRun(r)
	}
	if !w.held && !w.ended && taken < most && w.core.inUse < w.cfg.MaxConcurrentGroups && w.core.ready.len() > 0 {
		t.Fatalf("a ready lane and a free sender are left")
	}
	w.check()
}

// checkRun states what a run may hold and when it may begin.
func (w *world) checkRun(r *run) {
	key, n, bytes := r.lane.key, len(r.rows), 0
	for i, rw := range r.rows {
		bytes += w.table[rw.ID].size
		if i >= len(w.queue[key]) || w.queue[key][i] != rw.ID {
			w.t.Fatalf("row %s is taken from the lane of %v", rw.ID, w.queue[key])
		}
	}
	limits := w.limits[key.Kind]
	if n == 0 || n > 1 && (n > w.cfg.APIBatchSize || n > limits.MaxItems || bytes > limits.MaxBytes || limits.Mode == sink.PerItem) {
		w.t.Fatalf("a run of %d rows, %d bytes; limits %+v", n, bytes, limits)
	}
	if w.now.Before(w.notBefore[key]) || w.now.Before(w.paused[key]) {
		w.t.Fatalf("lane %s goes on at %v, Retry-After %v, back-off %v", key, w.now, w.notBefore[key], w.paused[key])
	}
	if w.claims[key]++; w.claims[key] > 3 { // 7 rows, 3, 1
		w.t.Fatalf("lane %s spins at %v", key, w.now)
	}
}

func (w *world) answerClaims(t *rapid.T) {
	want := map[*run]int{} // rows that the request is to have
	for _, r := range w.claiming {
		answers := make([]store.ClaimAnswer, len(r.rows))
		stopped := false
		for i, rw := range slices.Clone(r.rows) {
			rec := w.table[rw.ID]
			answers[i] = w.answerClaim(t, rec, rw)
			switch answers[i].Result {
			case store.Claimed:
				if !stopped {
					want[r]++
				}
			case store.AlreadySettled, store.Gone:
				rec.over = true
				w.leaves(rec)
			default:
				stopped = true
			}
		}
		w.core.claimed(r, answers, w.now, w.now)
	}
	w.claiming = nil
	for r := w.core.nextRequest(w.now); r != nil; r = w.core.nextRequest(w.now) {
		if len(r.rows) != want[r] || w.ended {
			t.Fatalf("a request of %d rows, ended %v; %d may be sent", len(r.rows), w.ended, want[r])
		}
		delete(want, r)
		w.sending = append(w.sending, r)
		for _, rw := range r.rows {
			if rec := w.table[rw.ID]; len(rw.Payload) != rec.size || rec.holder != w.epoch {
				t.Fatalf("row %s is sent with %d bytes of %d, claimed by %d", rw.ID, len(rw.Payload), rec.size, rec.holder)
			}
		}
	}
	if len(want) > 0 && !w.ended {
		t.Fatalf("%d claimed runs are not sent", len(want))
	}
	w.check()
}

func (w *world) answerClaim(t *rapid.T, rec *record, rw *row) store.ClaimAnswer {
	switch {
	case rec.gone:
		return store.ClaimAnswer{Result: store.Gone}
	case rec.status.Settled():
		return store.ClaimAnswer{Result: store.AlreadySettled}
	case !rec.visible:
		rec.visible = rapid.Bool().Draw(t, "seen now")
		return store.ClaimAnswer{Result: store.NotYetVisible}
	case rec.until.After(w.now):
		until := rec.until
		if rapid.IntRange(0, 4).Draw(t, "clocks differ") == 0 {
			until = w.now.Add(-time.Second)
		}
		return store.ClaimAnswer{Result: store.Held, Until: until}
	}
	rec.status, rec.holder = store.Processing, w.epoch
	a := store.ClaimAnswer{Result: store.Claimed}
	if w.counted(rec.key) {
		a.RetryCount = rec.retries
	}
	if rw.Payload == nil {
		rec.size = rapid.IntRange(1, 50).Draw(t, "size now")
		a.Payload = make([]byte, rec.size)
	}
	return a
}

func (w *world) pass(t *rapid.T) {
	w.sleep(time.Duration(rapid.IntRange(1, 5000).Draw(t, "ms")) * time.Millisecond)
}

func (w *world) sleep(d time.Duration) {
	w.now = w.now.Add(d)
	clear(w.claims)
	w.core.tick(w.now)
	wake, ok := w.core.nextWake()
	if ok && !wake.After(w.now) {
		w.t.Fatalf("what was due at %v still waits at %v", wake, w.now)
	}
	for _, l := range w.core.waiting {
		if !ok || l.wakeAt.Before(wake) {
			w.t.Fatalf("lane %s is due at %v, before the next wake at %v", l.key, l.wakeAt, wake)
		}
	}
	for _, o := range w.core.refused {
		if !ok || o.due.Before(wake) {
			w.t.Fatalf("the outcome of row %s is due at %v, before the next wake at %v", o.ID, o.due, wake)
		}
	}
	w.check()
}

func (w *world) end() {
	if !w.ended {
		w.core.end()
		w.ended = true
	}
	w.check()
}
