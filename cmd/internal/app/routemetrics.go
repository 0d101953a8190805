package app

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicebox/sluicebox"
)

// routeMetrics are the metrics of routes, read at each scrape; none while this relay does not lead.
// An outbox without routes has none, because its sink's metrics tell. The labels are names of the
// configuration, at most 32 routes for an outbox.
type routeMetrics struct {
	list                      func() ([]sluicebox.RouteStatus, error)
	rows, oldest, log, paused *prometheus.Desc
}

// newRouteMetrics returns the metrics of the routes that list returns.
func newRouteMetrics(list func() ([]sluicebox.RouteStatus, error)) *routeMetrics {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(namespace+"_route_"+name, help, []string{"outbox", "route"}, nil)
	}
	return &routeMetrics{
		list:   list,
		rows:   desc("pending_rows", "Rows that wait for a route, in memory or spilled."),
		oldest: desc("oldest_pending_timestamp_seconds", "Unix commit time of the oldest row of a route in memory. Absent while no row is in memory."),
		log:    desc("log_bytes", "Bytes of log read since the saved position of a route. Absent if the database does not tell."),
		paused: desc("paused", "Whether an operator paused the whole route (1 = paused)."),
	}
}

// Describe implements prometheus.Collector.
func (m *routeMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.rows, m.oldest, m.log, m.paused} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m *routeMetrics) Collect(to chan<- prometheus.Metric) {
	list, err := m.list()
	if err != nil {
		return // this relay does not lead
	}
	for i := range list {
		r := &list[i]
		if r.Route == "" {
			continue
		}
		gauge := func(d *prometheus.Desc, value float64) {
			to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, r.Outbox, r.Route)
		}
		gauge(m.rows, float64(r.Waiting))
		if !r.Oldest.IsZero() {
			gauge(m.oldest, float64(r.Oldest.UnixMicro())/1e6)
		}
		if r.LogBytes != nil {
			gauge(m.log, float64(*r.LogBytes))
		}
		paused := 0.
		if r.Pause != nil {
			paused = 1
		}
		gauge(m.paused, paused)
	}
}
