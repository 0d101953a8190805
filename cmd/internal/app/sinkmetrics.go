package app

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// SinkMetrics are the metrics of one sink. They observe the sink's dispatcher.
type SinkMetrics struct {
	metrics       *Metrics
	name          string
	requests      [sink.Misconfigured + 1]prometheus.Counter
	mixed         prometheus.Counter // requests with a result for each row
	deliveries    [sink.Misconfigured + 1]prometheus.Counter
	settled       [store.Failed + 1]prometheus.Counter
	probes        prometheus.Counter
	bisects       prometheus.Counter
	multiGroup    prometheus.Counter
	breakerOpen   [sink.Misconfigured + 1]prometheus.Gauge
	openFailed    prometheus.Gauge
	retries       prometheus.Counter
	storeFailures prometheus.Counter
	duration      prometheus.Observer
	commitToAck   prometheus.Observer
	rows          prometheus.Gauge
	spilled       prometheus.Gauge
	unspillable   prometheus.Gauge
	rowsSpilled   prometheus.Counter
	bytes         prometheus.Gauge
	inFlight      prometheus.Gauge
	now           func() time.Time

	// Per-second counts of rows delivered, FAILED and retried.
	delivered, failed, retried meter
}

// Sink implements sluicebox.Observer.
func (m *Metrics) Sink(name string) sluicebox.SinkObserver { return m.sink(name) }

// sink returns the metrics of a sink, the same value for each call with a name. All of
// them exist from the first call on, with value 0.
func (m *Metrics) sink(name string) *SinkMetrics {
	if s, ok := m.metricsBySink.Load(name); ok {
		return s.(*SinkMetrics)
	}
	s, _ := m.metricsBySink.LoadOrStore(name, m.newSink(name))
	return s.(*SinkMetrics)
}

func (m *Metrics) newSink(name string) *SinkMetrics {
	v := &m.sinks
	s := &SinkMetrics{
		metrics: m, name: name, now: time.Now,
		mixed:         v.requests.WithLabelValues(name, "mixed"),
		probes:        v.probes.WithLabelValues(name),
		bisects:       v.bisects.WithLabelValues(name),
		multiGroup:    v.multiGroup.WithLabelValues(name),
		retries:       v.retries.WithLabelValues(name),
		storeFailures: v.storeFailures.WithLabelValues(name),
		duration:      v.duration.WithLabelValues(name),
		commitToAck:   v.commitToAck.WithLabelValues(name),
		rows:          v.rows.WithLabelValues(name),
		spilled:       v.spilled.WithLabelValues(name),
		unspillable:   v.unspillable.WithLabelValues(name),
		openFailed:    v.openFailed.WithLabelValues(name),

		rowsSpilled: v.rowsSpilled.WithLabelValues(name),
		bytes:       v.bytes.WithLabelValues(name),
		inFlight:    v.inFlight.WithLabelValues(name),
	}

	for class := sink.Delivered; class <= sink.Misconfigured; class++ {
		s.requests[class] = v.requests.WithLabelValues(name, class.String())
		s.deliveries[class] = v.deliveries.WithLabelValues(name, class.String())
	}

	for class := sink.Rejected; class <= sink.Misconfigured; class++ {
		s.breakerOpen[class] = v.breakerOpen.WithLabelValues(name, class.String())
	}
	for _, status := range []store.Status{store.Completed, store.Failed} {
		s.settled[status] = v.settled.WithLabelValues(name, status.String())
	}

	return s
}

// Claimed counts n rows by claim result. Unknown results are ignored.
func (s *SinkMetrics) Claimed(result store.ClaimResult, n int) {
	if result >= store.Claimed && result <= store.TableLocked {
		s.metrics.claims[result].Add(float64(n))
	}
}

// Requested counts a completed request and the outcome of each of its rows.
func (s *SinkMetrics) Requested(req dispatch.RequestInfo, res *sink.Result, took time.Duration) {
	s.duration.Observe(took.Seconds())
	if res.Skipped > 0 {
		s.metrics.sinks.skipped.WithLabelValues(s.name, req.Kind).Add(float64(res.Skipped))
	}

	if req.Probe {
		s.probes.Inc()
	}
	if req.Split {
		s.bisects.Inc()
	}

	if req.Lanes > 1 {
		s.multiGroup.Inc()
	}
	if res.Items == nil {
		countClass(s.requests[:], res.Class, 1)
		countClass(s.deliveries[:], res.Class, req.Rows)
		return
	}

	s.mixed.Inc()
	for i := range res.Items {
		countClass(s.deliveries[:], res.Items[i].Class, 1)
	}
}

// BreakersChanged records the classes for which a breaker of the sink is open. An open
// breaker without waiting rows does not count.
func (s *SinkMetrics) BreakersChanged(all []dispatch.OpenBreaker) {
	for class := sink.Rejected; class <= sink.Misconfigured; class++ {
		s.breakerOpen[class].Set(0)
	}
	for i := range all {
		if class := all[i].LastFailure.Class; !all[i].Idle && class >= sink.Rejected && class <= sink.Misconfigured {
			s.breakerOpen[class].Set(1)
		}
	}
}

// Stalled implements dispatch.Observer. The gauge of lanes by state counts stalled lanes.
func (s *SinkMetrics) Stalled(*dispatch.LaneInfo) {}

// SetOpen records whether the sink is open or could not be opened.
func (s *SinkMetrics) SetOpen(open bool) {
	s.openFailed.Set(0)
	if !open {
		s.openFailed.Set(1)
	}
}

func countClass(counters []prometheus.Counter, class sink.Class, n int) {
	if class >= sink.Delivered && class <= sink.Misconfigured {
		counters[class].Add(float64(n))
	}
}

// Settled counts a written outcome. PENDING with a failure is a counted retry; without
// one, the row was released.
func (s *SinkMetrics) Settled(it *store.Item, o *store.Outcome) {
	switch o.Status {
	case store.Completed:
		now := s.now()
		s.settled[store.Completed].Inc()
		s.delivered.add(now, 1)
		since := it.Committed
		if since.IsZero() {
			since = it.Captured
		}
		if took := now.Sub(since); !since.IsZero() {
			s.commitToAck.Observe(max(0, took).Seconds())
		}
	case store.Failed:
		s.settled[store.Failed].Inc()
		s.failed.add(s.now(), 1)
	case store.Pending:
		if o.Error != "" || o.Reason != store.ReasonNone {
			s.retries.Inc()
			s.retried.add(s.now(), 1)
		}
	}
}

// Vanished counts rows deleted from their tables.
func (s *SinkMetrics) Vanished(rows []*store.Item) {
	for _, it := range rows {
		s.metrics.vanished.WithLabelValues(it.Outbox).Inc()
	}
}

// StoreFailed counts a claim or an outcome that did not reach the database.
func (s *SinkMetrics) StoreFailed(string, error) { s.storeFailures.Inc() }

// RowUnspillable implements dispatch.Observer. SetStats sets the number of such rows.
func (s *SinkMetrics) RowUnspillable(*store.Item, error) {}

// UnspillableCleared implements dispatch.Observer.
func (s *SinkMetrics) UnspillableCleared() {}

// Refused counts a claim or an outcome that the row's table refused.
func (s *SinkMetrics) Refused(store.Ref, string, error) { s.storeFailures.Inc() }

// RowsSpilled counts spilled rows.
func (s *SinkMetrics) RowsSpilled(n int) { s.rowsSpilled.Add(float64(n)) }

// SetStats sets the gauges of the sink's dispatcher.
func (s *SinkMetrics) SetStats(stats dispatch.Stats) {
	s.rows.Set(float64(stats.Rows))
	s.spilled.Set(float64(stats.Spilled))
	s.unspillable.Set(float64(stats.Unspillable))
	s.bytes.Set(float64(stats.Bytes))
	s.inFlight.Set(float64(stats.InFlight))
	setTimestamp(s.metrics.sinks.oldest, stats.Oldest, s.name)
	for state, n := range stats.Lanes {
		s.metrics.sinks.lanes.WithLabelValues(s.name, state).Set(float64(n))
	}
}
