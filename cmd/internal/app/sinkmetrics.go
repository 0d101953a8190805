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
	requests      byClass
	mixed         prometheus.Counter // requests with a result for each row
	deliveries    byClass
	completed     prometheus.Counter
	failed        prometheus.Counter
	probes        prometheus.Counter
	bisects       prometheus.Counter
	multiGroup    prometheus.Counter
	retries       prometheus.Counter
	skipped       *prometheus.CounterVec
	counted       *prometheus.CounterVec
	rowsSpilled   prometheus.Counter
	storeFailures prometheus.Counter
	duration      prometheus.Histogram
	commitToAck   prometheus.Histogram
	breakerOpen   *prometheus.GaugeVec
	endpointsOpen prometheus.Gauge
	openFailed    prometheus.Gauge
	changes       prometheus.Counter
	refused       *prometheus.GaugeVec
	stats         statsGauges
	rates         sinkRates
}

// byClass are counters by class of result.
type byClass [sink.Misconfigured + 1]prometheus.Counter

// statsGauges show the dispatch.Stats of a sink.
type statsGauges struct {
	rows, bytes, inFlight, spilled, unspillable prometheus.Gauge
	lanes, oldest                               *prometheus.GaugeVec
}

// sinkRates count the rows delivered, FAILED and retried per second.
type sinkRates struct{ delivered, failed, retried meter }

// requestBuckets returns histogram buckets in seconds, up to the default request timeout.
func requestBuckets() []float64 {
	return []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
}

// ackBuckets returns histogram buckets in seconds, from 0.25 ms for a row at low load to
// 2 h after an outage.
func ackBuckets() []float64 {
	return []float64{.00025, .0005, .00075, .001, .0015, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200}
}

// Sink implements sluicebox.Observer.
func (m *Metrics) Sink(name string) sluicebox.SinkObserver { return m.sink(name) }

// sink returns the metrics of a sink, the same value for each call with a name. All of
// them exist from the first call on, with value 0.
func (m *Metrics) sink(name string) *SinkMetrics {
	if s, ok := m.bySink.Load(name); ok {
		return s.(*SinkMetrics)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s, ok := m.bySink.Load(name); ok {
		return s.(*SinkMetrics)
	}
	s := newSinkMetrics(m, newRegistrar(prometheus.WrapRegistererWith(prometheus.Labels{"sink": name}, m.registry)))
	m.bySink.Store(name, s)
	return s
}

// newSinkMetrics creates the metrics of a sink. r adds its label.
func newSinkMetrics(m *Metrics, r registrar) *SinkMetrics {
	requests := r.counters("requests_total", "Completed requests, by result class. Class \"mixed\" is a response with a result for each row.", "class")
	deliveries := r.counters("delivery_attempts_total", "Delivery attempts of rows, by outcome. A request counts once for each of its rows.", "outcome")
	settled := r.counters("rows_settled_total", "Rows whose final status was written to the outbox table, by status.", "status")
	s := &SinkMetrics{
		metrics:       m,
		mixed:         requests.WithLabelValues("mixed"),
		completed:     settled.WithLabelValues(store.Completed.String()),
		failed:        settled.WithLabelValues(store.Failed.String()),
		probes:        r.counter("probes_total", "Single-row probes of an endpoint with an open circuit breaker, and retries requested by an operator."),
		bisects:       r.counter("bisect_requests_total", "Requests that bisect a failed batch to isolate the row that caused the failure."),
		multiGroup:    r.counter("multi_group_requests_total", "Requests that carried rows of several message groups."),
		retries:       r.counter("retries_total", "Failed delivery attempts that counted against a row and will be retried."),
		skipped:       r.counters("rows_skipped_total", "Delivered rows that the receiver reported as skipped, by kind.", "kind"),
		counted:       r.counters("rows_counted_total", "Rows that a sink of type statistics got, by kind and type.", "kind", "type"),
		rowsSpilled:   r.counter("rows_spilled_total", "Rows spilled from memory to the relay's own table."),
		storeFailures: r.counter("store_failures_total", "Failed claim and settle operations, including rows refused by their table. Each is retried, except late claims."),
		duration:      r.histogram("request_duration_seconds", "Duration of requests to the sink.", requestBuckets()),
		commitToAck:   r.histogram("commit_to_ack_seconds", "Time from a row's commit (its capture, if the log has no commit time) until its COMPLETED status was written.", ackBuckets()),
		breakerOpen:   r.gauges("sink_breaker_open", "Whether a circuit breaker of the sink is open while rows wait (1 = open, only probes are sent), by class of its latest failure.", "class"),
		endpointsOpen: r.gauge("sink_endpoints_open", "Endpoints named by rows whose circuit breakers are open while rows wait, at most 100."),
		openFailed:    r.gauge("sink_open_failed", "Whether the sink cannot be opened because a file it needs is unusable (1 = not open)."),
		changes:       r.counter("destination_changes_total", "Changes that the sink noticed in its destination, for example more partitions of a topic."),
		refused:       r.gauges("refused_rows", "Rows whose claim or outcome the outbox table refuses at present, for example because of a trigger or constraint.", "outbox"),
		stats: statsGauges{
			rows:        r.gauge("pending_rows", "Rows in memory whose outcome is not yet written."),
			bytes:       r.gauge("pending_bytes", "Bytes of payload in memory."),
			inFlight:    r.gauge("requests_in_flight", "Requests and claims in flight."),
			spilled:     r.gauge("spilled_rows", "Rows currently spilled to the relay's own table."),
			unspillable: r.gauge("unspillable_rows", "Rows that the relay's own table refuses. They stay in memory, and the database retains log for them."),
			lanes:       r.gauges("lanes", "Lanes (message groups) with undelivered or held rows, by state.", "state"),
			oldest:      r.gauges("oldest_pending_timestamp_seconds", "Unix commit time of the oldest row in memory (capture time, if the log has no commit time). Absent while no row is in memory."),
		},
	}
	for class := sink.Delivered; class <= sink.Misconfigured; class++ {
		s.requests[class] = requests.WithLabelValues(class.String())
		s.deliveries[class] = deliveries.WithLabelValues(class.String())
	}
	s.BreakersChanged(nil)
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
	if res.Notice != "" {
		s.changes.Inc()
	}
	if res.Skipped > 0 {
		s.skipped.WithLabelValues(req.Kind).Add(float64(res.Skipped))
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
		s.requests.add(res.Class, 1)
		s.deliveries.add(res.Class, req.Rows)
		return
	}

	s.mixed.Inc()
	for i := range res.Items {
		s.deliveries.add(res.Items[i].Class, 1)
	}
}

// BreakersChanged records the classes for which a breaker of the sink is open, and how many
// breakers of endpoints that rows name are. An open breaker without waiting rows does not count.
func (s *SinkMetrics) BreakersChanged(all []dispatch.OpenBreaker) {
	for class := sink.Rejected; class <= sink.Misconfigured; class++ {
		s.breakerOpen.WithLabelValues(class.String()).Set(0)
	}
	named := 0
	for i := range all {
		switch class := all[i].LastFailure.Class; {
		case all[i].Idle:
		case all[i].Named:
			named++
		case class >= sink.Rejected && class <= sink.Misconfigured:
			s.breakerOpen.WithLabelValues(class.String()).Set(1)
		}
	}
	s.endpointsOpen.Set(float64(named))
}

// Stalled implements dispatch.Observer. The gauge of lanes by state counts stalled lanes.
func (s *SinkMetrics) Stalled(*dispatch.LaneInfo) {}

// SetOpen records whether the sink is open or could not be opened.
func (s *SinkMetrics) SetOpen(open bool) { setBool(s.openFailed, !open) }

// Counted implements sluicebox.SinkObserver.
func (s *SinkMetrics) Counted(kind, typ string, rows int) {
	s.counted.WithLabelValues(kind, typ).Add(float64(rows))
}

// add counts n results. Unknown classes are ignored.
func (c *byClass) add(class sink.Class, n int) {
	if class >= sink.Delivered && class <= sink.Misconfigured {
		c[class].Add(float64(n))
	}
}

// Settled counts a written outcome. PENDING with a failure is a counted retry; without
// one, the row was released.
func (s *SinkMetrics) Settled(it *store.Item, o *store.Outcome) { s.settled(it, o, "") }

// settled is Settled for a row whose trace has an id, unless that is "". The id is an exemplar of the
// latency.
func (s *SinkMetrics) settled(it *store.Item, o *store.Outcome, traceID string) {
	now := time.Now()
	switch {
	case o.Status == store.Completed:
		s.completed.Inc()
		s.rates.delivered.add(now, 1)
		since := it.Committed
		if since.IsZero() {
			since = it.Captured
		}
		switch took := max(0, now.Sub(since)).Seconds(); {
		case since.IsZero():
		case traceID != "":
			s.commitToAck.(prometheus.ExemplarObserver).ObserveWithExemplar(took, prometheus.Labels{"trace_id": traceID})
		default:
			s.commitToAck.Observe(took)
		}
	case o.Status == store.Failed:
		s.failed.Inc()
		s.metrics.failedChanges.Add(1)
		s.rates.failed.add(now, 1)
	case o.Status == store.Pending && (o.Error != "" || o.Reason != store.ReasonNone):
		s.retries.Inc()
		s.rates.retried.add(now, 1)
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

// SetRefused sets the number of rows that the table of an outbox refuses at present.
func (s *SinkMetrics) SetRefused(outbox string, n int) {
	s.refused.WithLabelValues(outbox).Set(float64(n))
}

// SetStats sets the gauges of the sink's dispatcher.
func (s *SinkMetrics) SetStats(stats dispatch.Stats) {
	s.stats.rows.Set(float64(stats.Rows))
	s.stats.bytes.Set(float64(stats.Bytes))
	s.stats.inFlight.Set(float64(stats.InFlight))
	s.stats.spilled.Set(float64(stats.Spilled))
	s.stats.unspillable.Set(float64(stats.Unspillable))
	setTimestamp(s.stats.oldest, stats.Oldest)
	for state, n := range stats.Lanes {
		s.stats.lanes.WithLabelValues(state).Set(float64(n))
	}
}
