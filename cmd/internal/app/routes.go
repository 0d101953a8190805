package app

import (
	"context"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/store"
)

// routes implements admin.Routes.
type routes struct{ program *program }

// List implements admin.Routes.
func (r routes) List(ctx context.Context, failed bool) ([]admin.Route, error) {
	list, err := r.program.routes.List()
	if err != nil {
		return nil, err
	}
	var counts []admin.FailedRows
	if failed {
		counts = r.program.countFailed(ctx, r.program.relay.Status().Epoch)
	}
	return routesOf(list, counts, time.Now()), nil
}

// routesOf returns routes as the API shows them, with their FAILED rows as far as counted.
func routesOf(list []sluicebox.RouteStatus, counts []admin.FailedRows, now time.Time) []admin.Route {
	shown := make([]admin.Route, len(list))
	for i := range list {
		shown[i] = admin.RouteOf(&list[i], now)
		at := slices.IndexFunc(counts, func(f admin.FailedRows) bool { return f.Outbox == list[i].Leg() })
		if at >= 0 {
			shown[i].Failed = counts[at].Rows
		}
	}
	return shown
}

// legNames returns the names under which FAILED rows are counted: of outboxes, or of their legs.
func legNames(outboxes []store.Outbox) (names []string) {
	for i := range outboxes {
		if legs := outboxes[i].SpilledAs(); len(legs) > 1 {
			names = append(names, legs[1:]...)
		} else {
			names = append(names, legs...)
		}
	}
	slices.Sort(names)
	return names
}

// shownRoutes returns the routes for a status: none unless an outbox has routes or is paused.
func shownRoutes(list []sluicebox.RouteStatus, counts []admin.FailedRows, now time.Time) []admin.Route {
	if !slices.ContainsFunc(list, func(r sluicebox.RouteStatus) bool { return r.Route != "" || r.Pause != nil }) {
		return []admin.Route{}
	}
	return routesOf(list, counts, now)
}

// Pause implements admin.Routes.
func (r routes) Pause(ctx context.Context, route sluicebox.RouteName, reason string) error {
	return r.program.routes.Pause(ctx, route, reason)
}

// Resume implements admin.Routes.
func (r routes) Resume(ctx context.Context, route sluicebox.RouteName) error {
	return r.program.routes.Resume(ctx, route)
}

// Skip implements admin.Routes.
func (r routes) Skip(_ context.Context, route sluicebox.RouteName, reason string) (int, error) {
	defer r.program.metrics.failedChanges.Add(1)
	return r.program.routes.Skip(route, reason)
}

// Retry implements admin.Routes.
func (r routes) Retry(ctx context.Context, route sluicebox.RouteName) (rows int, err error) {
	f := store.DeadLetterFilter{Outbox: route.Leg()}
	left, err := r.program.deadLetters.Count(ctx, f)
	for err == nil && rows < left {
		var n int
		if n, err = r.program.deadLetters.Requeue(ctx, f, min(admin.MaxDeadLetters, left-rows)); n == 0 {
			break
		}
		rows += n
	}
	return rows, err
}
