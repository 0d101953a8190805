package sluicebox

import (
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// Status is the state of a relay at one time. A zero value means unknown, or not applicable
// on a standby.
type Status struct {
	// Holder identifies this process.
	Holder string

	// Leads reports whether this relay is the leader, Epoch its latest epoch.
	Leads bool
	Epoch store.Epoch

	// Leader is the holder of the leader, as far as it is known.
	Leader string

	// Mode is "" between sessions; the fields below are zero then.
	Mode Mode

	// SourceDetail describes the source and the reason for it.
	SourceDetail string
	Connected    bool
	Paused       bool           // because the buffers of the sinks are full
	Position     store.Position // the latest that was read
	LastReceived time.Time      // the last message of the source

	// Retained is the log that the database retains for the relay. Above RetainedLimit the
	// relay spills rows. The limit is 0 without a log, or before the first check.
	Retained      capture.RetainedLog
	RetainedLimit int64
	Checkpoint    store.Checkpoint
	SavedAt       time.Time // zero: this leader saved none yet

	// Sinks are the sinks of a session, by name. nil: there is no session.
	Sinks   map[string]SinkStatus
	Replays ReplayStatus
}

// SinkStatus is the state of a sink.
type SinkStatus struct {
	dispatch.Stats

	// Refused counts the rows that the table of an outbox refuses, by outbox.
	Refused map[string]int
}

// ReplayStatus summarizes the replay jobs.
type ReplayStatus struct {
	// Current is the oldest started job, or the oldest waiting one if none has started. nil:
	// there is none.
	Current *store.Job
	Waiting int // further jobs
	Paused  int
}

// Status returns the state of the relay. The time is linear in the rows in memory.
func (r *Relay) Status() Status {
	leads, _ := r.Leader()
	s := Status{Holder: r.opt.Holder, Leads: leads}
	if leads {
		s.Epoch, s.Leader = store.Epoch(r.epoch.Load()), r.opt.Holder
	} else if other := r.otherLeader.Load(); other != nil {
		s.Leader = *other
	}

	p := r.progress.current(time.Now())
	s.Position, s.LastReceived = p.lastRead()
	s.Mode, s.SourceDetail, s.Connected, s.Paused = p.mode, p.sourceDetail, p.connected, p.isPaused()
	s.Retained, s.RetainedLimit, s.Checkpoint, s.SavedAt = p.retained, p.retainedLimit, p.saved, p.savedAt
	if jobs := r.replayStatus.Load(); jobs != nil {
		s.Replays = *jobs
	}

	if lanes := r.currentDispatchers.Load(); lanes != nil {
		s.Sinks = make(map[string]SinkStatus, len(*lanes))
		for name, d := range *lanes {
			_, refused, _ := d.RefusedRows(0)
			s.Sinks[name] = SinkStatus{Stats: d.Stats(), Refused: refused}
		}
	}
	return s
}

// Ping calls every dispatcher and returns once all have answered. If one is deadlocked, Ping
// does not return. So a watchdog can detect it.
func (r *Relay) Ping() {
	if lanes := r.currentDispatchers.Load(); lanes != nil {
		for _, d := range *lanes {
			d.Room()
		}
	}
}
