package admin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// fakeRoutes are routes that record actions.
type fakeRoutes struct {
	mu   sync.Mutex
	list []admin.Route
	did  []string
	err  error
}

// someRoutes returns two routes of an outbox, and an outbox without routes.
func someRoutes() *fakeRoutes {
	failed := 2
	return &fakeRoutes{list: []admin.Route{
		{RouteName: sluicebox.RouteName{Outbox: "orders", Route: "bus"}, Sink: "kafka", Need: "required", State: "active", Failed: &failed, Lag: admin.RouteLag{Rows: 7}},
		{RouteName: sluicebox.RouteName{Outbox: "orders", Route: "hooks"}, Sink: "webhook", Need: "optional", State: "blocked", BlockedLanes: 1, Lag: admin.RouteLag{Rows: 5}},
		{RouteName: sluicebox.RouteName{Outbox: "jobs"}, Sink: "webhook", Need: "required", State: "active"},
	}}
}

func (f *fakeRoutes) List(context.Context, bool) ([]admin.Route, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.list), f.err
}

func (f *fakeRoutes) act(route sluicebox.RouteName, since time.Time, format string, args ...any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.did = append(f.did, fmt.Sprintf(format, args...))
	at := slices.IndexFunc(f.list, func(r admin.Route) bool { return r.RouteName == route })
	if at < 0 {
		return &sluicebox.RequestError{Problem: "unknown"}
	}
	f.list[at].Since = since
	return f.err
}

func (f *fakeRoutes) Pause(_ context.Context, route sluicebox.RouteName, reason string) error {
	return f.act(route, time.Now(), "pause %s: %s", route, reason)
}

func (f *fakeRoutes) Resume(_ context.Context, route sluicebox.RouteName) error {
	return f.act(route, time.Time{}, "resume %s", route)
}

func (f *fakeRoutes) Skip(_ context.Context, route sluicebox.RouteName, reason string) (int, error) {
	return 41, f.act(route, time.Time{}, "skip %s: %s", route, reason)
}

func (f *fakeRoutes) Retry(_ context.Context, route sluicebox.RouteName) (int, error) {
	return 0, f.act(route, time.Time{}, "retry %s", route)
}

// done returns the actions since the last call of done.
func (f *fakeRoutes) done() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	did := f.did
	f.did = nil
	return did
}

func TestRouteOfShowsStates(t *testing.T) {
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	hold := &store.Hold{Reason: "an incident", Since: now}
	tests := map[string]struct {
		stats    dispatch.OutboxStats
		optional bool
		state    string
	}{
		"moves":                 {dispatch.OutboxStats{Rows: 1, Waiting: 4, Spilled: 3, Oldest: now.Add(-time.Minute), Delivered: now}, false, "active"},
		"receiver down":         {dispatch.OutboxStats{BreakerOpen: true}, true, "breaker open"},
		"blocked by a row":      {dispatch.OutboxStats{BreakerOpen: true, Blocked: 2}, false, "blocked"},
		"paused by an operator": {dispatch.OutboxStats{BreakerOpen: true, Blocked: 2, Pause: hold}, false, "paused"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := admin.RouteOf(&sluicebox.RouteStatus{Optional: tt.optional, OutboxStats: tt.stats}, now)
			if got.State != tt.state || (got.Need == "optional") != tt.optional || (got.Reason == hold.Reason) != (tt.stats.Pause != nil) {
				t.Errorf("got %+v, want state %s, optional %v", got, tt.state, tt.optional)
			}
			if tt.stats.Rows == 1 && (got.Lag.Rows != 4 || got.Lag.Seconds == nil || *got.Lag.Seconds != 60 || got.DeliveredAt == nil) {
				t.Errorf("got %+v, want 4 rows behind, 60 s", got)
			}
		})
	}
}

func TestRoutesAPI(t *testing.T) {
	routes := someRoutes()
	base := serve(t, admin.Config{Routes: routes}, &checks{}) + "/api/v1/routes"
	var list admin.RouteList
	if err := json.Unmarshal([]byte(ask(t, "GET", base+"?outbox=orders&count").body), &list); err != nil || len(list.Routes) != 2 || *list.Routes[0].Failed != 2 {
		t.Errorf("got %+v, %v", list, err)
	}
	expectError(t, "unknown outbox", ask(t, "GET", base+"?outbox=x"), 400, `unknown outbox "x"`)

	for path, body := range map[string]string{"/orders/hooks/pause": `{"reason": "stock-taking"}`, "/jobs/pause": `{"reason": "stock-taking"}`, "/orders/bus/resume": "", "/jobs/resume": "{}"} {
		if got := post(t, base+path, body); got.status != 200 {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
	did := routes.done()
	slices.Sort(did)
	if want := []string{"pause jobs: stock-taking", "pause orders/hooks: stock-taking", "resume jobs", "resume orders/bus"}; !slices.Equal(did, want) {
		t.Errorf("got %q, want %q", did, want)
	}
	expectError(t, "no reason", post(t, base+"/jobs/pause", `{}`), 400, "needs a reason")
	expectError(t, "a reason too many", post(t, base+"/jobs/resume", `{"reason": "x"}`), 400, "takes no content")
	routes.err = dispatch.ErrNotPaused
	expectError(t, "not paused", post(t, base+"/jobs/resume", ""), 409, "not paused")
	if did := routes.done(); len(did) != 1 {
		t.Errorf("refused requests acted: %q", did)
	}
}

// The aliases act on every route that a name stands for, and answer in the shapes of the API that
// they stand for.
func TestPublisherAliases(t *testing.T) {
	routes := someRoutes()
	base := serve(t, admin.Config{Routes: routes}, &checks{}) + "/api/"
	for path, want := range map[string]string{
		"outbox/publishers/lag":                   `{"kafka":7,"webhook":5}`,
		"outbox/publishers/backoff":               `{"bus:kafka":{"emptyPollCount":0,"currentSkipCounter":0},"hooks:webhook":{"emptyPollCount":0,"currentSkipCounter":0},"jobs:webhook":{"emptyPollCount":0,"currentSkipCounter":0}}`,
		"outbox/publishers/hooks/webhook/backoff": `{"emptyPollCount":0,"currentSkipCounter":0}`,
		"processors":                              `{"bus:kafka":"ACTIVE","hooks:webhook":"FAILED","jobs:webhook":"ACTIVE"}`,
		"processors/hooks:webhook":                `"FAILED"`,
		"processors/bus:kafka/lag":                `7`,
	} {
		if got := ask(t, "GET", base+path); got.status != 200 || got.body != want+"\n" {
			t.Errorf("%s: got %d %s, want %s", path, got.status, got.body, want)
		}
	}

	var all []map[string]any
	if err := json.Unmarshal([]byte(ask(t, "GET", base+"outbox/publishers").body), &all); err != nil || len(all) != 3 ||
		all[0]["publisherName"] != "kafka" || all[0]["topic"] != "bus" || all[0]["errorCount"] != 2. || all[1]["status"] != "FAILED" || all[2]["topic"] != "jobs" {
		t.Errorf("got %v, %v", all, err)
	}
	var one map[string]any
	if err := json.Unmarshal([]byte(ask(t, "GET", base+"outbox/publishers/webhook").body), &one); err != nil || one["status"] != "FAILED" || one["topic"] != "" {
		t.Errorf("got %v, %v", one, err)
	}

	for path, want := range map[string][]string{
		"outbox/publishers/webhook/pause":       {"pause orders/hooks: paused through the API of publishers", "pause jobs: paused through the API of publishers"},
		"outbox/publishers/hooks/webhook/reset": {"retry orders/hooks"},
		"processors/bus:kafka/resume":           nil, // it is active
	} {
		if got := post(t, base+path, ""); got.status != 200 {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
		if did := routes.done(); !slices.Equal(did, want) {
			t.Errorf("%s: got %q, want %q", path, did, want)
		}
	}
	for _, path := range []string{"outbox/publishers/none", "outbox/publishers/none/webhook/backoff", "processors/bus:webhook"} {
		expectError(t, path, ask(t, "GET", base+path), 404, "route not found")
	}
	expectError(t, "pause of none", post(t, base+"outbox/publishers/none/pause", ""), 404, "route not found")
}
