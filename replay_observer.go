package sluicebox

import (
	"sync"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// newSessionController returns the controller that creates named checkpoints and runs
// replays during a session.
func (r *Relay) newSessionController(epoch store.Epoch, lanes map[string]*dispatch.Dispatcher, log *replay.Log) *replay.Controller {
	sinks := make(map[string]replay.Sink, len(lanes))
	for name, d := range lanes {
		sinks[name] = replay.Sink{Lanes: d, Config: r.opt.Sinks[name].Dispatch}
	}
	return replay.New(replay.Options{
		Store: r.db.store, Epoch: epoch, Outboxes: r.opt.tables(), Sinks: sinks, Routes: r.opt.routes(), Log: log,
		OpenRetainer: r.db.newSlotRetainer, MaxRetainedBytes: r.opt.MaxKept, RequestsChanged: r.requested, Observer: &replayObserver{Relay: r},
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
