package app

import (
	"math"

	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// polled is the lanes of the life that runs, for the source that reads tables. It
// implements poll.Lanes.
type polled struct{ *relay }

// of returns the dispatcher of an outbox, nil while no life runs.
func (p polled) of(outbox string) *dispatch.Dispatcher {
	lanes := p.lanes.Load()
	if lanes == nil {
		return nil
	}
	return (*lanes)[p.cfg.Routes()[outbox]]
}

// Held implements poll.Lanes.
func (p polled) Held(outbox string) []string {
	if d := p.of(outbox); d != nil {
		return d.Held(outbox)
	}
	return nil
}

// Standing implements poll.Lanes.
func (p polled) Standing(outbox string) []store.LaneKey {
	if d := p.of(outbox); d != nil {
		return d.Standing(outbox)
	}
	return nil
}

// Unload implements poll.Lanes.
func (p polled) Unload(outbox string) {
	if d := p.of(outbox); d != nil {
		d.Unload(outbox)
	}
}

// Room implements poll.Lanes.
func (p polled) Room(outbox string) int {
	if d := p.of(outbox); d != nil {
		return d.Room()
	}
	return math.MaxInt
}
