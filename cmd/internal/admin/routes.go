package admin

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox"
)

// Routes lists the routes of outboxes and acts on them. An outbox without routes has one, named
// "". Its methods are safe for concurrent use. Errors: dispatch.ErrLaneState,
// store.ErrNotLeader, sluicebox.ErrNotLeading, and a *sluicebox.RequestError for an unknown
// route.
type Routes interface {
	// List returns the routes in the order of the configuration. With failed it counts FAILED
	// rows, which may take seconds.
	List(ctx context.Context, failed bool) ([]Route, error)
	// Pause durably stops a route until Resume.
	Pause(ctx context.Context, route sluicebox.RouteName, reason string) error
	// Resume durably ends a pause.
	Resume(ctx context.Context, route sluicebox.RouteName) error
	// Skip passes over the rows that wait for a route, and returns their number.
	Skip(ctx context.Context, route sluicebox.RouteName, reason string) (int, error)
	// Retry requeues the FAILED rows of a route, and returns their number.
	Retry(ctx context.Context, route sluicebox.RouteName) (int, error)
}

// Route is the state of a route, or of an outbox without routes.
type Route struct {
	sluicebox.RouteName
	Sink string `json:"sink"`
	Need string `json:"need"` // required or optional
	// State is paused, blocked if a FAILED row blocks a lane, breaker open, or active.
	State string `json:"state"`
	// Reason and Since belong to a pause of the route.
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since,omitzero"`

	Rows    int `json:"rows"`    // in memory
	Spilled int `json:"spilled"` // in the relay's tables
	// Failed is null unless requested, or if the count failed.
	Failed *int `json:"failed"`

	BlockedLanes int  `json:"blocked_lanes"`
	PausedLanes  int  `json:"paused_lanes"` // paused one by one
	BreakerOpen  bool `json:"breaker_open"`

	// DeliveredAt is the last delivery of this session of the relay.
	DeliveredAt *time.Time `json:"delivered_at"`
	Lag         RouteLag   `json:"lag"`
}

// RouteLag is how far a route is behind.
type RouteLag struct {
	Rows int `json:"rows"` // in memory or spilled
	// Seconds is the age of the oldest row in memory, null if there is none.
	Seconds *float64 `json:"seconds"`
	// LogBytes is the log that was read since the saved position of the route, null if unknown.
	LogBytes *int64 `json:"log_bytes"`
}

// Needs of a route.
const (
	NeedRequired = "required"
	NeedOptional = "optional"
)

// RouteOf returns a route as the API shows it.
func RouteOf(r *sluicebox.RouteStatus, now time.Time) Route {
	shown := Route{
		RouteName: r.RouteName, Sink: r.Sink, Need: NeedRequired, State: "active",
		Rows: r.Rows, Spilled: r.Spilled, BlockedLanes: r.Blocked, PausedLanes: r.Paused, BreakerOpen: r.BreakerOpen,
		Lag: RouteLag{Rows: r.Waiting, Seconds: r.LagSeconds(now), LogBytes: r.LogBytes},
	}
	if r.Optional {
		shown.Need = NeedOptional
	}
	if !r.Delivered.IsZero() {
		shown.DeliveredAt = &r.Delivered
	}
	switch {
	case r.Pause != nil:
		shown.State, shown.Reason, shown.Since = "paused", r.Pause.Reason, r.Pause.Since
	case r.Blocked > 0:
		shown.State = "blocked"
	case r.BreakerOpen:
		shown.State = "breaker open"
	}
	return shown
}

// RouteList is the response of GET /api/v1/routes.
type RouteList struct {
	Routes []Route `json:"routes"`
}

// RouteReason is the request of POST /api/v1/routes/…/pause.
type RouteReason struct {
	Reason string `json:"reason"`
}

// SkippedRows is the response of POST /api/v1/routes/…/skip.
type SkippedRows struct {
	Rows int `json:"rows"` // that waited
}

const routesPath = "/api/v1/routes"

// routeEndpoints serves the routes: /OUTBOX/ACTION is for an outbox without routes.
func (h *handler) routeEndpoints(mux *http.ServeMux, of Routes) {
	h.get(mux, routesPath, func(ctx context.Context, q *query) (any, error) {
		outbox, failed := q.text("outbox"), q.flag("count")
		if err := q.finish(); err != nil {
			return nil, err
		}
		return listRoutes(ctx, of, outbox, failed)
	})
	for _, path := range []string{"/{outbox}", "/{outbox}/{route}"} {
		mux.Handle("POST "+routesPath+path+"/pause", h.api(func(w http.ResponseWriter, r *http.Request) (any, error) {
			var req RouteReason
			if _, err := decodeRequest(w, r, &req); err != nil {
				return nil, err
			}
			if err := checkReason("pause", req.Reason); err != nil {
				return nil, err
			}
			route := routeOfPath(r)
			return currentRoute(r.Context(), of, route, of.Pause(r.Context(), route, req.Reason))
		}))
		mux.Handle("POST "+routesPath+path+"/skip", h.api(func(w http.ResponseWriter, r *http.Request) (any, error) {
			var req RouteReason
			if _, err := decodeRequest(w, r, &req); err != nil {
				return nil, err
			}
			if err := checkReason("skip", req.Reason); err != nil {
				return nil, err
			}
			n, err := of.Skip(r.Context(), routeOfPath(r), req.Reason)
			return SkippedRows{n}, err
		}))
		mux.Handle("POST "+routesPath+path+"/resume", h.api(func(w http.ResponseWriter, r *http.Request) (any, error) {
			if err := requireEmpty(w, r); err != nil {
				return nil, err
			}
			route := routeOfPath(r)
			return currentRoute(r.Context(), of, route, of.Resume(r.Context(), route))
		}))
	}
}

// routeOfPath returns the route that the path of a request names.
func routeOfPath(r *http.Request) sluicebox.RouteName {
	return sluicebox.RouteName{Outbox: r.PathValue("outbox"), Route: r.PathValue("route")}
}

// listRoutes lists the routes of one outbox, or of all.
func listRoutes(ctx context.Context, of Routes, outbox string, failed bool) (RouteList, error) {
	all, err := of.List(ctx, failed)
	list := []Route{}
	for _, r := range all {
		if outbox == "" || outbox == r.Outbox {
			list = append(list, r)
		}
	}
	if err == nil && len(list) == 0 {
		err = badRequest("unknown outbox %q", outbox)
	}
	return RouteList{list}, err
}

// currentRoute responds with the route after an action.
func currentRoute(ctx context.Context, of Routes, route sluicebox.RouteName, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	all, _ := of.List(ctx, false) // the action itself succeeded
	for _, r := range all {
		if r.RouteName == route {
			return r, nil
		}
	}
	return struct{}{}, nil
}

// requireEmpty rejects a request with content other than an empty JSON object.
func requireEmpty(w http.ResponseWriter, r *http.Request) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return fmt.Errorf("read request body: %w", err)
	}
	if text := strings.TrimSpace(string(body)); text != "" && text != "{}" {
		return badRequest("the request takes no content")
	}
	return nil
}

// checkReason reports a missing or invalid reason of an action.
func checkReason(action, reason string) error {
	if strings.TrimSpace(reason) == "" {
		return badRequest("%s needs a reason, which is recorded for other operators", action)
	}
	return checkReasonText(reason)
}

// checkReasonText reports an invalid reason.
func checkReasonText(reason string) error {
	switch {
	case utf8.RuneCountInString(reason) > maxReason:
		return badRequest("reason is longer than %d characters", maxReason)
	case strings.ContainsFunc(reason, unicode.IsControl):
		return badRequest("reason holds a line break or another control character; write one line")
	}
	return nil
}

// Routes returns the routes of one outbox, or of all, with the number of FAILED rows.
func (c *Client) Routes(ctx context.Context, outbox string) (RouteList, error) {
	q := url.Values{"count": {"true"}}
	if outbox != "" {
		q.Set("outbox", outbox)
	}
	return call[RouteList](ctx, c, http.MethodGet, routesPath+"?"+q.Encode(), nil)
}

// PauseRoute stops a route until ResumeRoute. It returns the route after the action.
func (c *Client) PauseRoute(ctx context.Context, route sluicebox.RouteName, reason string) (Route, error) {
	return call[Route](ctx, c, http.MethodPost, routePath(route)+"/pause", RouteReason{reason})
}

// ResumeRoute ends a pause. It returns the route after the action.
func (c *Client) ResumeRoute(ctx context.Context, route sluicebox.RouteName) (Route, error) {
	return call[Route](ctx, c, http.MethodPost, routePath(route)+"/resume", struct{}{})
}

// SkipRoute passes over the rows that wait for a route, and returns their number.
func (c *Client) SkipRoute(ctx context.Context, route sluicebox.RouteName, reason string) (int, error) {
	skipped, err := call[SkippedRows](ctx, c, http.MethodPost, routePath(route)+"/skip", RouteReason{reason})
	return skipped.Rows, err
}

func routePath(route sluicebox.RouteName) string {
	path := routesPath + "/" + url.PathEscape(route.Outbox)
	if route.Route != "" {
		path += "/" + url.PathEscape(route.Route)
	}
	return path
}
