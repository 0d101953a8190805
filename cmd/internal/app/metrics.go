package app

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// Build is what the metric build_info says of the program.
type Build struct {
	Version   string
	GoVersion string
}

// requestBuckets returns buckets in seconds up to the usual time-out.
func requestBuckets() []float64 {
	return []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
}

// ackBuckets returns buckets in seconds: a row takes a quarter of a millisecond
// at best and the length of an outage at worst.
func ackBuckets() []float64 {
	return []float64{.00025, .0005, .00075, .001, .0015, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200}
}

// Metrics is what the relay tells about itself. It observes: no part of the
// relay asks it anything. No metric has a label per message group, whose number
// knows no bound.
//
// The methods may be called from any goroutine. Those that are called for every
// batch or row allocate nothing, once the outbox and the sink are known.
type Metrics struct {
	captured     *prometheus.CounterVec
	claims       [store.Gone + 1]prometheus.Counter
	sinks        sinkVecs
	checkpoint   prometheus.Gauge
	saveFailures prometheus.Counter
	swept        prometheus.Counter
	connected    prometheus.Gauge
	reconnects   prometheus.Counter
	losses       prometheus.Counter
	retained     prometheus.Gauge
	paused       prometheus.Gauge
	mode         *prometheus.GaugeVec
	leader       prometheus.Gauge
	epoch        prometheus.Gauge

	outboxes sync.Map // name → prometheus.Counter
	known    sync.Map // name → *SinkMetrics
}

// sinkVecs are the metrics with a label for the sink.
type sinkVecs struct {
	deliveries, requests, settled *prometheus.CounterVec
	probes, splits, shared        *prometheus.CounterVec
	retries, storeFailures        *prometheus.CounterVec
	duration, ack                 *prometheus.HistogramVec
	rows, bytes, lanes, inFlight  *prometheus.GaugeVec
	parked                        *prometheus.GaugeVec
	rowsParked                    *prometheus.CounterVec
	suspect                       *prometheus.GaugeVec
}

// registrar makes metrics of the program and registers them.
type registrar struct{ reg prometheus.Registerer }

func (r registrar) counters(name, help string, labels ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "sluicebox", Name: name, Help: help}, labels)
	r.reg.MustRegister(v)
	return v
}

func (r registrar) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "sluicebox", Name: name, Help: help}, labels)
	r.reg.MustRegister(v)
	return v
}

func (r registrar) histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "sluicebox", Name: name, Help: help, Buckets: buckets}, labels)
	r.reg.MustRegister(v)
	return v
}

// NewMetrics makes the relay's metrics and registers them. It panics if reg has
// them already: a registry belongs to one relay.
func NewMetrics(reg prometheus.Registerer, build Build) *Metrics {
	r := registrar{reg}
	claims := r.counters("claims_total", "Rows that claims were asked for, by answer.", "result")
	m := &Metrics{
		captured:     r.counters("rows_captured_total", "Rows captured, from the log or by polling.", "outbox"),
		sinks:        newSinkVecs(r),
		checkpoint:   r.gauges("checkpoint_timestamp_seconds", "When the checkpoint was last written, in Unix time.").WithLabelValues(),
		saveFailures: r.counters("checkpoint_failures_total", "Writes of the checkpoint that failed.").WithLabelValues(),
		swept:        r.counters("rows_swept_total", "Rows found in the tables that had come back to PENDING without an insert.").WithLabelValues(),
		connected:    r.gauges("source_connected", "1 while the database's log (or, polling, its tables) can be read.").WithLabelValues(),
		reconnects:   r.counters("source_reconnects_total", "Lost connections of the source.").WithLabelValues(),
		losses:       r.counters("source_losses_total", "Times that the log, or the relay's place in it, was lost: the tables were read for what it held.").WithLabelValues(),
		retained:     r.gauges("source_retained_bytes", "Log that the database keeps for this relay.").WithLabelValues(),
		paused:       r.gauges("source_paused", "1 while nothing is read, because every sink's buffer is full.").WithLabelValues(),
		mode:         r.gauges("source_mode", "1 for the way in which rows are captured now.", "mode"),
		leader:       r.gauges("leader", "1 while this relay leads; 0 while it stands by.").WithLabelValues(),
		epoch:        r.gauges("leader_epoch", "Epoch of this relay's leadership; 0 while another relay leads.").WithLabelValues(),
	}
	for result := store.Claimed; result <= store.Gone; result++ {
		m.claims[result] = claims.WithLabelValues(result.String())
	}
	r.gauges("build_info", "1 for the version of this program.", "version", "goversion").
		WithLabelValues(build.Version, build.GoVersion).Set(1)
	return m
}

func newSinkVecs(r registrar) sinkVecs {
	return sinkVecs{
		deliveries:    r.counters("deliveries_total", "Rows that were in a request, by what became of them.", "sink", "outcome"),
		requests:      r.counters("requests_total", "Requests answered, by what the answer means; mixed is an answer for each row.", "sink", "class"),
		settled:       r.counters("rows_settled_total", "Rows whose outcome is in the table for good.", "sink", "status"),
		probes:        r.counters("probes_total", "Requests of a single row to a suspect sink, or on an operator's wish.", "sink"),
		splits:        r.counters("splits_total", "Requests that looked for the row to blame for an earlier failure.", "sink"),
		shared:        r.counters("shared_requests_total", "Requests with rows of several message groups.", "sink"),
		suspect:       r.gauges("sink_suspect", "1 while nothing but probes goes to an endpoint of the sink, by what its latest failure means.", "sink", "class"),
		retries:       r.counters("retries_total", "Failed attempts that were counted against a row, which is tried again.", "sink"),
		rowsParked:    r.counters("rows_parked_total", "Rows moved into the relay's own table, to bound the memory and the log that they hold.", "sink"),
		storeFailures: r.counters("store_failures_total", "Claims and outcomes that did not reach the database and were tried again.", "sink"),
		duration:      r.histograms("delivery_duration_seconds", "Time that a request took.", requestBuckets(), "sink"),
		ack:           r.histograms("commit_to_ack_seconds", "Time from a row's commit (from its capture, where the log does not tell it) until its COMPLETED was written.", ackBuckets(), "sink"),
		parked:        r.gauges("parked_rows", "Rows that were moved out of memory into the relay's own table.", "sink"),
		rows:          r.gauges("pending_rows", "Rows in memory whose outcome is not written.", "sink"),
		bytes:         r.gauges("pending_bytes", "Bytes of payload in memory.", "sink"),
		lanes:         r.gauges("lanes", "Message groups with rows to deliver, or held, by state.", "sink", "state"),
		inFlight:      r.gauges("requests_in_flight", "Requests and claims under way.", "sink"),
	}
}

// Captured counts rows of an outbox that were captured.
func (m *Metrics) Captured(outbox string, n int) {
	c, ok := m.outboxes.Load(outbox)
	if !ok {
		c, _ = m.outboxes.LoadOrStore(outbox, m.captured.WithLabelValues(outbox))
	}
	c.(prometheus.Counter).Add(float64(n))
}

// Saved notes a checkpoint written now.
func (m *Metrics) Saved(store.Checkpoint) { m.checkpoint.SetToCurrentTime() }

// SaveFailed counts a checkpoint that was not written.
func (m *Metrics) SaveFailed(error) { m.saveFailures.Inc() }

// Swept counts rows that came back to PENDING without an insert.
func (m *Metrics) Swept(rows int) { m.swept.Add(float64(rows)) }

// Connected notes that the source reads.
func (m *Metrics) Connected() { m.connected.Set(1) }

// Lost notes that the source lost its connection.
func (m *Metrics) Lost(error, time.Duration) {
	m.connected.Set(0)
	m.reconnects.Inc()
}

// Retained notes how many bytes of log the database keeps for this relay.
func (m *Metrics) Retained(bytes int64) { m.retained.Set(float64(bytes)) }

// Paused notes whether the source is paused for want of room.
func (m *Metrics) Paused(paused bool) {
	m.paused.Set(0)
	if paused {
		m.paused.Set(1)
	}
}

// LogLost counts a log that was lost, or that can no longer be read.
func (m *Metrics) LogLost() { m.losses.Inc() }

// Mode notes how rows are captured from now on: stream or poll.
func (m *Metrics) Mode(mode string) {
	for _, other := range []string{"stream", "poll"} {
		if other != mode {
			m.mode.WithLabelValues(other).Set(0)
		}
	}
	m.mode.WithLabelValues(mode).Set(1)
}

// Leads notes the epoch of this relay's leadership.
func (m *Metrics) Leads(epoch store.Epoch) {
	m.leader.Set(1)
	m.epoch.Set(float64(epoch))
}

// StandsBy notes that this relay does not lead: it reads nothing, holds nothing
// and sends nothing.
func (m *Metrics) StandsBy() {
	for _, g := range []prometheus.Gauge{m.leader, m.epoch, m.connected, m.retained, m.paused} {
		g.Set(0)
	}
	m.mode.Reset()
	m.known.Range(func(_, known any) bool {
		s := known.(*SinkMetrics)
		s.Holds(dispatch.Stats{})
		s.Suspected(nil)
		m.sinks.lanes.DeletePartialMatch(prometheus.Labels{"sink": s.name})
		return true
	})
}

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
	retries    prometheus.Counter
	failures   prometheus.Counter
	duration   prometheus.Observer
	ack        prometheus.Observer
	rows       prometheus.Gauge
	parked     prometheus.Gauge
	rowsParked prometheus.Counter
	bytes      prometheus.Gauge
	inFlight   prometheus.Gauge
	now        func() time.Time
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
		mixed:    v.requests.WithLabelValues(name, "mixed"),
		probes:   v.probes.WithLabelValues(name),
		splits:   v.splits.WithLabelValues(name),
		shared:   v.shared.WithLabelValues(name),
		retries:  v.retries.WithLabelValues(name),
		failures: v.storeFailures.WithLabelValues(name),
		duration: v.duration.WithLabelValues(name),
		ack:      v.ack.WithLabelValues(name),
		rows:     v.rows.WithLabelValues(name),
		parked:   v.parked.WithLabelValues(name),

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
	if result >= store.Claimed && result <= store.Gone {
		s.m.claims[result].Add(float64(n))
	}
}

// Requested counts an answered request and what became of each of its rows.
func (s *SinkMetrics) Requested(req dispatch.Request, res *sink.Result, took time.Duration) {
	s.duration.Observe(took.Seconds())
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

// Suspected notes which endpoints of the sink are suspect, and for what.
func (s *SinkMetrics) Suspected(all []dispatch.Suspicion) {
	for class := sink.Rejected; class <= sink.Misconfigured; class++ {
		s.suspect[class].Set(0)
	}
	for i := range all {
		if class := all[i].Why.Class; class >= sink.Rejected && class <= sink.Misconfigured {
			s.suspect[class].Set(1)
		}
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
		s.settled[store.Completed].Inc()
		since := it.Committed
		if since.IsZero() {
			since = it.Captured
		}
		if took := s.now().Sub(since); !since.IsZero() {
			s.ack.Observe(max(0, took).Seconds())
		}
	case store.Failed:
		s.settled[store.Failed].Inc()
	case store.Pending:
		if o.Error != "" || o.Reason != store.ReasonNone {
			s.retries.Inc()
		}
	}
}

// StoreFailed counts a claim or an outcome that did not reach the database.
func (s *SinkMetrics) StoreFailed(string, error) { s.failures.Inc() }

// RowsParked counts rows that were parked.
func (s *SinkMetrics) RowsParked(n int) { s.rowsParked.Add(float64(n)) }

// Holds sets what the sink's dispatcher holds at this moment.
func (s *SinkMetrics) Holds(stats dispatch.Stats) {
	s.rows.Set(float64(stats.Rows))
	s.parked.Set(float64(stats.Parked))
	s.bytes.Set(float64(stats.Bytes))
	s.inFlight.Set(float64(stats.InFlight))
	for state, n := range stats.Lanes {
		s.m.sinks.lanes.WithLabelValues(s.name, state).Set(float64(n))
	}
}
