package sluicebox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// activeDispatchers returns the dispatchers of the current session, or
// ErrNotLeading.
func (r *Relay) activeDispatchers() (map[string]*dispatch.Dispatcher, error) {
	lanes := r.currentDispatchers.Load()
	if lanes == nil {
		return nil, ErrNotLeading
	}
	return *lanes, nil
}

// dispatcherForOutbox returns the dispatcher that delivers the rows of an outbox.
func (r *Relay) dispatcherForOutbox(outbox string) (*dispatch.Dispatcher, error) {
	routes := r.opt.routes()
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

// RequestStore is where operators write requests for named checkpoints and replays. The
// leader carries them out.
type RequestStore interface {
	store.Requester
	store.ReplayLister
}

// Requests returns the store for requests, or ErrNotLeading. A program that does not run the
// relay uses the store of its Database.
func (r *Relay) Requests() (RequestStore, error) {
	if _, err := r.activeDispatchers(); err != nil {
		return nil, err
	}
	return r.db.store, nil
}

func unknownOutboxError(outbox string, known []string) error {
	problem := fmt.Sprintf("unknown outbox %q", outbox)
	if outbox == "" {
		problem = "outbox is required"
	}
	return &RequestError{Problem: problem + "; the outboxes are " + strings.Join(known, ", ")}
}

// ErrNotLeading is returned if this relay is not the leader, or its session has not started.
var ErrNotLeading = errors.New("this relay is not the leader; ask the leader or retry")

// RequestError is an operator's request that the relay cannot carry out as it is.
type RequestError struct {
	Problem string // the cause and the remedy
}

func (e *RequestError) Error() string { return e.Problem }

// Lanes lists the lanes of a relay and runs operator actions on them. It logs every action.
// Errors wrap ErrNotLeading, store.ErrNotLeader, dispatch.ErrNoLane, dispatch.ErrLaneState or
// a *RequestError.
type Lanes struct{ relay *Relay }

// Lanes returns the lanes of the relay.
func (r *Relay) Lanes() Lanes { return Lanes{r} }

// List returns up to limit lanes that match a filter, held and failing lanes first, and
// the number of all that match.
func (d Lanes) List(f dispatch.LaneFilter, limit int) ([]dispatch.LaneInfo, int, error) {
	if f.Outbox != "" {
		one, err := d.relay.dispatcherForOutbox(f.Outbox)
		if err != nil {
			return nil, 0, err
		}
		lanes, total := one.Lanes(f, limit)
		return lanes, total, nil
	}

	every, err := d.relay.activeDispatchers()
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

// RetryNow sends the head of a lane at once instead of at the end of its backoff.
func (d Lanes) RetryNow(lane dispatch.LaneName) error {
	return d.act("lane retried by operator", lane, "", func(to *dispatch.Dispatcher) error { return to.RetryNow(lane) })
}

// Skip marks the head of a lane FAILED and goes on behind it.
func (d Lanes) Skip(ctx context.Context, lane dispatch.LaneName, reason string) error {
	return d.act("lane head skipped by operator", lane, reason, func(to *dispatch.Dispatcher) error { return to.Skip(ctx, lane, reason) })
}

// Pause stops a lane until Resume. The pause outlives a restart.
func (d Lanes) Pause(ctx context.Context, lane dispatch.LaneName, reason string) error {
	return d.act("lane paused by operator", lane, reason, func(to *dispatch.Dispatcher) error { return to.Pause(ctx, lane, reason) })
}

// Resume ends a pause.
func (d Lanes) Resume(ctx context.Context, lane dispatch.LaneName) error {
	return d.act("lane resumed by operator", lane, "", func(to *dispatch.Dispatcher) error { return to.Resume(ctx, lane) })
}

// act runs an action on a lane and logs it if it succeeds.
func (d Lanes) act(message string, lane dispatch.LaneName, reason string, do func(*dispatch.Dispatcher) error) error {
	to, err := d.relay.dispatcherForOutbox(lane.Outbox)
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
	d.relay.log.Info(message, args...)
	return nil
}
