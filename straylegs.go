package sluicebox

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// refuseStrayLegs returns a *store.SetupError if the relay's tables know legs that the
// configuration does not name: their rows would wait unseen, and hold their status. Only the
// leader asks, because a standby may have a newer configuration than the leader.
func (r *Relay) refuseStrayLegs(ctx context.Context) error {
	var strays []store.StrayLeg
	err := r.retryUnreachable(ctx, time.Time{}, func(ctx context.Context) (err error) {
		strays, err = r.db.store.StrayLegs(ctx)
		return err
	})
	if err != nil || len(strays) == 0 {
		return err
	}
	problems, remedies := make([]string, len(strays)), make([]string, len(strays))
	for i := range strays {
		s := &strays[i]
		problems[i] = fmt.Sprintf("%s (%d spilled and %d FAILED rows, %d groups on hold)", s.Leg(), s.Spilled, s.Failed, s.Holds)
		name := s.Route
		if name == "" {
			name = "--unrouted"
		}
		remedies[i] = fmt.Sprintf("sluicebox routes rename --outbox %s %s NEW, or sluicebox routes drop --outbox %s %s", s.Outbox, name, s.Outbox, name)
	}
	return &store.SetupError{
		Problem: "routes that the configuration does not name have rows or a position: " + strings.Join(problems, ", "),
		Remedy:  "configure them again, or stop the relay and run: " + strings.Join(remedies, "; "),
	}
}
