package app

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/dispatch"
)

// activeDispatchers returns the dispatchers of the current session, or
// admin.ErrNotLeading.
func (r *relay) activeDispatchers() (map[string]*dispatch.Dispatcher, error) {
	lanes := r.currentDispatchers.Load()
	if lanes == nil {
		return nil, admin.ErrNotLeading
	}
	return *lanes, nil
}

// dispatcherForOutbox returns the dispatcher that delivers the rows of an outbox.
func (r *relay) dispatcherForOutbox(outbox string) (*dispatch.Dispatcher, error) {
	routes := r.cfg.Routes()
	sink, known := routes[outbox]
	if !known {
		return nil, unknownOutboxError(outbox, slices.Sorted(maps.Keys(routes)))
	}
	lanes, err := r.activeDispatchers()
	if err != nil {
		return nil, err
	}
	return lanes[sink], nil
}

func unknownOutboxError(outbox string, known []string) error {
	problem := fmt.Sprintf("unknown outbox %q", outbox)
	if outbox == "" {
		problem = "outbox is required"
	}
	return &admin.RequestError{Problem: problem + "; the outboxes are " + strings.Join(known, ", ")}
}

// laneController lists lanes and runs operator actions on them. It logs every action.
type laneController struct{ *relay }

// List implements admin.Lanes.
func (d laneController) List(f dispatch.LaneFilter, limit int) ([]dispatch.LaneInfo, int, error) {
	if f.Outbox != "" {
		one, err := d.dispatcherForOutbox(f.Outbox)
		if err != nil {
			return nil, 0, err
		}
		lanes, total := one.Lanes(f, limit)
		return lanes, total, nil
	}

	every, err := d.activeDispatchers()
	if err != nil {
		return nil, 0, err
	}

	var all []dispatch.LaneInfo
	total := 0
	for _, sink := range slices.Sorted(maps.Keys(every)) {
		lanes, n := every[sink].Lanes(f, limit)
		all, total = append(all, lanes...), total+n
	}

	slices.SortFunc(all, dispatch.CompareLanes)
	return all[:min(limit, len(all))], total, nil
}

// RetryNow implements admin.Lanes.
func (d laneController) RetryNow(lane dispatch.LaneName) error {
	return d.act("lane retried by operator", lane, "", func(to *dispatch.Dispatcher) error { return to.RetryNow(lane) })
}

// Skip implements admin.Lanes.
func (d laneController) Skip(ctx context.Context, lane dispatch.LaneName, reason string) error {
	return d.act("lane head skipped by operator", lane, reason, func(to *dispatch.Dispatcher) error { return to.Skip(ctx, lane, reason) })
}

// Pause implements admin.Lanes.
func (d laneController) Pause(ctx context.Context, lane dispatch.LaneName, reason string) error {
	return d.act("lane paused by operator", lane, reason, func(to *dispatch.Dispatcher) error { return to.Pause(ctx, lane, reason) })
}

// Resume implements admin.Lanes.
func (d laneController) Resume(ctx context.Context, lane dispatch.LaneName) error {
	return d.act("lane resumed by operator", lane, "", func(to *dispatch.Dispatcher) error { return to.Resume(ctx, lane) })
}

// act runs an action on a lane and logs it if it succeeds.
func (d laneController) act(message string, lane dispatch.LaneName, reason string, do func(*dispatch.Dispatcher) error) error {
	to, err := d.dispatcherForOutbox(lane.Outbox)
	if err != nil {
		return err
	}

	if err := do(to); err != nil {
		return err
	}
	args := []any{"outbox", lane.Outbox, "kind", lane.Kind, "group", lane.Group.String()}
	if lane.RowID != "" {
		args = append(args, "id", lane.RowID)
	}

	if reason != "" {
		args = append(args, "reason", reason)
	}
	d.log.Info(message, args...)
	return nil
}
