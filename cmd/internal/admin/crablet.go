package admin

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Aliases of the routes for tools that manage the publishers of Crablet:
//
//   - a publisher is a sink, and a topic is a route, or an outbox without routes
//   - a processor is TOPIC:PUBLISHER
//   - a name may stand for several routes: an action is for all of them
//
// The responses have the shapes that such tools read.

const (
	publishersPath = "/api/outbox/publishers"
	processorsPath = "/api/processors"
	// aliasReason is recorded for a pause, because these requests have none.
	aliasReason = "paused through the API of publishers"
)

// errNoRoute is returned for an alias that names no route.
var errNoRoute = errors.New("route not found")

// publisherStatus is the state of the routes to a publisher.
type publisherStatus struct {
	Publisher   string     `json:"publisherName"`
	Topic       string     `json:"topic"`
	Status      string     `json:"status"` // ACTIVE, PAUSED, or FAILED if a FAILED row blocks a lane
	Position    store.Seq  `json:"lastPosition"`
	PublishedAt *time.Time `json:"lastPublishedAt"`
	Errors      int        `json:"errorCount"` // FAILED rows
	LastError   *string    `json:"lastError"`
	UpdatedAt   time.Time  `json:"updatedAt"`
}

// backoffStatus is the backoff of a poll without rows. A relay has none.
type backoffStatus struct {
	EmptyPolls int `json:"emptyPollCount"`
	Skips      int `json:"currentSkipCounter"`
}

// topicOf returns the topic of a route.
func topicOf(r *Route) string {
	if r.Route != "" {
		return r.Route
	}
	return r.Outbox
}

func processorOf(r *Route) string { return topicOf(r) + ":" + r.Sink }

// statusOf returns the state of a route in the words of an alias.
func statusOf(r *Route) string {
	switch {
	case !r.Since.IsZero():
		return "PAUSED"
	case r.BlockedLanes > 0:
		return "FAILED"
	}
	return "ACTIVE"
}

// worst returns the state of routes together.
func worst(list []Route) string {
	states := map[string]bool{}
	for i := range list {
		states[statusOf(&list[i])] = true
	}
	switch {
	case states["FAILED"]:
		return "FAILED"
	case states["PAUSED"]:
		return "PAUSED"
	}
	return "ACTIVE"
}

// alias answers requests for the routes of a path.
type alias struct {
	handler *handler
	mux     *http.ServeMux
	routes  Routes
	status  Reporter
}

// crabletEndpoints serves the aliases. status may be nil.
func (h *handler) crabletEndpoints(mux *http.ServeMux, of Routes, status Reporter) {
	a := &alias{h, mux, of, status}
	every := func(*http.Request, *Route) bool { return true }
	publisher := func(r *http.Request, route *Route) bool { return r.PathValue("publisher") == route.Sink }
	pair := func(r *http.Request, route *Route) bool {
		return publisher(r, route) && r.PathValue("topic") == topicOf(route)
	}
	processor := func(r *http.Request, route *Route) bool { return r.PathValue("id") == processorOf(route) }

	a.get(publishersPath, every, func(_ context.Context, list []Route) any {
		all := make([]publisherStatus, len(list))
		for i := range list {
			all[i] = publisherOf(list[i : i+1])
		}
		return all
	})
	a.get(publishersPath+"/lag", every, lagBy(func(r *Route) string { return r.Sink }))
	a.get(publishersPath+"/backoff", every, backoffBy(processorOf))
	a.get(publishersPath+"/leaders", every, a.leaders)
	a.one(publishersPath+"/{publisher}", publisher, func(list []Route) any { return publisherOf(list) })
	a.one(publishersPath+"/{topic}/{publisher}", pair, func(list []Route) any { return publisherOf(list) })
	a.get(publishersPath+"/{topic}/{publisher}/backoff", pair, func(context.Context, []Route) any { return backoffStatus{} })

	a.get(processorsPath, every, func(_ context.Context, list []Route) any {
		all := map[string]string{}
		for i := range list {
			all[processorOf(&list[i])] = statusOf(&list[i])
		}
		return all
	})
	a.get(processorsPath+"/backoff", every, backoffBy(processorOf))
	a.one(processorsPath+"/{id}", processor, func(list []Route) any { return worst(list) })
	a.get(processorsPath+"/{id}/lag", processor, func(_ context.Context, list []Route) any { return lagOf(list) })
	a.get(processorsPath+"/{id}/backoff", processor, func(context.Context, []Route) any { return backoffStatus{} })
}

// get answers with what answer makes of the chosen routes, or 404 if there is none.
func (a *alias) get(path string, choose func(*http.Request, *Route) bool, answer func(context.Context, []Route) any) {
	a.mux.Handle("GET "+path, a.handler.api(func(_ http.ResponseWriter, r *http.Request) (any, error) {
		list, err := a.choose(r, choose)
		if err != nil {
			return nil, err
		}
		return answer(r.Context(), list), nil
	}))
}

// one serves the state of some routes, and the actions on them.
func (a *alias) one(path string, choose func(*http.Request, *Route) bool, show func([]Route) any) {
	a.get(path, choose, func(_ context.Context, list []Route) any { return show(list) })
	for name, do := range map[string]func(context.Context, *Route) error{
		"pause": func(ctx context.Context, r *Route) error { return a.routes.Pause(ctx, r.RouteName, aliasReason) },
		"resume": func(ctx context.Context, r *Route) error {
			if r.Since.IsZero() {
				return nil // it is active
			}
			return a.routes.Resume(ctx, r.RouteName)
		},
		"reset": func(ctx context.Context, r *Route) error {
			_, err := a.routes.Retry(ctx, r.RouteName)
			return err
		},
	} {
		a.mux.Handle("POST "+path+"/"+name, a.handler.api(func(w http.ResponseWriter, r *http.Request) (any, error) {
			if err := requireEmpty(w, r); err != nil {
				return nil, err
			}
			list, err := a.choose(r, choose)
			for i := range list {
				if err == nil {
					err = do(r.Context(), &list[i])
				}
			}
			return struct{}{}, err
		}))
	}
}

// choose returns the routes of a path.
func (a *alias) choose(r *http.Request, choose func(*http.Request, *Route) bool) (chosen []Route, err error) {
	all, err := a.routes.List(r.Context(), true)
	for i := range all {
		if choose(r, &all[i]) {
			chosen = append(chosen, all[i])
		}
	}
	if err == nil && len(chosen) == 0 {
		err = errNoRoute
	}
	return chosen, err
}

// publisherOf returns the state of routes to one sink.
func publisherOf(list []Route) publisherStatus {
	s := publisherStatus{Publisher: list[0].Sink, Topic: topicOf(&list[0]), Status: worst(list), UpdatedAt: time.Now().UTC()}
	for i := range list {
		r := &list[i]
		if topicOf(r) != s.Topic {
			s.Topic = ""
		}
		if r.Failed != nil {
			s.Errors += *r.Failed
		}
		if at := r.DeliveredAt; at != nil && (s.PublishedAt == nil || at.After(*s.PublishedAt)) {
			s.PublishedAt = at
		}
		if r.Reason != "" {
			s.LastError = &r.Reason
		}
	}
	return s
}

func lagOf(list []Route) (rows int) {
	for i := range list {
		rows += list[i].Lag.Rows
	}
	return rows
}

func lagBy(name func(*Route) string) func(context.Context, []Route) any {
	return func(_ context.Context, list []Route) any {
		lag := map[string]int{}
		for i := range list {
			lag[name(&list[i])] += list[i].Lag.Rows
		}
		return lag
	}
}

func backoffBy(name func(*Route) string) func(context.Context, []Route) any {
	return func(_ context.Context, list []Route) any {
		all := map[string]backoffStatus{}
		for i := range list {
			all[name(&list[i])] = backoffStatus{}
		}
		return all
	}
}

// leaders returns the leader of each publisher, which is the same for all.
func (a *alias) leaders(ctx context.Context, list []Route) any {
	leaders := map[string]string{}
	for i := range list {
		if a.status != nil {
			leaders[list[i].Sink] = a.status.Report(ctx, false).Leader
		}
	}
	return leaders
}
