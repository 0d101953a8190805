package sluicebox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

// refuseStrayLegs returns a *store.SetupError if the relay's tables know legs that the
// configuration does not name: their rows would wait unseen, and hold their status. Only the
// leader asks, because a standby may have a newer configuration than the leader.
func (r *Relay) refuseStrayLegs(ctx context.Context) error {
	var strays []store.StrayLeg
	err := r.readPatiently(ctx, func(ctx context.Context) (err error) {
		strays, err = r.db.store.StrayLegs(ctx)
		return err
	})
	if err != nil {
		return err
	}
	if len(strays) == 0 {
		return r.reportRemovedOutboxes(ctx)
	}
	problems, remedies := make([]string, len(strays)), make([]string, len(strays))
	for i := range strays {
		s := &strays[i]
		problems[i] = fmt.Sprintf("%s (%d spilled and %d FAILED rows, %d groups on hold)", s.Leg(), s.Spilled, s.Failed, s.Holds)
		remedies[i] = strayRemedy(s.Outbox, s.Route)
	}
	return &store.SetupError{
		Problem: "routes that the configuration does not name have rows or a position: " + strings.Join(problems, ", "),
		Remedy:  "configure them again; " + strings.Join(remedies, "; "),
	}
}

// reportRemovedOutboxes logs the outboxes whose routes have a saved position and which are not
// configured: the next checkpoint is saved without them, and a route that comes back starts at it.
func (r *Relay) reportRemovedOutboxes(ctx context.Context) error {
	var cp store.Checkpoint
	err := r.readPatiently(ctx, func(ctx context.Context) (err error) {
		if cp, err = r.db.store.LoadCheckpoint(ctx); errors.Is(err, store.ErrNoCheckpoint) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	configured := map[string]bool{}
	for _, name := range r.opt().routeNames() {
		configured[name.Outbox] = true
	}
	removed := map[string]bool{}
	for leg := range cp.Legs {
		if outbox, _ := store.SplitLegName(leg); !configured[outbox] {
			removed[outbox] = true
		}
	}
	if len(removed) > 0 {
		r.log.Warn("positions of removed outboxes dropped", "outboxes", slices.Sorted(maps.Keys(removed)))
	}
	return nil
}

// strayRemedy names the commands that move what waits for a leg, or give it up. They need the
// outbox in the configuration.
func strayRemedy(outbox, route string) string {
	if route == "" {
		route = "--unrouted"
	}
	return fmt.Sprintf("or stop the relay and run sluicebox routes rename --outbox %[1]s %[2]s NEW, or sluicebox routes drop --outbox %[1]s %[2]s", outbox, route)
}
