package app

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// SinkMetrics are the metrics of one sink. It is an observer of the sink's
// dispatcher.
type SinkMetrics struct {
	m          *Metrics
	name       string
	requests   [sink.Misconfigured + 1]prometheus.Counter
	mixed      prometheus.Counter // requests with an answer for each row
	deliveries [sink.Misconfigured + 1]prometheus.Counter
	settled    [store.Failed + 1]prometheus.Counter
	probes     prometheus.Counter
	splits     prometheus.Counter
	shared     prometheus.Counter
	suspect    [sink.Misconfigured + 1]prometheus.Gauge
	unopened   prometheus.Gauge
	retries    prometheus.Counter
	failures   prometheus.Counter
	duration   prometheus.Observer
	ack        prometheus.Observer
	rows       prometheus.Gauge
	parked     prometheus.Gauge
	unparkable prometheus.Gauge
	rowsParked prometheus.Counter
	bytes      prometheus.Gauge
	inFlight   prometheus.Gauge
	now        func() time.Time

	// Rows by the second: those that were delivered, that FAILED, and that are
	// tried again.
	delivered, failed, retried meter
}

// The relay's observers, checked here where the calls are counted.
var _ dispatch.Observer = (*SinkMetrics)(nil)

// Sink returns the metrics of a sink, always the same for one name. From the
// first time on all of them are there, at 0.
func (m *Metrics) Sink(name string) *SinkMetrics {
	if s, ok := m.known.Load(name); ok {
		return s.(*SinkMetrics)
	}
	s, _ := m.known.LoadOrStore(name, m.newSink(name))
	return s.(*SinkMetrics)
}

func (m *Metrics) newSink(name string) *SinkMetrics {
	v := &m.sinks
	s := &SinkMetrics{
		m: m, name: name, now: time.Now,
		mixed:      v.requests.WithLabelValues(name, "mixed"),
		probes:     v.probes.WithLabelValues(name),
		splits:     v.splits.WithLabelValues(name),
		shared:     v.shared.WithLabelValues(name),
		retries:    v.retries.WithLabelValues(name),
		failures:   v.storeFailures.WithLabelValues(name),
		duration:   v.duration.WithLabelValues(name),
		ack:        v.ack.WithLabelValues(name),
		rows:       v.rows.WithLabelValues(name),
		parked:     v.parked.WithLabelValues(name),
		unparkable: v.unparkable.WithLabelValues(name),
		unopened:   v.unopened.WithLabelValues(name),

		rowsParked: v.rowsParked.WithLabelValues(name),
		bytes:      v.bytes.WithLabelValues(name),
		inFlight:   v.inFlight.WithLabelValues(name),
	}
	for class := sink.Delivered; class <= sink.Misconfigured; class++ {
		s.requests[class] = v.requests.WithLabelValues(name, class.String())
		s.deliveries[class] = v.deliveries.WithLabelValues(name, class.String())
	}
	for class := sink.Rejected; class <= sink.Misconfigured; class++ {
		s.suspect[class] = v.suspect.WithLabelValues(name, class.String())
	}
	for _, status := range []store.Status{store.Completed, store.Failed} {
		s.settled[status] = v.settled.WithLabelValues(name, status.String())
	}
	return s
}

// Claimed counts n rows that a claim answered in one way. What is no
// ClaimResult is ignored.
func (s *SinkMetrics) Claimed(result store.ClaimResult, n int) {
	if result >= store.Claimed && result <= store.TableLocked {
		s.m.claims[result].Add(float64(n))
	}
}

// Requested counts an answered request and what became of each of its rows.
func (s *SinkMetrics) Requested(req dispatch.Request, res *sink.Result, took time.Duration) {
	s.duration.Observe(took.Seconds())
	if res.Skipped > 0 {
		s.m.sinks.skipped.WithLabelValues(s.name, req.Kind).Add(float64(res.Skipped))
	}
	if req.Probe {
		s.probes.Inc()
	}
	if req.Split {
		s.splits.Inc()
	}
	if req.Lanes > 1 {
		s.shared.Inc()
	}
	if res.Items == nil {
		count(s.requests[:], res.Class, 1)
		count(s.deliveries[:], res.Class, req.Rows)
		return
	}
	s.mixed.Inc()
	for i := range res.Items {
		count(s.deliveries[:], res.Items[i].Class, 1)
	}
}

// Suspected notes which endpoints of the sink are suspect, and for what. One that no row
// waits for is no fault.
func (s *SinkMetrics) Suspected(all []dispatch.Suspicion) {
	for class := sink.Rejected; class <= sink.Misconfigured; class++ {
		s.suspect[class].Set(0)
	}
	for i := range all {
		if class := all[i].Why.Class; !all[i].Idle && class >= sink.Rejected && class <= sink.Misconfigured {
			s.suspect[class].Set(1)
		}
	}
}

// Stalled implements dispatch.Observer: the lanes are counted by their states.
func (s *SinkMetrics) Stalled(*dispatch.LaneInfo) {}

// Opened notes whether the sink is open, or cannot be opened.
func (s *SinkMetrics) Opened(open bool) {
	s.unopened.Set(0)
	if !open {
		s.unopened.Set(1)
	}
}

func count(counters []prometheus.Counter, class sink.Class, n int) {
	if class >= sink.Delivered && class <= sink.Misconfigured {
		counters[class].Add(float64(n))
	}
}

// Settled counts an outcome that is in the table. PENDING with a failure is a
// counted retry; without one the row was given back.
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
			s.ack.Observe(max(0, took).Seconds())
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

// Vanished counts rows that are no longer in their tables.
func (s *SinkMetrics) Vanished(rows []*store.Item) {
	for _, it := range rows {
		s.m.vanished.WithLabelValues(it.Outbox).Inc()
	}
}

// StoreFailed counts a claim or an outcome that did not reach the database.
func (s *SinkMetrics) StoreFailed(string, error) { s.failures.Inc() }

// Unparkable implements dispatch.Observer: Holds has their number.
func (s *SinkMetrics) Unparkable(*store.Item, error) {}

// Parkable implements dispatch.Observer.
func (s *SinkMetrics) Parkable() {}

// Refused counts a claim or an outcome of a row that its table refused.
func (s *SinkMetrics) Refused(store.Ref, string, error) { s.failures.Inc() }

// RowsParked counts rows that were parked.
func (s *SinkMetrics) RowsParked(n int) { s.rowsParked.Add(float64(n)) }

// Holds sets what the sink's dispatcher holds at this moment.
func (s *SinkMetrics) Holds(stats dispatch.Stats) {
	s.rows.Set(float64(stats.Rows))
	s.parked.Set(float64(stats.Parked))
	s.unparkable.Set(float64(stats.Unparkable))
	s.bytes.Set(float64(stats.Bytes))
	s.inFlight.Set(float64(stats.InFlight))
	stamp(s.m.sinks.oldest, stats.Oldest, s.name)
	for state, n := range stats.Lanes {
		s.m.sinks.lanes.WithLabelValues(s.name, state).Set(float64(n))
	}
}
