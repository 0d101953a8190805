package app

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

func TestRouteMetrics(t *testing.T) {
	bytes := int64(4096)
	list, failure := []sluicebox.RouteStatus{
		{RouteName: sluicebox.RouteName{Outbox: "jobs"}, OutboxStats: dispatch.OutboxStats{Waiting: 9}},
		{RouteName: sluicebox.RouteName{Outbox: "orders", Route: "bus"}},
		{
			RouteName: sluicebox.RouteName{Outbox: "orders", Route: "hooks"}, LogBytes: &bytes,
			OutboxStats: dispatch.OutboxStats{Waiting: 7, Oldest: time.Unix(1700000000, 250_000_000), Pause: &store.Hold{}},
		},
	}, error(nil)
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(newRouteMetrics(func() ([]sluicebox.RouteStatus, error) { return list, failure }))
	want := `
# HELP sluicebox_route_log_bytes Bytes of log read since the saved position of a route. Absent if the database does not tell.
# TYPE sluicebox_route_log_bytes gauge
sluicebox_route_log_bytes{outbox="orders",route="hooks"} 4096
# HELP sluicebox_route_oldest_pending_timestamp_seconds Unix commit time of the oldest row of a route in memory. Absent while no row is in memory.
# TYPE sluicebox_route_oldest_pending_timestamp_seconds gauge
sluicebox_route_oldest_pending_timestamp_seconds{outbox="orders",route="hooks"} 1.70000000025e+09
# HELP sluicebox_route_paused Whether an operator paused the whole route (1 = paused).
# TYPE sluicebox_route_paused gauge
sluicebox_route_paused{outbox="orders",route="bus"} 0
sluicebox_route_paused{outbox="orders",route="hooks"} 1
# HELP sluicebox_route_pending_rows Rows that wait for a route, in memory or spilled.
# TYPE sluicebox_route_pending_rows gauge
sluicebox_route_pending_rows{outbox="orders",route="bus"} 0
sluicebox_route_pending_rows{outbox="orders",route="hooks"} 7
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	if failure = sluicebox.ErrNotLeading; testutil.CollectAndCount(newRouteMetrics(func() ([]sluicebox.RouteStatus, error) { return nil, failure })) != 0 {
		t.Error("a standby has metrics of routes")
	}
}
