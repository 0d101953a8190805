package dispatch

import (
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

func (w *world) answer(t *rapid.T) {
	if len(w.sending) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.sending)-1).Draw(t, "request")
	r := w.sending[i]
	w.sending = slices.Delete(w.sending, i, i+1)
	res := w.receive(t, r)
	w.remember(r, &res)
	w.core.answered(r, &res, w.now)
	w.check()
}

// receive is the receiver of a request.
func (w *world) receive(t *rapid.T, r *run) sink.Result {
	n := len(r.rows)
	outcome := func(c sink.Class) sink.Outcome { return sink.Outcome{Class: c, Detail: c.String()} }
	if w.down {
		away := rapid.SampledFrom([]sink.Class{sink.Unavailable, sink.Misconfigured, sink.Refused, sink.Rejected, 0}).Draw(t, "away")
		res := sink.Result{Outcome: outcome(away)}
		if rapid.Bool().Draw(t, "come back later") {
			res.RetryAfter = time.Duration(rapid.IntRange(1, 40000).Draw(t, "after")) * time.Millisecond
		}
		return res
	}
	stop, why := slices.IndexFunc(r.rows, func(rw *row) bool { return w.table[rw.ID].poison }), sink.NotSent
	mode := w.mode(r.lane.key)
	switch {
	case stop >= 0:
		why = rapid.SampledFrom([]sink.Class{sink.Rejected, sink.Refused}).Draw(t, "poisoned")
		if mode == sink.Atomic {
			return sink.Result{Outcome: outcome(why)}
		}
	case n > 1 && rapid.IntRange(0, 5).Draw(t, "fits") == 0:
		stop = rapid.IntRange(1, n-1).Draw(t, "first of the rest")
	default:
		stop = n
	}
	for _, rw := range r.rows[:stop] {
		w.arrive(w.table[rw.ID])
	}
	if stop == n && rapid.IntRange(0, 9).Draw(t, "lost") == 0 {
		return sink.Result{Outcome: outcome(sink.Unavailable)} // it has them, and the answer got lost
	}
	if stop == n && mode == sink.Atomic {
		return sink.Result{Outcome: outcome(sink.Delivered)}
	}
	res := sink.Result{Items: make([]sink.Outcome, n)}
	for i := range res.Items {
		res.Items[i] = outcome(sink.NotSent)
		switch {
		case i < stop:
			res.Items[i] = outcome(sink.Delivered)
		case i == stop:
			res.Items[i] = outcome(why)
		}
	}
	return res
}

// arrive states that the first arrivals of a lane are in order.
func (w *world) arrive(rec *record) {
	for _, id := range w.truth[rec.key] {
		if id == rec.id {
			break
		}
		if before := w.table[id]; !rec.arrived && !before.arrived && !before.settled() {
			w.t.Fatalf("row %s arrives before row %s, which is %s", rec.id, id, before.status)
		}
	}
	rec.arrived = true
}

// remember notes what the answer to a request allows the core to do.
func (w *world) remember(r *run, res *sink.Result) {
	head := true // until the first row that was not delivered
	for i, rw := range r.rows {
		rec, class := w.table[rw.ID], res.At(i).Class
		switch {
		case class == sink.Delivered:
			rec.known = true
			w.leaves(rec)
			w.accepted = later(w.accepted, r.started)
			continue
		case class == sink.NotSent:
		case head:
			w.failure(rec, class, len(r.rows) == 1 || res.Items != nil, res.RetryAfter)
			fallthrough
		default:
			rec.failed = w.now
		}
		head = false
	}
}

// failure notes a failed attempt of the row at the head of its lane.
func (w *world) failure(rec *record, class sink.Class, alone bool, retryAfter time.Duration) {
	rec.detail = class.String()
	proof := !rec.failed.IsZero() && w.accepted.After(rec.failed)
	busy := retryAfter > 0 && class != sink.Rejected
	if busy {
		w.notBefore[rec.key] = w.now.Add(min(retryAfter, w.cfg.RetryAfterMax))
	}
	if alone && !busy && (proof || class == sink.Rejected || class == sink.Refused) {
		rec.excuses++
	}
	if alone || busy || !proof && class != sink.Rejected {
		w.paused[rec.key] = w.now.Add(w.cfg.BackoffInitial * 4 / 5)
	}
}

func (w *world) takeOutcomes(t *rapid.T) {
	if len(w.writing) > 0 {
		if more := w.core.nextOutcomes(1); more != nil {
			t.Fatalf("a second batch of outcomes: %v", more)
		}
		return
	}
	most, waiting := rapid.IntRange(1, 4).Draw(t, "most"), len(w.core.outcomes)
	w.writing = w.core.nextOutcomes(most)
	if len(w.writing) > most || len(w.writing) == 0 && waiting > 0 {
		t.Fatalf("%d outcomes of %d, at most %d", len(w.writing), waiting, most)
	}
	for _, o := range w.writing {
		if r := w.table[o.ID]; r.refusals > 0 && (len(w.writing) > 1 || w.now.Before(r.due)) {
			t.Fatalf("the outcome of row %s, refused %d times, is tried among %d, due %v, at %v", o.ID, r.refusals, len(w.writing), r.due, w.now)
		}
	}
}

func (w *world) write(t *rapid.T) {
	if len(w.writing) == 0 {
		return
	}
	results := make([]store.SettleResult, len(w.writing))
	for i := range w.writing {
		o := &w.writing[i]
		r := w.table[o.ID]
		if results[i] = w.settle(t, r, o); results[i] == store.Refused {
			continue
		}
		r.refusals = 0
		if o.Status.Settled() || o.lane != nil && results[i] != store.Written {
			r.over = true
			w.leaves(r)
		}
	}
	w.writing = nil
	w.core.written(results, w.now)
	w.check()
}

// settle is the table that takes an outcome.
func (w *world) settle(t *rapid.T, r *record, o *outcome) store.SettleResult {
	switch {
	case r.over && o.Status.Settled():
		t.Fatalf("row %s is settled twice", r.id)
	case o.Status == store.Completed && (!r.arrived || !r.known):
		t.Fatalf("row %s COMPLETED; arrived %v, known %v", r.id, r.arrived, r.known)
	case o.Status == store.Pending && o.lane == nil && (!w.ended || r.over):
		t.Fatalf("row %s is given back; ended %v, over %v", r.id, w.ended, r.over)
	case o.lane != nil && (o.Error != r.detail || o.RetryCount > min(r.excuses, w.cfg.MaxRetries)):
		t.Fatalf("row %s: error %q, count %d after %s and %d failures that count", r.id, o.Error, o.RetryCount, r.detail, r.excuses)
	case r.refuse > 0:
		r.refuse--
		r.due = w.now.Add(min(time.Second<<r.refusals, time.Minute))
		r.refusals++
		return store.Refused
	case r.gone:
		return store.WasGone
	case r.status.Settled():
		return store.WasSettled
	}
	r.status = o.Status
	if o.Status != store.Completed {
		if o.RetryCount < r.retries {
			t.Fatalf("row %s: the count goes back from %d to %d", r.id, r.retries, o.RetryCount)
		}
		r.retries = o.RetryCount
	}
	if o.Status == store.Failed && (r.excuses <= w.cfg.MaxRetries || r.retries != w.cfg.MaxRetries) {
		t.Fatalf("row %s FAILED after %d retries with %d failures that count", r.id, r.retries, r.excuses)
	}
	if o.Status.Settled() && rapid.IntRange(0, 5).Draw(t, "answer lost") == 0 {
		return store.WasSettled // by the try before
	}
	return store.Written
}
