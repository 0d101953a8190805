package app

import (
	"sync/atomic"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// quietFor is how long the same alarm of one sink is not logged again.
const quietFor = 10 * time.Second

// sinkWatch observes one sink's dispatcher: it counts, logs what an operator
// must know, and keeps the sink's readiness.
type sinkWatch struct {
	*SinkMetrics
	relay *relay
	sink  string

	failing    atomic.Bool  // requests
	away       atomic.Bool  // statements
	lastLogged atomic.Int64 // Unix nanoseconds of the last alarm
}

// Claimed implements dispatch.Observer.
func (w *sinkWatch) Claimed(result store.ClaimResult, n int) {
	w.SinkMetrics.Claimed(result, n)
	if w.away.CompareAndSwap(true, false) {
		w.relay.health.ok("database", "reached")
	}
}

// Requested implements dispatch.Observer.
func (w *sinkWatch) Requested(res *sink.Result, rows int, took time.Duration) {
	w.SinkMetrics.Requested(res, rows, took)
	worst, check := sink.Outcome{Class: res.Class, Detail: res.Detail}, "sink "+w.sink
	for i := range res.Items {
		if res.Items[i].Class != sink.Delivered && res.Items[i].Class != sink.NotSent {
			worst = res.Items[i]
			break
		}
	}
	if worst.Class == sink.Delivered || worst.Class == sink.Rejected { // it reads rows and answers
		if w.failing.CompareAndSwap(true, false) {
			w.relay.health.ok(check, "delivers")
			w.relay.log.Info("the sink delivers again", "sink", w.sink)
		}
	} else {
		w.failing.Store(true)
		w.relay.health.fail(check, worst.Class.String()+": "+worst.Detail)
	}
	if worst.Class != sink.Delivered && w.due() {
		w.relay.log.Warn("a request failed", "sink", w.sink, "class", worst.Class.String(), "rows", rows, "error", worst.Detail)
	}
}

// due reports whether an alarm is to be logged now.
func (w *sinkWatch) due() bool {
	now, last := time.Now().UnixNano(), w.lastLogged.Load()
	return now-last >= int64(quietFor) && w.lastLogged.CompareAndSwap(last, now)
}

// Settled implements dispatch.Observer.
func (w *sinkWatch) Settled(it *store.Item, o *store.Outcome) {
	w.SinkMetrics.Settled(it, o)
	if o.Status == store.Failed {
		w.relay.log.Error("a row is FAILED", "sink", w.sink, "outbox", it.Outbox, "id", it.ID,
			"group", it.Group.String(), "retries", o.RetryCount, "error", o.Error)
	}
}

// StoreFailed implements dispatch.Observer.
func (w *sinkWatch) StoreFailed(op string, err error) {
	w.SinkMetrics.StoreFailed(op, err)
	w.away.Store(true)
	w.relay.health.fail("database", err.Error())
	if w.due() {
		w.relay.log.Warn("the database did not take a statement; trying again", "sink", w.sink, "statement", op, "error", err)
	}
}

// checkpointWatch observes the keeper.
type checkpointWatch struct{ *relay }

// Saved implements checkpoint.Observer.
func (w checkpointWatch) Saved(cp store.Checkpoint) {
	w.metrics.Saved(cp)
	w.health.ok("database", "reached")
}

// SaveFailed implements checkpoint.Observer.
func (w checkpointWatch) SaveFailed(err error) {
	w.metrics.SaveFailed(err)
	w.health.fail("database", err.Error())
	w.log.Warn("the checkpoint was not saved; trying again", "error", err)
}

// sourceWatch observes the source.
type sourceWatch struct{ *relay }

// Connected implements capture.Observer.
func (w sourceWatch) Connected() {
	w.metrics.Connected()
	w.health.ok("source", "reading")
	w.log.Info("reading", "name", w.cfg.Settings.Name)
}

// Lost implements capture.Observer.
func (w sourceWatch) Lost(err error, wait time.Duration) {
	w.metrics.Lost(err, wait)
	w.health.fail("source", err.Error())
	w.log.Warn("the source lost its connection; trying again", "error", err, "wait", wait)
}

// count sets the gauges of what the dispatchers hold; it is called when they are
// asked for.
func (r *relay) count() {
	lanes := r.lanes.Load()
	if lanes == nil {
		return
	}
	for name, d := range *lanes {
		r.metrics.Sink(name).Holds(d.Stats())
	}
}
