package app

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

const (
	// quietFor is how long the same alarm of one sink is not logged again.
	quietFor = 10 * time.Second
	// mostAlarms is how many different ones are logged in that time.
	mostAlarms = 20
)

// sinkWatch observes one sink's dispatcher: it counts, logs what an operator
// must know, and keeps the sink's readiness.
type sinkWatch struct {
	*SinkMetrics
	relay *relay
	sink  string

	away    atomic.Bool     // statements
	suspect map[string]bool // endpoints
	skipped atomic.Int64    // rows that the log does not tell of yet

	mu       sync.Mutex
	logged   map[string]time.Time // alarms, by what failed
	vanished map[string]int       // rows that no line has counted yet, by outbox
}

// begin is the state of a sink that nothing was sent to yet.
func (w *sinkWatch) begin() {
	w.SinkMetrics.Suspected(nil)
	w.relay.health.ok("sink "+w.sink, "nothing says otherwise")
}

// Claimed implements dispatch.Observer. That a row is not visible is also what a
// refused claim comes to: it is no sign that the database takes them again.
func (w *sinkWatch) Claimed(result store.ClaimResult, n int) {
	w.SinkMetrics.Claimed(result, n)
	if result != store.NotYetVisible && result != store.TableLocked && w.away.CompareAndSwap(true, false) {
		w.relay.health.ok("database", "reached")
	}
}

// Requested implements dispatch.Observer.
func (w *sinkWatch) Requested(req dispatch.Request, res *sink.Result, took time.Duration) {
	w.SinkMetrics.Requested(req, res, took)
	if res.Skipped > 0 {
		w.skipped.Add(int64(res.Skipped))
		if w.due("skipped") {
			w.relay.log.Info("rows skipped by the receiver", "sink", w.sink, "kind", req.Kind, "rows", w.skipped.Swap(0))
		}
	}
	worst := sink.Outcome{Class: res.Class, Detail: res.Detail}
	for i := range res.Items {
		if res.Items[i].Class != sink.Delivered && res.Items[i].Class != sink.NotSent {
			worst = res.Items[i]
			break
		}
	}
	if worst.Class != sink.Delivered && worst.Class != 0 && w.due("request") {
		w.relay.log.Warn("a request failed", "sink", w.sink, "class", worst.Class.String(), "rows", req.Rows, "groups", req.Lanes, "error", worst.Detail)
	}
}

// Suspected implements dispatch.Observer. Its calls come one after the other.
func (w *sinkWatch) Suspected(all []dispatch.Suspicion) {
	w.SinkMetrics.Suspected(all)
	before := w.suspect
	w.suspect = map[string]bool{}
	var what, idle []string
	for i := range all {
		s := &all[i]
		w.suspect[s.Endpoint] = true
		if s.Idle {
			idle = append(idle, s.Endpoint)
		} else {
			what = append(what, s.Why.Class.String()+": "+s.Why.Detail)
		}
		if !before[s.Endpoint] {
			w.relay.log.Error("the sink is suspect: single rows are sent until one is taken",
				"sink", w.sink, "endpoint", s.Endpoint, "class", s.Why.Class.String(), "error", s.Why.Detail)
		}
	}
	for endpoint := range before {
		if !w.suspect[endpoint] {
			w.relay.log.Info("the sink delivers again", "sink", w.sink, "endpoint", endpoint)
		}
	}
	switch {
	case len(what) > 0:
		w.relay.health.fail("sink "+w.sink, "suspect, "+strings.Join(what, "; "))
	case len(idle) > 0:
		w.relay.health.ok("sink "+w.sink, "no row waits; suspect is "+strings.Join(idle, ", "))
	default:
		w.relay.health.ok("sink "+w.sink, "delivers")
	}
}

// Stalled implements dispatch.Observer.
func (w *sinkWatch) Stalled(l *dispatch.LaneInfo) {
	if w.due("stalled") {
		w.relay.log.Error("message group stalled", "sink", w.sink, "outbox", l.Outbox, "kind", l.Kind, "group", l.Group.String(),
			"row", l.Head, "since", l.Since, "error", l.Error,
			"remedy", "other rows are delivered; repair the receiver, or pass the row over with lanes skip")
	}
}

// due reports whether an alarm is to be logged now. Rows that the database refuses are
// told apart: one that it locks must not hide another that it never takes.
func (w *sinkWatch) due(alarm string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(w.logged, func(_ string, at time.Time) bool { return now.Sub(at) >= quietFor })
	if _, said := w.logged[alarm]; said || len(w.logged) >= mostAlarms {
		return false
	}
	if w.logged == nil {
		w.logged = map[string]time.Time{}
	}
	w.logged[alarm] = now
	return true
}

// Settled implements dispatch.Observer.
func (w *sinkWatch) Settled(it *store.Item, o *store.Outcome) {
	w.SinkMetrics.Settled(it, o)
	if o.Status == store.Failed {
		w.relay.log.Error("a row is FAILED", "sink", w.sink, "outbox", it.Outbox, "id", it.ID,
			"group", it.Group.String(), "retries", o.RetryCount, "error", o.Error)
	}
}

// Vanished implements dispatch.Observer. A line names the first rows of a statement, and
// counts with them those since the line before: a mass deletion must not flood the log.
// It is no warning: after a crash, rows that were delivered and deleted come again.
func (w *sinkWatch) Vanished(rows []*store.Item) {
	w.SinkMetrics.Vanished(rows)
	const named = 3
	ids, groups := map[string][]string{}, map[string][]string{}
	w.mu.Lock()
	if w.vanished == nil {
		w.vanished = map[string]int{}
	}
	for _, it := range rows {
		if w.vanished[it.Outbox]++; len(ids[it.Outbox]) < named {
			ids[it.Outbox] = append(ids[it.Outbox], it.ID)
			groups[it.Outbox] = append(groups[it.Outbox], it.Group.String())
		}
	}
	w.mu.Unlock()
	for outbox, first := range ids {
		if w.due("vanished from " + outbox) {
			w.relay.log.Info("rows dropped, no longer in their table", "sink", w.sink, "outbox", outbox,
				"rows", w.countVanished(outbox), "ids", first, "groups", groups[outbox])
		}
	}
}

// countVanished returns how many rows of an outbox no line has counted yet.
func (w *sinkWatch) countVanished(outbox string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.vanished[outbox]
	delete(w.vanished, outbox)
	return n
}

// Unparkable implements dispatch.Observer.
func (w *sinkWatch) Unparkable(it *store.Item, err error) {
	w.relay.health.fail("parking of "+w.sink, fmt.Sprintf("row %.40q of %s stays in memory: %v", it.ID, it.Outbox, err))
	if w.due("unparkable") {
		w.relay.log.Error("row cannot be parked", "sink", w.sink, "outbox", it.Outbox, "id", it.ID, "group", it.Group.String(), "error", err,
			"remedy", "it is delivered all the same; until then the log is kept, and a sluicebox_unparkable_rows above 0 counts such rows")
	}
}

// Parkable implements dispatch.Observer.
func (w *sinkWatch) Parkable() {
	w.relay.health.ok("parking of "+w.sink, "the database takes every row")
}

// StoreFailed implements dispatch.Observer.
func (w *sinkWatch) StoreFailed(op string, err error) {
	w.SinkMetrics.StoreFailed(op, err)
	var locked *store.OutboxLockedError
	if errors.As(err, &locked) { // the database is well
		if w.due(op) {
			w.relay.log.Warn("outbox locked by another session", "sink", w.sink, "outbox", locked.Outbox, "error", err)
		}
		return
	}
	w.away.Store(true)
	w.relay.health.fail("database", err.Error())
	if w.due(op) {
		w.relay.log.Warn("the database did not take a statement; trying again", "sink", w.sink, "statement", op, "error", err)
	}
}

// Refused implements dispatch.Observer. The database is well: it has something against
// one row.
func (w *sinkWatch) Refused(row store.Ref, what string, err error) {
	w.SinkMetrics.Refused(row, what, err)
	if w.due(what + " " + row.Outbox + " " + row.ID) {
		w.relay.log.Warn("row refused by its table; trying again", "sink", w.sink, "outbox", row.Outbox, "id", row.ID, "statement", what, "error", err)
	}
}

// namedRefusals is how many refused rows readiness names.
const namedRefusals = 3

// refused is the check of the rows that their tables refuse; there is none while they
// refuse none. It fails if there are so many that nothing is sent.
func refused(sink string, d *dispatch.Dispatcher) (c admin.Check, some bool) {
	rows, byOutbox, stopped := d.Refused(namedRefusals)
	if len(rows) == 0 {
		return c, false
	}
	total := 0
	for _, n := range byOutbox {
		total += n
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%d, trying again", total)
	if stopped {
		text.WriteString(", and nothing is sent until they are fewer")
	}
	for _, row := range rows {
		fmt.Fprintf(&text, "; row %s of %s since %s: %s", row.ID, row.Outbox, row.Since.UTC().Format(time.RFC3339), row.Error)
	}
	return admin.Check{Name: "refused rows of sink " + sink, OK: !stopped, Warning: true, Detail: text.String()}, true
}

// checkpointWatch observes the keeper.
type checkpointWatch struct{ *relay }

// Saved implements checkpoint.Observer.
func (w checkpointWatch) Saved(cp store.Checkpoint) {
	w.metrics.Saved(cp)
	w.progress.set(func() {
		w.progress.saved, w.progress.savedAt, w.progress.unsaved = cp, time.Now(), time.Time{}
	})
	w.health.ok("database", "reached")
}

// SaveFailed implements checkpoint.Observer.
func (w checkpointWatch) SaveFailed(err error) {
	w.metrics.SaveFailed(err)
	w.progress.set(func() {
		if w.progress.why = err.Error(); w.progress.unsaved.IsZero() {
			w.progress.unsaved = time.Now()
		}
	})
	w.log.Warn("the checkpoint was not saved; trying again", "error", err)
}

// sourceWatch observes the source.
type sourceWatch struct{ *relay }

// Connected implements capture.Observer.
func (w sourceWatch) Connected() {
	w.metrics.Connected()
	w.progress.set(func() { w.progress.connected, w.progress.heard = true, time.Now() })
	w.health.ok("source", w.reading)
	w.log.Info("reading", "name", w.cfg.Settings.Name)
}

// Lost implements capture.Observer.
func (w sourceWatch) Lost(err error, wait time.Duration) {
	w.metrics.Lost(err, wait)
	w.progress.set(func() { w.progress.connected = false })
	w.health.fail("source", err.Error())
	w.log.Warn("the source lost its connection; trying again", "error", err, "wait", wait)
}

// sweepWatch observes the sweeper.
type sweepWatch struct{ *relay }

// Swept implements checkpoint.SweepObserver.
func (w sweepWatch) Swept(rows int) {
	w.metrics.Swept(rows)
	w.log.Info("rows came back to PENDING and are sent", "rows", rows)
}

// SweepFailed implements checkpoint.SweepObserver.
func (w sweepWatch) SweepFailed(err error) {
	w.log.Warn("the tables could not be searched for rows that were set back; trying again", "error", err)
}

// count sets the gauges of what the dispatchers hold and of what the source
// brings; it is called when they are asked for.
func (r *relay) count() {
	s := r.progress.look(time.Now())
	_, heard := s.read()
	r.metrics.Heard(heard)
	lanes := r.lanes.Load()
	if lanes == nil {
		return
	}
	for name, d := range *lanes {
		r.metrics.Sink(name).Holds(d.Stats())
	}
	for outbox, sink := range r.cfg.Routes() {
		_, rows, _ := (*lanes)[sink].Refused(0)
		r.metrics.RefusedRows(sink, outbox, rows[outbox])
	}
}

// retainWatch observes the retainer.
type retainWatch struct{ *relay }

// Pruned implements checkpoint.RetainObserver.
func (w retainWatch) Pruned(outbox string, rows int) {
	w.log.Debug("delivered rows were kept long enough and are deleted", "outbox", outbox, "rows", rows)
}

// PruneFailed implements checkpoint.RetainObserver.
func (w retainWatch) PruneFailed(outbox string, err error) {
	w.log.Warn("delivered rows could not be deleted; trying again", "outbox", outbox, "error", err)
}
