package sluicebox

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

const (
	// alarmInterval is how long a repeated alarm of a sink is suppressed.
	alarmInterval = 10 * time.Second
	// maxAlarms limits the different alarms logged per alarmInterval.
	maxAlarms = 20
)

// sinkObserver observes the dispatcher of one sink. It logs the
// events an operator needs, and maintains the sink's readiness check.
type sinkObserver struct {
	SinkObserver
	relay *Relay
	sink  string

	storeFailing  atomic.Bool     // claims and outcomes
	openBreakers  map[string]bool // by endpoint
	unloggedSkips atomic.Int64    // skipped rows not logged yet

	mu               sync.Mutex
	unproven         bool                 // no row was accepted and no breaker changed yet
	alarmedAt        map[string]time.Time // when each alarm was last logged, by its key
	unloggedVanished map[string]int       // vanished rows not logged yet, by outbox
}

// reset sets the state of a sink that has not received a request yet.
func (w *sinkObserver) reset() {
	w.SinkObserver.BreakersChanged(nil)
	w.relay.health.ok("sink "+w.sink, "no request sent yet")
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unproven = true
}

// Claimed implements dispatch.Observer. NotYetVisible and TableLocked do not clear the
// database failure, because a refused claim has the same result.
func (w *sinkObserver) Claimed(result store.ClaimResult, n int) {
	w.SinkObserver.Claimed(result, n)
	if result != store.NotYetVisible && result != store.TableLocked && w.storeFailing.CompareAndSwap(true, false) {
		w.relay.health.ok("database", "reached")
	}
}

// Requested implements dispatch.Observer.
func (w *sinkObserver) Requested(req dispatch.RequestInfo, res *sink.Result, took time.Duration) {
	w.SinkObserver.Requested(req, res, took)
	if res.Skipped > 0 {
		w.unloggedSkips.Add(int64(res.Skipped))
		if w.shouldLog("skipped") {
			w.relay.log.Info("rows skipped by receiver", "sink", w.sink, "kind", req.Kind, "rows", w.unloggedSkips.Swap(0))
		}
	}

	if res.Notice != "" {
		w.relay.log.Warn("destination changed", "sink", w.sink, "notice", res.Notice)
	}

	w.proved(res.Class == sink.Delivered)

	worst := sink.Outcome{Class: res.Class, Detail: res.Detail}
	for i := range res.Items {
		if res.Items[i].Class != sink.Delivered && res.Items[i].Class != sink.NotSent {
			worst = res.Items[i]
			break
		}
	}

	if worst.Class != sink.Delivered && worst.Class != 0 && w.shouldLog("request") {
		w.relay.log.Warn("request failed", "sink", w.sink, "class", worst.Class.String(), "rows", req.Rows, "groups", req.Lanes, "error", worst.Detail)
	}
}

// proved updates the readiness check of a sink whose breakers have not changed yet: the
// dispatcher reports breakers only when one opens or closes.
func (w *sinkObserver) proved(accepted bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.unproven {
		return
	}
	detail := "no row accepted yet"
	if accepted {
		detail = "delivers"
	}
	w.unproven = !accepted
	w.relay.health.ok("sink "+w.sink, detail)
}

// BreakersChanged implements dispatch.Observer. The dispatcher never calls it
// concurrently.
func (w *sinkObserver) BreakersChanged(all []dispatch.OpenBreaker) {
	w.SinkObserver.BreakersChanged(all)
	w.mu.Lock()
	w.unproven = false
	w.mu.Unlock()

	before := w.openBreakers
	w.openBreakers = map[string]bool{}
	var failing, idle, named []string
	for i := range all {
		s := &all[i]
		w.openBreakers[s.Endpoint] = true
		switch {
		case s.Idle:
			idle = append(idle, s.Endpoint)
		case s.Named:
			named = append(named, s.Endpoint)
		default:
			failing = append(failing, s.LastFailure.Class.String()+": "+s.LastFailure.Detail)
		}
		if !before[s.Endpoint] {
			w.relay.log.Error("circuit breaker opened",
				"sink", w.sink, endpointAttr(s.Endpoint), "class", s.LastFailure.Class.String(), "error", s.LastFailure.Detail,
				"remedy", "single-row probes are sent until one is accepted")
		}
	}

	for endpoint := range before {
		if !w.openBreakers[endpoint] {
			w.relay.log.Info("circuit breaker closed", "sink", w.sink, endpointAttr(endpoint))
		}
	}

	switch {
	case len(failing) > 0:
		w.relay.health.fail("sink "+w.sink, "circuit breaker open: "+strings.Join(failing, "; "))
	case len(named) > 0: // the rows of all other endpoints are delivered
		w.relay.health.ok("sink "+w.sink, fmt.Sprintf("rows wait for %d of the endpoints that rows name; circuit breaker open for %s",
			len(named), strings.Join(named[:min(3, len(named))], ", ")))
	case len(idle) > 0:
		detail := "no rows waiting; circuit breaker open"
		if names := strings.Join(idle[:min(3, len(idle))], ", "); names != "" {
			detail += " for " + names
		}
		w.relay.health.ok("sink "+w.sink, detail)
	default:
		w.relay.health.ok("sink "+w.sink, "delivers")
	}
}

// endpointAttr is the log attribute of an endpoint. A sink with a single endpoint does not
// name it, and slog leaves out the empty attribute.
func endpointAttr(endpoint string) slog.Attr {
	if endpoint == "" {
		return slog.Attr{}
	}
	return slog.String("endpoint", endpoint)
}

// Stalled implements dispatch.Observer.
func (w *sinkObserver) Stalled(l *dispatch.LaneInfo) {
	if w.shouldLog("stalled") {
		w.relay.log.Error("message group stalled", "sink", w.sink, "outbox", l.Outbox, "kind", l.Kind, "group", l.Group.String(),
			"row", l.Head, "since", l.Since, "error", l.Error,
			"remedy", "fix the receiver, or skip the row with lanes skip; other groups are delivered")
	}
}

// shouldLog reports whether to log an alarm now. Callers use a key per refused row, so
// that a temporarily locked row does not hide a row always refused.
func (w *sinkObserver) shouldLog(alarm string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(w.alarmedAt, func(_ string, at time.Time) bool { return now.Sub(at) >= alarmInterval })
	if _, logged := w.alarmedAt[alarm]; logged || len(w.alarmedAt) >= maxAlarms {
		return false
	}
	if w.alarmedAt == nil {
		w.alarmedAt = map[string]time.Time{}
	}
	w.alarmedAt[alarm] = now
	return true
}

// Settled implements dispatch.Observer.
func (w *sinkObserver) Settled(it *store.Item, o *store.Outcome) {
	w.SinkObserver.Settled(it, o)
	if o.Status == store.Failed {
		w.relay.log.Error("row marked FAILED", "sink", w.sink, "outbox", it.Outbox, "id", it.ID,
			"group", it.Group.String(), "retries", o.RetryCount, "error", o.Error)
		select {
		case w.relay.rowFailed <- struct{}{}:
		default:
		}
	}
}

// Vanished implements dispatch.Observer. A log line names the first rows of a statement
// and counts all rows since the line before, so that a mass deletion does not flood the
// log. The level is INFO, because after a crash delivered and deleted rows legitimately
// show up again.
func (w *sinkObserver) Vanished(rows []*store.Item) {
	w.SinkObserver.Vanished(rows)
	const named = 3
	ids, groups := map[string][]string{}, map[string][]string{}
	w.mu.Lock()
	if w.unloggedVanished == nil {
		w.unloggedVanished = map[string]int{}
	}

	for _, it := range rows {
		if w.unloggedVanished[it.Outbox]++; len(ids[it.Outbox]) < named {
			ids[it.Outbox] = append(ids[it.Outbox], it.ID)
			groups[it.Outbox] = append(groups[it.Outbox], it.Group.String())
		}
	}

	w.mu.Unlock()
	for outbox, first := range ids {
		if w.shouldLog("vanished from " + outbox) {
			w.relay.log.Info("vanished rows dropped", "sink", w.sink, "outbox", outbox,
				"rows", w.takeVanishedCount(outbox), "ids", first, "groups", groups[outbox])
		}
	}
}

// takeVanishedCount returns and resets the number of unlogged vanished rows of an outbox.
func (w *sinkObserver) takeVanishedCount(outbox string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.unloggedVanished[outbox]
	delete(w.unloggedVanished, outbox)
	return n
}

// spillCheckPrefix begins the name of the check for rows of a sink that cannot be spilled.
const spillCheckPrefix = "spill of "

// RowUnspillable implements dispatch.Observer.
func (w *sinkObserver) RowUnspillable(it *store.Item, err error) {
	w.relay.health.fail(spillCheckPrefix+w.sink, fmt.Sprintf("row %.40q of %s cannot be spilled: %v", it.ID, it.Outbox, err))
	if w.shouldLog("unspillable") {
		w.relay.log.Error("row cannot be spilled; kept in memory", "sink", w.sink, "outbox", it.Outbox, "id", it.ID, "group", it.Group.String(), "error", err,
			"remedy", "it is delivered all the same; until then the database retains log, and sluicebox_unspillable_rows counts such rows")
	}
}

// UnspillableCleared implements dispatch.Observer.
func (w *sinkObserver) UnspillableCleared() {
	w.relay.health.ok(spillCheckPrefix+w.sink, "no unspillable rows")
}

// StoreFailed implements dispatch.Observer.
func (w *sinkObserver) StoreFailed(op string, err error) {
	w.SinkObserver.StoreFailed(op, err)
	var locked *store.OutboxLockedError
	if errors.As(err, &locked) { // the database itself works
		if w.shouldLog(op) {
			w.relay.log.Warn("outbox locked by another session; retrying", "sink", w.sink, "outbox", locked.Outbox, "error", err)
		}
		return
	}
	w.storeFailing.Store(true)
	w.relay.health.fail("database", err.Error())
	if w.shouldLog(op) {
		w.relay.log.Warn("store operation failed; retrying", "sink", w.sink, "op", op, "error", err)
	}
}

// Refused implements dispatch.Observer. It does not affect the database check, because
// the database refuses only this row.
func (w *sinkObserver) Refused(row store.Ref, op string, err error) {
	w.SinkObserver.Refused(row, op, err)
	if !w.shouldLog(op + " " + row.Outbox + " " + row.ID) {
		return
	}
	attrs := []any{"sink", w.sink, "outbox", row.Outbox, "id", row.ID, "op", op, "error", err}
	if op == dispatch.LateClaim {
		w.relay.log.Warn("late claim refused by table; outcome follows", attrs...)
		return
	}
	w.relay.log.Warn("row refused by its table; retrying", attrs...)
}

// maxNamedRefusals is the number of refused rows that the readiness check names.
const maxNamedRefusals = 3

// refusedRowsCheck returns the check for rows that their tables refuse. There is no check
// while no row is refused. It fails once so many rows are refused that the dispatcher
// stops sending.
func refusedRowsCheck(sink string, d *dispatch.Dispatcher) (c Check, some bool) {
	rows, byOutbox, stopped := d.RefusedRows(maxNamedRefusals)
	if len(rows) == 0 {
		return c, false
	}

	total := 0
	for _, n := range byOutbox {
		total += n
	}

	var text strings.Builder
	fmt.Fprintf(&text, "%d, retrying", total)
	if stopped {
		text.WriteString("; sending stopped until fewer are refused")
	}

	for _, row := range rows {
		fmt.Fprintf(&text, "; row %s of %s since %s: %s", row.ID, row.Outbox, row.Since.UTC().Format(time.RFC3339), row.Error)
	}
	return Check{Name: "refused rows of sink " + sink, OK: !stopped, Warning: true, Detail: text.String()}, true
}

// checkpointObserver observes the checkpoint saver.
type checkpointObserver struct{ *Relay }

// Saved implements checkpoint.Observer.
func (w checkpointObserver) Saved(cp store.Checkpoint) {
	w.observer.Saved(cp)
	w.progress.update(func() {
		w.progress.saved, w.progress.savedAt, w.progress.saveFailingSince = cp, time.Now(), time.Time{}
	})
	w.health.ok("database", "reached")
}

// SaveFailed implements checkpoint.Observer.
func (w checkpointObserver) SaveFailed(err error) {
	w.observer.SaveFailed(err)
	w.progress.update(func() {
		if w.progress.saveError = err.Error(); w.progress.saveFailingSince.IsZero() {
			w.progress.saveFailingSince = time.Now()
		}
	})
	w.log.Warn("checkpoint save failed; retrying", "error", err)
}

// sourceObserver observes the source of a session.
type sourceObserver struct {
	*Relay
	onConnected func()
}

// Connected implements capture.Observer.
func (w sourceObserver) Connected() {
	w.observer.Connected()
	w.onConnected()
	var mode Mode
	w.progress.update(func() {
		w.progress.connected, w.progress.lastReceived = true, time.Now()
		mode = w.progress.mode
	})
	w.health.ok("source", w.sourceDetail)
	w.log.Info("source connected", "name", w.opt().Name, "mode", mode)
}

// Disconnected implements capture.Observer.
func (w sourceObserver) Disconnected(err error, wait time.Duration) {
	w.observer.Disconnected(err, wait)
	w.progress.update(func() { w.progress.connected = false })
	w.health.fail("source", err.Error())
	w.log.Warn("source connection lost; retrying", "error", err, "wait", wait)
}

// newSessionController returns the controller that creates named checkpoints and runs
// replays during a session.
func (r *Relay) newSessionController(st *sessionStore, epoch store.Epoch, lanes map[string]*dispatch.Dispatcher, log *replay.Log) *replay.Controller {
	sinks := make(map[string]replay.Sink, len(lanes))
	for name, d := range lanes {
		sinks[name] = replay.Sink{Lanes: d, Config: r.opt().Sinks[name].Dispatch}
	}
	return replay.New(replay.Options{
		Store: st.replays(r.db.store), Epoch: epoch, Outboxes: r.opt().tables(), Sinks: sinks, Routes: r.opt().routes(), Legs: st.fan.legNames, Log: log,
		OpenRetainer: r.db.newSlotRetainer, MaxRetainedBytes: r.opt().MaxKept, RequestsChanged: r.requested, Observer: &replayObserver{Relay: r},
	})
}

// replayObserver observes the replay controller. It updates the metrics and logs the
// events an operator needs.
type replayObserver struct {
	*Relay

	mu         sync.Mutex
	lastLogged store.Job // the job as last logged
}

// SavepointChanged implements replay.Observer.
func (w *replayObserver) SavepointChanged(n *store.Savepoint) {
	switch n.State {
	case store.SavepointMade, store.SavepointRetained:
		w.log.Info("named checkpoint created", "checkpoint", n.Name, "position", n.Position, "log_retained", n.State == store.SavepointRetained)
	case store.SavepointRefused:
		w.log.Warn("named checkpoint refused", "checkpoint", n.Name, "reason", n.Reason)
	case store.SavepointLogLost:
		w.observer.SavepointLogDropped(n.Name)
		w.log.Error("named checkpoint lost its retained log", "checkpoint", n.Name, "reason", n.Reason,
			"remedy", "a replay from it reads the table instead of the log")
	}
}

// LogsRetained implements replay.Observer.
func (w *replayObserver) LogsRetained(list []capture.RetainedSlot) { w.observer.LogsRetained(list) }

// Job implements replay.Observer.
func (w *replayObserver) Job(j *store.Job) {
	w.observer.Replay(j)
	w.mu.Lock()
	before := w.lastLogged
	w.lastLogged = *j
	w.mu.Unlock()
	if before.ID == j.ID && before.State == j.State && before.Note() == j.Note() {
		return
	}

	switch log := w.log.With("replay", j.ID, "state", j.State, "reason", j.Note()); {
	case j.State == store.JobFailed || j.State == store.JobRefused:
		log.Error("replay failed", "sent", j.Sent, "refused", j.Refused)
	case j.State.Ended():
		log.Info("replay ended", "sent", j.Sent, "skipped", j.Skipped, "refused", j.Refused)
	default:
		log.Info("replay state changed")
	}
}

// Jobs implements replay.Observer. The current job is the oldest started one, or the
// oldest waiting one if none has started.
func (w *replayObserver) Jobs(list []store.Job) {
	var s ReplayStatus
	var at *store.Job
	for i := range list {
		switch j := &list[i]; {
		case j.State.Ended():
		case j.State == store.JobPaused && j.Desired == store.DesiredPause:
			s.Paused++
		default:
			s.Waiting++
			if at == nil || j.State.Started() || !at.State.Started() {
				at = j
			}
		}
	}

	if at != nil {
		current := *at
		s.Current = &current
		s.Waiting--
	}

	w.replayStatus.Store(&s)
}

// Skipped implements replay.Observer.
func (w *replayObserver) Skipped(sink string, rows int) { w.observer.Replayed(sink, "skipped", rows) }

// ControllerFailed implements replay.Observer.
func (w *replayObserver) ControllerFailed(err error) {
	w.log.Warn("checkpoint or replay step failed; retrying", "error", err)
}

// countReplayed counts replay rows that a sink accepted or refused.
func (w *sinkObserver) countReplayed(sent, refused int) {
	w.relay.observer.Replayed(w.sink, "sent", sent)
	w.relay.observer.Replayed(w.sink, "refused", refused)
}
