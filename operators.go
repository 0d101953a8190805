package sluicebox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/legs"
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
	routes := r.opt().routes()
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

// outbox returns a configured outbox or leg.
func (r *Relay) outbox(name string) *store.Outbox {
	outboxes := store.WithLegs(r.opt().tables())
	return &outboxes[slices.IndexFunc(outboxes, func(o store.Outbox) bool { return o.Name == name })]
}

// RequestStore is where operators write requests for named checkpoints and replays, which the
// leader carries out, and where their actions are logged.
type RequestStore interface {
	store.Requester
	store.ReplayLister
	store.ActionLog
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
	if o := d.relay.outbox(lane.Outbox); o.Layout.Columns.Kind == "" && lane.Kind != o.Kind {
		return &RequestError{Problem: fmt.Sprintf("no lane of outbox %q has the kind %q: its lanes have the kind %q", o.Name, lane.Kind, o.Kind)}
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

// DeadLetters lists the FAILED rows of a relay and acts on them through the dispatchers,
// because these know which lanes the rows block. It logs every action. Errors wrap
// ErrNotLeading, store.ErrNotLeader or a *RequestError.
type DeadLetters struct{ relay *Relay }

// DeadLetters returns the FAILED rows of the relay.
func (r *Relay) DeadLetters() DeadLetters { return DeadLetters{r} }

// Count returns the number of FAILED rows that match a filter.
func (d DeadLetters) Count(ctx context.Context, f store.DeadLetterFilter) (int, error) {
	if _, err := d.dispatcherForFilter(&f); err != nil {
		return 0, err
	}
	return d.relay.db.store.CountFailed(ctx, f)
}

// List returns up to limit FAILED rows that match a filter, with their payloads if asked for.
func (d DeadLetters) List(ctx context.Context, f store.DeadLetterFilter, limit int, payload bool) ([]store.DeadLetter, error) {
	if _, err := d.dispatcherForFilter(&f); err != nil {
		return nil, err
	}
	return d.relay.db.store.Failed(ctx, f, limit, payload)
}

// dispatcherForFilter returns the dispatcher for the rows of a filter, or an error if the
// filter is not valid for its outbox. If a dispatcher exists, the database is open.
func (d DeadLetters) dispatcherForFilter(f *store.DeadLetterFilter) (*dispatch.Dispatcher, error) {
	to, err := d.relay.dispatcherForOutbox(f.Outbox)
	if err != nil {
		return nil, err
	}
	if err := f.Validate(d.relay.outbox(f.Outbox)); err != nil {
		return nil, &RequestError{Problem: err.Error()}
	}
	return to, nil
}

// Requeue resets up to limit FAILED rows to PENDING and sends them again. It returns their
// number, also with an error. A polling source finds the rows in the table by
// itself.
func (d DeadLetters) Requeue(ctx context.Context, f store.DeadLetterFilter, limit int) (int, error) {
	return d.act("dead letters requeued by operator", f, func(to *dispatch.Dispatcher) (int, error) {
		return to.Requeue(ctx, f, limit, !d.relay.isPolling.Load())
	})
}

// Discard marks up to limit FAILED rows as delivered without sending them. It returns their
// number, also with an error.
func (d DeadLetters) Discard(ctx context.Context, f store.DeadLetterFilter, limit int) (int, error) {
	return d.act("dead letters discarded by operator", f, func(to *dispatch.Dispatcher) (int, error) { return to.Discard(ctx, f, limit) })
}

// act runs an action on rows of an outbox and logs the number of rows it changed, also
// after a partial failure.
func (d DeadLetters) act(message string, f store.DeadLetterFilter, do func(*dispatch.Dispatcher) (int, error)) (int, error) {
	to, err := d.dispatcherForFilter(&f)
	if err != nil {
		return 0, err
	}
	n, err := do(to)
	if n > 0 {
		d.relay.log.Info(message, "outbox", f.Outbox, "rows", n)
	}
	return n, err
}

// pollLanes gives the polling source access to the lanes of the current session. It
// implements poll.Lanes.
//
// The legs of an outbox with routes differ: a row that does not move in one leg moves in another.
// So none of their lanes is excluded or unloaded. A leg that does not move spills its rows instead.
type pollLanes struct {
	*Relay

	// heldBefore are the rows of outboxes with routes that lanes held before the present view was
	// opened. A row that has left since shows as unsettled in the view, and no claim tells an
	// optional leg that it is done.
	heldBefore map[string][]string

	join *legs.Store // of the session; nil without routes
}

// pollViewer opens the views of a polling source.
type pollViewer struct {
	store.Viewer
	lanes *pollLanes
}

// View implements store.Viewer.
func (v pollViewer) View(ctx context.Context, snapshot string) (store.View, error) {
	v.lanes.heldBefore = nil
	for i := range v.lanes.opt().Outboxes {
		if box := &v.lanes.opt().Outboxes[i]; len(box.Routes) > 0 {
			if v.lanes.heldBefore == nil {
				v.lanes.heldBefore = map[string][]string{}
			}
			v.lanes.heldBefore[box.Name] = v.lanes.heldByLegs(box)
		}
	}
	view, err := v.Viewer.View(ctx, snapshot)
	if v.lanes.join == nil || err != nil {
		return view, err
	}
	return legView{view, func(_ context.Context, outbox string) ([]string, error) { return v.lanes.join.Missing(outbox), nil }}, nil
}

// routed returns an outbox with routes; nil if the outbox has none.
func (p *pollLanes) routed(outbox string) *Outbox {
	for i := range p.opt().Outboxes {
		if box := &p.opt().Outboxes[i]; box.Name == outbox && len(box.Routes) > 0 {
			return box
		}
	}
	return nil
}

// heldByLegs returns the ids of the rows that a lane of any leg holds.
func (p *pollLanes) heldByLegs(box *Outbox) []string {
	lanes := map[string]*dispatch.Dispatcher{}
	for _, r := range box.StoreOutbox().Routes {
		leg := store.LegName(box.Name, r.Name)
		lanes[leg] = p.dispatcher(leg)
	}
	return heldBy(lanes)
}

// dispatcher returns the dispatcher of an outbox or a leg, or nil between sessions.
func (p *pollLanes) dispatcher(outbox string) *dispatch.Dispatcher {
	lanes := p.currentDispatchers.Load()
	if lanes == nil {
		return nil
	}
	return (*lanes)[p.opt().routes()[outbox]]
}

// Held implements poll.Lanes. A row that is missing a leg is not held, although the leg that has spilled
// it may have read it back: the other leg is to get it.
func (p *pollLanes) Held(outbox string) []string {
	if box := p.routed(outbox); box != nil {
		held := append(p.heldByLegs(box), p.heldBefore[outbox]...)
		if p.join == nil {
			return held
		}
		missing := map[string]bool{}
		for _, id := range p.join.Missing(outbox) {
			missing[id] = true
		}
		return slices.DeleteFunc(held, func(id string) bool { return missing[id] })
	}
	if d := p.dispatcher(outbox); d != nil {
		return d.Held(outbox)
	}
	return nil
}

// ExcludedLanes implements poll.Lanes.
func (p *pollLanes) ExcludedLanes(outbox string) []store.LaneKey {
	if d := p.dispatcher(outbox); d != nil {
		return d.ExcludedLanes(outbox)
	}
	return nil
}

// Unload implements poll.Lanes.
func (p *pollLanes) Unload(outbox string) {
	if d := p.dispatcher(outbox); d != nil {
		d.Unload(outbox)
	}
}

// Room implements poll.Lanes. A leg without room spills rows, so another leg's room counts.
func (p *pollLanes) Room(outbox string) int {
	if box := p.routed(outbox); box != nil {
		room := math.MinInt
		for _, r := range box.StoreOutbox().Routes {
			if d := p.dispatcher(store.LegName(box.Name, r.Name)); d != nil && r.Name != unmatchedRoute {
				room = max(room, d.Room())
			}
		}
		if room > math.MinInt {
			return room
		}
		return math.MaxInt
	}
	if d := p.dispatcher(outbox); d != nil {
		return d.Room()
	}
	return math.MaxInt
}
