package sluicebox

import (
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/checkpoint"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// Observer receives the measurements of a relay, for example to export them as metrics.
// Several goroutines call its methods, which must return at once.
type Observer interface {
	LeadershipObserver
	SourceObserver
	LogObserver
	ReplayObserver

	// Sink returns the observer of a sink. It returns the same for each call with a name.
	Sink(name string) SinkObserver
}

// LeadershipObserver receives changes of leadership.
type LeadershipObserver interface {
	// SetLeader: this relay leads, in this epoch.
	SetLeader(epoch store.Epoch)

	// SetStandby: this relay does not lead.
	SetStandby()

	// ClaimsMode: this leader claims rows in this mode.
	ClaimsMode(mode ClaimsMode)
}

// SourceObserver receives the events of capture.
type SourceObserver interface {
	capture.Observer

	// Mode: rows are captured in this mode from now on.
	Mode(mode Mode)

	// Captured: n rows of an outbox were read.
	Captured(outbox string, n int)

	// Swept: a sweep found rows that were reset to PENDING without an insert.
	Swept(rows int)
}

// LogObserver receives the state of the log and of the checkpoint.
type LogObserver interface {
	checkpoint.Observer

	// Paused reports whether capture is paused because the buffers of the sinks are full.
	Paused(paused bool)

	// Retained reports the bytes of log that the database retains, and their limit.
	Retained(bytes, limit int64)

	// LogLost: the log, or the position in it, was lost or became unreadable.
	LogLost()
}

// ReplayObserver receives the events of replays and named checkpoints.
type ReplayObserver interface {
	// Replayed: rows of a replay are finished. outcome is sent, refused or skipped.
	Replayed(sink, outcome string, rows int)

	// Replay reports the present state of a replay.
	Replay(job *store.Job)

	// LogsRetained reports the log that the database retains for named checkpoints.
	LogsRetained(list []capture.RetainedSlot)

	// SavepointLogDropped: a named checkpoint lost its log.
	SavepointLogDropped(checkpoint string)
}

// SinkObserver receives the events of one sink.
type SinkObserver interface {
	dispatch.Observer

	// SetOpen reports whether the sink is open or could not be opened.
	SetOpen(open bool)

	// Counted: a sink that counts rows got some of a kind and a type; see sink.Reporter.
	Counted(kind, typ string, rows int)
}

// noObserver observes nothing.
type noObserver struct{}

func (noObserver) SetLeader(store.Epoch)               {}
func (noObserver) SetStandby()                         {}
func (noObserver) ClaimsMode(ClaimsMode)               {}
func (noObserver) Connected()                          {}
func (noObserver) Disconnected(error, time.Duration)   {}
func (noObserver) Mode(Mode)                           {}
func (noObserver) Captured(string, int)                {}
func (noObserver) Swept(int)                           {}
func (noObserver) Saved(store.Checkpoint)              {}
func (noObserver) SaveFailed(error)                    {}
func (noObserver) Paused(bool)                         {}
func (noObserver) Retained(int64, int64)               {}
func (noObserver) LogLost()                            {}
func (noObserver) Replayed(string, string, int)        {}
func (noObserver) Replay(*store.Job)                   {}
func (noObserver) LogsRetained([]capture.RetainedSlot) {}
func (noObserver) SavepointLogDropped(string)          {}
func (noObserver) Sink(string) SinkObserver            { return noSinkObserver{} }

// noSinkObserver observes nothing.
type noSinkObserver struct{}

func (noSinkObserver) Claimed(store.ClaimResult, int)                              {}
func (noSinkObserver) Requested(dispatch.RequestInfo, *sink.Result, time.Duration) {}
func (noSinkObserver) BreakersChanged([]dispatch.OpenBreaker)                      {}
func (noSinkObserver) Stalled(*dispatch.LaneInfo)                                  {}
func (noSinkObserver) Settled(*store.Item, *store.Outcome)                         {}
func (noSinkObserver) Vanished([]*store.Item)                                      {}
func (noSinkObserver) StoreFailed(string, error)                                   {}
func (noSinkObserver) RowsSpilled(int)                                             {}
func (noSinkObserver) RowUnspillable(*store.Item, error)                           {}
func (noSinkObserver) UnspillableCleared()                                         {}
func (noSinkObserver) Refused(store.Ref, string, error)                            {}
func (noSinkObserver) SetOpen(bool)                                                {}
func (noSinkObserver) Counted(string, string, int)                                 {}
