package main

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
)

// fakeRoutes are routes that record actions.
type fakeRoutes struct {
	mu   sync.Mutex
	list []admin.Route
	did  []string
}

func severalRoutes() *fakeRoutes {
	failed, seconds, bytes, ago := 2, 0.25, int64(3<<20), time.Now().Add(-3*time.Minute-10*time.Second)
	return &fakeRoutes{list: []admin.Route{
		{
			RouteName: sluicebox.RouteName{Outbox: "orders", Route: "bus"}, Sink: "kafka", Need: "required", State: "active", Rows: 3, Failed: &failed, DeliveredAt: &ago,
			Lag: admin.RouteLag{Rows: 3, Seconds: &seconds, LogBytes: &bytes},
		},
		{
			RouteName: sluicebox.RouteName{Outbox: "orders", Route: "hooks"}, Sink: "webhook", Need: "optional", State: "paused", Reason: "stock-taking", Since: ago,
			Rows: 1, Spilled: 40, BlockedLanes: 2, PausedLanes: 1, Lag: admin.RouteLag{Rows: 41},
		},
		{RouteName: sluicebox.RouteName{Outbox: "jobs"}, Sink: "webhook", Need: "required", State: "breaker open", BreakerOpen: true},
	}}
}

func (f *fakeRoutes) List(context.Context, bool) ([]admin.Route, error) { return f.list, nil }

func (f *fakeRoutes) act(did string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.did = append(f.did, did)
	return nil
}

func (f *fakeRoutes) Pause(_ context.Context, route sluicebox.RouteName, reason string) error {
	return f.act("pause " + route.String() + ": " + reason)
}

func (f *fakeRoutes) Resume(_ context.Context, route sluicebox.RouteName) error {
	return f.act("resume " + route.String())
}

func (f *fakeRoutes) Skip(_ context.Context, route sluicebox.RouteName, reason string) (int, error) {
	return 41, f.act("skip " + route.String() + ": " + reason)
}

func (f *fakeRoutes) Retry(_ context.Context, route sluicebox.RouteName) (int, error) {
	return 0, f.act("retry " + route.String())
}

func TestRoutesList(t *testing.T) {
	at := "--admin=http://" + serveConfig(t, admin.Config{Routes: severalRoutes()}, ready{})
	for args, want := range map[string]string{
		"list": `OUTBOX  ROUTE  SINK     NEED      STATE         ROWS  SPILLED  FAILED  LANES HELD  DELIVERED  SINCE  REASON
orders  bus    kafka    required  active        3     0        2       0           3m ago     -      ` + `
orders  hooks  webhook  optional  paused        1     40       -       3           -          3m     stock-taking
jobs    -      webhook  required  breaker open  0     0        -       0           -          -      ` + `
`,
		"lag --outbox orders": `OUTBOX  ROUTE  ROWS  TIME   LOG
orders  bus    3     0.25s  3.0 MiB
orders  hooks  41    -      -
`,
	} {
		got := try(t, backend{}, nil, append([]string{"routes"}, append(strings.Fields(args), at)...)...)
		if got.code != 0 || got.stdout != want || got.stderr != "" {
			t.Errorf("%s: exit %d\n%s\nwant\n%s%s", args, got.code, got.stdout, want, got.stderr)
		}
	}
	got := try(t, backend{}, nil, "routes", "list", at, "--json")
	if want := "{\n  \"routes\": [\n    {\n      \"outbox\": \"orders\",\n      \"route\": \"bus\",\n      \"sink\": \"kafka\",\n"; got.code != 0 || !strings.HasPrefix(got.stdout, want) {
		t.Errorf("exit %d, %s%s", got.code, got.stdout, got.stderr)
	}
}

// The sink of rows that no route matches says what becomes of them.
func TestUnmatchedSinkInWords(t *testing.T) {
	for name, want := range map[string]string{
		"unmatched:fail": "none (FAILED)", "unmatched:complete": "none (COMPLETED)", "unmatched:hold": "none (wait)", "kafka": "kafka",
	} {
		if got := sinkCell(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestRouteActions(t *testing.T) {
	routes := severalRoutes()
	at := "--admin=" + serveConfig(t, admin.Config{Routes: routes}, ready{})
	for _, tt := range []struct {
		args      []string
		did, said string
		problem   string
	}{
		{[]string{"pause", "--route", "hooks", "--reason", "an incident"}, "pause orders/hooks: an incident", "route orders/hooks: paused; 41 rows wait\n", ""},
		{[]string{"pause", "--outbox", "jobs", "--reason", "an incident"}, "pause jobs: an incident", "route jobs: paused; 0 rows wait\n", ""},
		{[]string{"resume", "--outbox", "orders", "--route", "bus"}, "resume orders/bus", "route orders/bus: resumed; 3 rows wait\n", ""},
		{[]string{"resume", "--route", "none"}, "", "", `no outbox has a route "none"`},
		{[]string{"resume"}, "", "", "3 routes match"},
		{[]string{"pause", "--route", "bus"}, "", "", "missing flags: --reason"},
	} {
		routes.did = nil
		got := try(t, backend{}, nil, append([]string{"routes", tt.args[0], at}, tt.args[1:]...)...)
		if got.stdout != tt.said || !strings.Contains(got.stderr, tt.problem) || (got.code == 0) != (tt.problem == "") {
			t.Errorf("%q: exit %d, %s%s", tt.args, got.code, got.stdout, got.stderr)
		}
		if want := slices.DeleteFunc([]string{tt.did}, func(s string) bool { return s == "" }); !slices.Equal(routes.did, want) {
			t.Errorf("%q: got %q, want %q", tt.args, routes.did, want)
		}
	}
}
