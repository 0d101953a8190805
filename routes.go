package sluicebox

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// RouteName names a route of an outbox. The route of an outbox without routes is "".
type RouteName struct {
	Outbox string `json:"outbox"`
	Route  string `json:"route"`
}

// Leg returns the name of the route's leg.
func (n RouteName) Leg() string { return store.LegName(n.Outbox, n.Route) }

// String returns the name of the leg.
func (n RouteName) String() string { return n.Leg() }

// RouteStatus is the state of a route, or of an outbox without routes.
type RouteStatus struct {
	RouteName
	Sink     string
	Optional bool
	dispatch.OutboxStats
	// LogBytes is the log that was read since the saved position of the route, which a restart
	// reads again for it. nil: the database does not tell, or nothing was saved yet.
	LogBytes *int64
}

// Routes lists the routes of a relay, and pauses and resumes them. An outbox without routes has
// one, named "". It logs every action. Errors wrap ErrNotLeading, store.ErrNotLeader,
// dispatch.ErrLaneState or a *RequestError.
type Routes struct{ relay *Relay }

// Routes returns the routes of the relay.
func (r *Relay) Routes() Routes { return Routes{r} }

// List returns the routes in the order of the configuration. The time is linear in the rows in
// memory, for each route.
func (d Routes) List() ([]RouteStatus, error) {
	lanes, err := d.relay.activeDispatchers()
	if err != nil {
		return nil, err
	}
	sinks := d.relay.opt().routes()
	list := d.relay.opt().routeNames()
	session := d.relay.progress.current(time.Now())
	for i := range list {
		r := &list[i]
		r.Sink = sinks[r.Leg()]
		r.OutboxStats = lanes[r.Sink].OutboxStats(r.Leg())
		r.LogBytes = session.logBytes(r.Leg())
	}
	return list, nil
}

// logBytes returns the log that was read since the saved mark of a leg, or since the checkpoint
// for an outbox without routes; nil if unknown.
func (s *sessionStats) logBytes(leg string) *int64 {
	from := s.saved.Position
	if mark, has := s.saved.Legs[leg]; has {
		from = mark.Position
	}
	if s.distance == nil || from == "" {
		return nil
	}
	read, _ := s.lastRead()
	bytes, known := s.distance.Distance(from, read)
	if !known {
		return nil
	}
	return &bytes
}

// routeNames returns the configured routes, without their state.
func (o *Options) routeNames() (list []RouteStatus) {
	for _, box := range o.tables() {
		if len(box.Routes) == 0 {
			list = append(list, RouteStatus{RouteName: RouteName{Outbox: box.Name}})
		}
		for _, route := range box.Routes {
			list = append(list, RouteStatus{RouteName: RouteName{box.Name, route.Name}, Optional: route.Optional})
		}
	}
	return list
}

// Pause stops all lanes of a route until Resume: they claim nothing and begin no request. The
// pause outlives a restart. Other routes go on.
func (d Routes) Pause(ctx context.Context, route RouteName, reason string) error {
	return d.act("route paused by operator", route, reason, func(to *dispatch.Dispatcher) error {
		return to.PauseOutbox(ctx, route.Leg(), reason)
	})
}

// Resume ends a pause. Lanes that were paused one by one stay paused.
func (d Routes) Resume(ctx context.Context, route RouteName) error {
	return d.act("route resumed by operator", route, "", func(to *dispatch.Dispatcher) error {
		return to.ResumeOutbox(ctx, route.Leg())
	})
}

// Skip passes over all rows that wait for a route, and returns their number; see
// dispatch.Dispatcher.SkipOutbox.
func (d Routes) Skip(route RouteName, reason string) (rows int, err error) {
	err = d.act("waiting rows of route skipped by operator", route, reason, func(to *dispatch.Dispatcher) (err error) {
		rows, err = to.SkipOutbox(route.Leg(), reason)
		return err
	})
	return rows, err
}

// act runs an action on a route and logs it if it succeeds.
func (d Routes) act(message string, route RouteName, reason string, do func(*dispatch.Dispatcher) error) error {
	if err := d.relay.opt().checkRoute(route); err != nil {
		return err
	}
	to, err := d.relay.dispatcherForOutbox(route.Leg())
	if err != nil {
		return err
	}
	if err := do(to); err != nil {
		return fmt.Errorf("route %s: %w", route, err)
	}
	args := []any{"outbox", route.Outbox, "route", route.Route}
	if reason != "" {
		args = append(args, "reason", reason)
	}
	d.relay.log.Info(message, args...)
	return nil
}

// checkRoute returns a *RequestError if there is no such route.
func (o *Options) checkRoute(route RouteName) error {
	var outboxes, routes []string
	for _, r := range o.routeNames() {
		if r.RouteName == route {
			return nil
		}
		outboxes = append(outboxes, r.Outbox)
		if r.Outbox == route.Outbox {
			routes = append(routes, r.Route)
		}
	}
	switch {
	case len(routes) == 0:
		return unknownOutboxError(route.Outbox, slices.Compact(outboxes))
	case routes[0] == "":
		return &RequestError{Problem: fmt.Sprintf("outbox %q has no routes; omit the route", route.Outbox)}
	case route.Route == "":
		return &RequestError{Problem: fmt.Sprintf("outbox %q has several routes; name one: %s", route.Outbox, strings.Join(routes, ", "))}
	}
	return &RequestError{Problem: fmt.Sprintf("outbox %q has no route %q; its routes are %s", route.Outbox, route.Route, strings.Join(routes, ", "))}
}

// LagSeconds returns the age of the oldest row in memory; nil if there is none.
func (r *RouteStatus) LagSeconds(now time.Time) *float64 {
	if r.Oldest.IsZero() {
		return nil
	}
	age := max(0, now.Sub(r.Oldest)).Seconds()
	return &age
}
