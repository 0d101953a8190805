package sluicebox

import (
	"math"

	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// pollLanes gives the polling source access to the lanes of the current session. It
// implements poll.Lanes.
type pollLanes struct{ *Relay }

// dispatcher returns the dispatcher of an outbox, or nil between sessions.
func (p pollLanes) dispatcher(outbox string) *dispatch.Dispatcher {
	lanes := p.currentDispatchers.Load()
	if lanes == nil {
		return nil
	}
	return (*lanes)[p.opt.routes()[outbox]]
}

// Held implements poll.Lanes.
func (p pollLanes) Held(outbox string) []string {
	if d := p.dispatcher(outbox); d != nil {
		return d.Held(outbox)
	}
	return nil
}

// ExcludedLanes implements poll.Lanes.
func (p pollLanes) ExcludedLanes(outbox string) []store.LaneKey {
	if d := p.dispatcher(outbox); d != nil {
		return d.ExcludedLanes(outbox)
	}
	return nil
}

// Unload implements poll.Lanes.
func (p pollLanes) Unload(outbox string) {
	if d := p.dispatcher(outbox); d != nil {
		d.Unload(outbox)
	}
}

// Room implements poll.Lanes.
func (p pollLanes) Room(outbox string) int {
	if d := p.dispatcher(outbox); d != nil {
		return d.Room()
	}
	return math.MaxInt
}
