package app

import (
	"sync"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// desk returns what makes named checkpoints and runs replays in a life.
func (r *relay) desk(epoch store.Epoch, lanes map[string]*dispatch.Dispatcher) *replay.Desk {
	sinks := make(map[string]replay.Sink, len(lanes))
	for name, d := range lanes {
		sinks[name] = replay.Sink{Lanes: d, Config: r.cfg.Dispatch(name)}
	}
	return &replay.Desk{
		Store: r.db.store, Epoch: epoch, Outboxes: r.cfg.Outboxes(), Sinks: sinks, Routes: r.cfg.Routes(),
		Keeper: r.db.keeper, MaxKept: int64(r.cfg.Settings.Checkpoint.MaxKept), Wished: r.wished, Observer: &deskWatch{relay: r},
	}
}

// deskWatch observes the desk: it counts and logs what an operator must know.
type deskWatch struct {
	*relay

	mu   sync.Mutex
	last store.Job // as it was logged
}

// Named implements replay.Observer.
func (w *deskWatch) Named(n *store.Named) {
	switch n.State {
	case store.NamedMade, store.NamedKept:
		w.log.Info("a checkpoint was made", "checkpoint", n.Name, "position", n.Position, "log kept", n.State == store.NamedKept)
	case store.NamedRefused:
		w.log.Warn("a checkpoint could not be made", "checkpoint", n.Name, "reason", n.Why)
	case store.NamedDropped:
		w.metrics.KeptDropped(n.Name)
		w.log.Error("the log that was kept for a checkpoint is lost; a replay from it reads the table", "checkpoint", n.Name, "reason", n.Why)
	}
}

// Kept implements replay.Observer.
func (w *deskWatch) Kept(list []capture.KeptLog) { w.metrics.Kept(list) }

// Job implements replay.Observer.
func (w *deskWatch) Job(j *store.Job) {
	w.metrics.Replay(j)
	w.mu.Lock()
	before := w.last
	w.last = *j
	w.mu.Unlock()
	if before.ID == j.ID && before.State == j.State && before.Why == j.Why {
		return
	}
	switch log := w.log.With("replay", j.ID, "state", j.State, "reason", j.Why); {
	case j.State == store.JobFailed || j.State == store.JobRefused:
		log.Error("a replay cannot be finished", "sent", j.Sent, "refused", j.Refused)
	case j.State.Ended():
		log.Info("a replay has ended", "sent", j.Sent, "skipped", j.Skipped, "refused", j.Refused)
	default:
		log.Info("a replay")
	}
}

// Jobs implements replay.Observer. The desk is at the oldest one that has begun, else it
// is about to begin with the oldest.
func (w *deskWatch) Jobs(list []store.Job) {
	var s admin.ReplayStatus
	var at *store.Job
	for i := range list {
		switch j := &list[i]; {
		case j.State.Ended():
		case j.State == store.JobPaused && j.Wish == store.WishPause:
			s.Paused++
		default:
			s.Waiting++
			if at == nil || j.State.Begun() || !at.State.Begun() {
				at = j
			}
		}
	}
	if at != nil {
		current := admin.ReplayOf(at)
		s.Current = &current
		s.Waiting--
	}
	w.replays.Store(&s)
}

// Skipped implements replay.Observer.
func (w *deskWatch) Skipped(sink string, rows int) { w.metrics.Replayed(sink, "skipped", rows) }

// DeskFailed implements replay.Observer.
func (w *deskWatch) DeskFailed(err error) {
	w.log.Warn("checkpoints and replays are tried again", "error", err)
}

// replayed counts rows that a sink took or refused for a replay.
func (w *sinkWatch) replayed(sent, refused int) {
	w.relay.metrics.Replayed(w.sink, "sent", sent)
	w.relay.metrics.Replayed(w.sink, "refused", refused)
}
