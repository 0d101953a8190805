package app

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicebox/sluicebox/dispatch"
)

// destinationMetrics are the metrics of the destinations that the sources of a process share, read at
// each scrape. They have no label source.
type destinationMetrics struct {
	stats                              func() map[string]dispatch.DestinationStats
	inFlight, limit, waiting, breakers *prometheus.Desc
}

// newDestinationMetrics returns the metrics of the destinations that stats returns by sink.
func newDestinationMetrics(stats func() map[string]dispatch.DestinationStats) *destinationMetrics {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(namespace+"_destination_"+name, help, []string{"sink"}, nil)
	}
	return &destinationMetrics{
		stats:    stats,
		inFlight: desc("requests_in_flight", "Requests in flight of all sources of the process."),
		limit:    desc("requests_limit", "The most requests in flight of all sources of the process, max-concurrent-groups."),
		waiting:  desc("sources_waiting", "Sources with a request that waits for one of another source, or for the rate limit."),
		breakers: desc("breakers_open", "Endpoints whose circuit breaker is open for all sources of the process."),
	}
}

// Describe implements prometheus.Collector.
func (m *destinationMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.inFlight, m.limit, m.waiting, m.breakers} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m *destinationMetrics) Collect(to chan<- prometheus.Metric) {
	for name, s := range m.stats() {
		gauge := func(d *prometheus.Desc, value int) {
			to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), name)
		}
		gauge(m.inFlight, s.InFlight)
		gauge(m.limit, s.Limit)
		gauge(m.waiting, s.Waiting)
		gauge(m.breakers, s.OpenBreakers)
	}
}
