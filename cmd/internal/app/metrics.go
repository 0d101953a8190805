package app

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// Build holds the labels of the metric build_info.
type Build struct {
	Version   string
	GoVersion string
}

// requestBuckets returns histogram buckets in seconds, up to the default request timeout.
func requestBuckets() []float64 {
	return []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
}

// ackBuckets returns histogram buckets in seconds, from 0.25 ms for a row at low load to
// 2 h after an outage.
func ackBuckets() []float64 {
	return []float64{.00025, .0005, .00075, .001, .0015, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200}
}

// Metrics holds the relay's Prometheus metrics. They observe a relay, which only writes them. No metric has
// a label per message group, because the number of groups is unbounded.
//
// Methods are safe for concurrent use. Methods called per batch or row do not allocate
// once the outbox and the sink are known.
type Metrics struct {
	captured          *prometheus.CounterVec
	claims            [store.TableLocked + 1]prometheus.Counter
	vanished          *prometheus.CounterVec
	sinks             sinkVecs
	replays           replayMetrics
	checkpointSavedAt prometheus.Gauge
	saveFailures      prometheus.Counter
	swept             prometheus.Counter
	connected         prometheus.Gauge
	disconnects       prometheus.Counter
	logLosses         prometheus.Counter
	retained          prometheus.Gauge
	retainedLimit     prometheus.Gauge
	lastReceived      *prometheus.GaugeVec
	paused            prometheus.Gauge
	deadLetters       *prometheus.GaugeVec
	mode              *prometheus.GaugeVec
	leader            prometheus.Gauge
	epoch             prometheus.Gauge

	capturedMeter    meter    // captured rows
	capturedByOutbox sync.Map // name → prometheus.Counter
	metricsBySink    sync.Map // name → *SinkMetrics
}

// sinkVecs are the metrics with a label for the sink.
type sinkVecs struct {
	deliveries, requests, settled *prometheus.CounterVec
	probes, bisects, multiGroup   *prometheus.CounterVec
	retries, storeFailures        *prometheus.CounterVec
	duration, commitToAck         *prometheus.HistogramVec
	rows, bytes, lanes, inFlight  *prometheus.GaugeVec
	spilled, unspillable, oldest  *prometheus.GaugeVec
	refused                       *prometheus.GaugeVec
	rowsSpilled, skipped          *prometheus.CounterVec
	breakerOpen, openFailed       *prometheus.GaugeVec
}

// registrar creates and registers metrics.
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

// NewMetrics creates and registers the relay's metrics. It panics if reg already holds
// them, because a registry belongs to one relay.
func NewMetrics(reg prometheus.Registerer, build Build) *Metrics {
	r := registrar{reg}
	claims := r.counters("claim_rows_total", "Rows requested in claim statements, by result.", "result")
	m := &Metrics{
		captured:          r.counters("rows_captured_total", "Rows captured from the log or by polling, by outbox.", "outbox"),
		vanished:          r.counters("rows_vanished_total", "Rows deleted from their table before they were claimed or settled, by outbox.", "outbox"),
		sinks:             newSinkVecs(r),
		replays:           newReplayMetrics(r),
		checkpointSavedAt: r.gauges("checkpoint_last_save_timestamp_seconds", "Unix time of the last saved checkpoint.").WithLabelValues(),
		saveFailures:      r.counters("checkpoint_save_failures_total", "Failed attempts to save the checkpoint.").WithLabelValues(),
		swept:             r.counters("rows_swept_total", "Rows reset to PENDING by an update, found by the table sweep.").WithLabelValues(),
		connected:         r.gauges("source_connected", "Whether the source reads the log or polls the tables (1 = connected).").WithLabelValues(),
		disconnects:       r.counters("source_disconnects_total", "Source connections lost.").WithLabelValues(),
		logLosses:         r.counters("source_log_losses_total", "Times the log, or the relay's position in it, was lost or became unreadable.").WithLabelValues(),
		retained:          r.gauges("source_retained_bytes", "Bytes of log that the database retains for this relay.").WithLabelValues(),
		retainedLimit:     r.gauges("source_retained_limit_bytes", "Bytes of retained log above which the relay spills rows.").WithLabelValues(),
		lastReceived:      r.gauges("source_last_received_timestamp_seconds", "Unix time of the last message from the log, or of the last poll result. Absent while no source is running."),
		deadLetters:       r.gauges("dead_letters", "FAILED rows in the outbox at the last count. A status request with count=true counts them; absent until then.", "outbox"),
		paused:            r.gauges("source_paused", "Whether capture is paused because the sink buffers are full (1 = paused).").WithLabelValues(),
		mode:              r.gauges("source_mode", "Current capture mode (1 = active).", "mode"),
		leader:            r.gauges("leader", "Whether this relay is the leader (1 = leader, 0 = standby).").WithLabelValues(),
		epoch:             r.gauges("leader_epoch", "Leadership epoch (fencing token) of this relay; 0 on a standby.").WithLabelValues(),
	}

	for result := store.Claimed; result <= store.TableLocked; result++ {
		m.claims[result] = claims.WithLabelValues(result.String())
	}
	r.gauges("build_info", "Build information; the value is always 1.", "version", "goversion").
		WithLabelValues(build.Version, build.GoVersion).Set(1)
	return m
}

func newSinkVecs(r registrar) sinkVecs {
	return sinkVecs{
		deliveries:    r.counters("delivery_attempts_total", "Delivery attempts of rows, by outcome. A request counts once for each of its rows.", "sink", "outcome"),
		requests:      r.counters("requests_total", "Completed requests, by result class. Class \"mixed\" is a response with a result for each row.", "sink", "class"),
		settled:       r.counters("rows_settled_total", "Rows whose final status was written to the outbox table, by status.", "sink", "status"),
		probes:        r.counters("probes_total", "Single-row probes of an endpoint with an open circuit breaker, and retries requested by an operator.", "sink"),
		bisects:       r.counters("bisect_requests_total", "Requests that bisect a failed batch to isolate the row that caused the failure.", "sink"),
		multiGroup:    r.counters("multi_group_requests_total", "Requests that carried rows of several message groups.", "sink"),
		breakerOpen:   r.gauges("sink_breaker_open", "Whether a circuit breaker of the sink is open while rows wait (1 = open, only probes are sent), by class of its latest failure.", "sink", "class"),
		openFailed:    r.gauges("sink_open_failed", "Whether the sink cannot be opened because a file it needs is unusable (1 = not open).", "sink"),
		retries:       r.counters("retries_total", "Failed delivery attempts that counted against a row and will be retried.", "sink"),
		skipped:       r.counters("rows_skipped_total", "Delivered rows that the receiver reported as skipped, by kind.", "sink", "kind"),
		rowsSpilled:   r.counters("rows_spilled_total", "Rows spilled from memory to the relay's own table.", "sink"),
		storeFailures: r.counters("store_failures_total", "Failed claim and settle operations, including rows refused by their table. Each is retried.", "sink"),
		duration:      r.histograms("request_duration_seconds", "Duration of requests to the sink.", requestBuckets(), "sink"),
		commitToAck:   r.histograms("commit_to_ack_seconds", "Time from a row's commit (its capture, if the log has no commit time) until its COMPLETED status was written.", ackBuckets(), "sink"),
		spilled:       r.gauges("spilled_rows", "Rows currently spilled to the relay's own table.", "sink"),
		unspillable:   r.gauges("unspillable_rows", "Rows that the relay's own table refuses. They stay in memory, and the database retains log for them.", "sink"),
		refused:       r.gauges("refused_rows", "Rows whose claim or outcome the outbox table refuses at present, for example because of a trigger or constraint.", "sink", "outbox"),
		oldest:        r.gauges("oldest_pending_timestamp_seconds", "Unix commit time of the oldest row in memory (capture time, if the log has no commit time). Absent while no row is in memory.", "sink"),
		rows:          r.gauges("pending_rows", "Rows in memory whose outcome is not yet written.", "sink"),
		bytes:         r.gauges("pending_bytes", "Bytes of payload in memory.", "sink"),
		lanes:         r.gauges("lanes", "Lanes (message groups) with undelivered or held rows, by state.", "sink", "state"),
		inFlight:      r.gauges("requests_in_flight", "Requests and claims in flight.", "sink"),
	}
}

// RefusedRows sets the number of rows that the table of an outbox refuses at present.
func (m *Metrics) RefusedRows(sink, outbox string, n int) {
	m.sinks.refused.WithLabelValues(sink, outbox).Set(float64(n))
}

// Captured counts captured rows of an outbox.
func (m *Metrics) Captured(outbox string, n int) {
	c, ok := m.capturedByOutbox.Load(outbox)
	if !ok {
		c, _ = m.capturedByOutbox.LoadOrStore(outbox, m.captured.WithLabelValues(outbox))
	}
	c.(prometheus.Counter).Add(float64(n))
	m.capturedMeter.add(time.Now(), n)
}

// Saved records a checkpoint saved now.
func (m *Metrics) Saved(store.Checkpoint) { m.checkpointSavedAt.SetToCurrentTime() }

// SaveFailed counts a failed checkpoint save.
func (m *Metrics) SaveFailed(error) { m.saveFailures.Inc() }

// Swept counts rows that were reset to PENDING without an insert.
func (m *Metrics) Swept(rows int) { m.swept.Add(float64(rows)) }

// Connected records that the source reads.
func (m *Metrics) Connected() { m.connected.Set(1) }

// Disconnected records a lost source connection.
func (m *Metrics) Disconnected(error, time.Duration) {
	m.connected.Set(0)
	m.disconnects.Inc()
}

// Retained sets the bytes of log the database retains for this relay, and their limit.
func (m *Metrics) Retained(bytes, limit int64) {
	m.retained.Set(float64(bytes))
	m.retainedLimit.Set(float64(limit))
}

// SetLastReceived sets the time of the last message from the source. The metric is absent
// for the zero time.
func (m *Metrics) SetLastReceived(at time.Time) { setTimestamp(m.lastReceived, at) }

// DeadLetters sets the number of FAILED rows of an outbox. The metric is absent for nil.
func (m *Metrics) DeadLetters(outbox string, rows *int) {
	if rows == nil {
		m.deadLetters.DeleteLabelValues(outbox)
		return
	}
	m.deadLetters.WithLabelValues(outbox).Set(float64(*rows))
}

// setTimestamp sets a time, or removes the metric for the zero time: a value of 0 would
// look like the oldest timestamp.
func setTimestamp(v *prometheus.GaugeVec, at time.Time, labels ...string) {
	if at.IsZero() {
		v.DeleteLabelValues(labels...)
		return
	}
	v.WithLabelValues(labels...).Set(float64(at.UnixMicro()) / 1e6)
}

// Paused records whether capture is paused because the sink buffers are full.
func (m *Metrics) Paused(paused bool) {
	m.paused.Set(0)
	if paused {
		m.paused.Set(1)
	}
}

// LogLost counts a log that was lost or became unreadable.
func (m *Metrics) LogLost() { m.logLosses.Inc() }

// Mode records the capture mode: stream or poll.
func (m *Metrics) Mode(mode sluicebox.Mode) {
	m.clearMode()
	m.mode.WithLabelValues(string(mode)).Set(1)
}

func (m *Metrics) clearMode() {
	for _, mode := range []string{"stream", "poll"} {
		m.mode.WithLabelValues(mode).Set(0)
	}
}

// SetLeader records the epoch of this relay's leadership.
func (m *Metrics) SetLeader(epoch store.Epoch) {
	m.leader.Set(1)
	m.epoch.Set(float64(epoch))
}

// SetStandby resets the metrics that only a leader has.
func (m *Metrics) SetStandby() {
	for _, g := range []prometheus.Gauge{m.leader, m.epoch, m.connected, m.retained, m.retainedLimit, m.paused} {
		g.Set(0)
	}
	m.clearMode()
	m.lastReceived.Reset()
	m.deadLetters.Reset()
	m.replays.reset()
	m.metricsBySink.Range(func(_, known any) bool {
		s := known.(*SinkMetrics)
		s.SetStats(dispatch.Stats{})
		s.BreakersChanged(nil)
		m.sinks.lanes.DeletePartialMatch(prometheus.Labels{"sink": s.name})
		return true
	})
}
