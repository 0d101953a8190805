package app

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// Build holds the labels of the metric build_info.
type Build struct {
	Version   string
	GoVersion string
}

// Metrics holds the relay's Prometheus metrics. They observe a relay. No metric has a label
// per message group, because the number of groups is unbounded.
//
// Methods are safe for concurrent use. Methods called per batch or row do not allocate
// once the outbox and the sink are known.
type Metrics struct {
	captured          *prometheus.CounterVec
	claims            [store.TableLocked + 1]prometheus.Counter
	vanished          *prometheus.CounterVec
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
	claimsMode        *prometheus.GaugeVec
	leader            prometheus.Gauge
	epoch             prometheus.Gauge

	failedChanges    atomic.Int64 // times that FAILED rows were made, requeued or discarded
	capturedMeter    meter        // captured rows
	capturedByOutbox sync.Map     // name → prometheus.Counter

	registry prometheus.Registerer // of further sinks
	mu       sync.Mutex            // held while a sink is added
	bySink   sync.Map              // name → *SinkMetrics
}

// registrar creates and registers metrics.
type registrar struct{ promauto.Factory }

func newRegistrar(reg prometheus.Registerer) registrar { return registrar{promauto.With(reg)} }

// namespace is the prefix of every metric.
const namespace = "sluicebox"

func (r registrar) counters(name, help string, labels ...string) *prometheus.CounterVec {
	return r.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
}

func (r registrar) counter(name, help string) prometheus.Counter {
	return r.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
}

func (r registrar) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return r.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, labels)
}

func (r registrar) gauge(name, help string) prometheus.Gauge {
	return r.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help})
}

func (r registrar) histogram(name, help string, buckets []float64) prometheus.Histogram {
	return r.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets})
}

// NewMetrics creates and registers the relay's metrics. It panics if reg already holds
// them, because a registry belongs to one relay.
func NewMetrics(reg prometheus.Registerer, build Build) *Metrics {
	r := newRegistrar(reg)
	claims := r.counters("claim_rows_total", "Rows requested in claim statements, by result.", "result")
	m := &Metrics{
		registry:          reg,
		captured:          r.counters("rows_captured_total", "Rows captured from the log or by polling, by outbox.", "outbox"),
		vanished:          r.counters("rows_vanished_total", "Rows deleted from their table before they were claimed or settled, by outbox.", "outbox"),
		replays:           newReplayMetrics(r),
		checkpointSavedAt: r.gauge("checkpoint_last_save_timestamp_seconds", "Unix time of the last saved checkpoint."),
		saveFailures:      r.counter("checkpoint_save_failures_total", "Failed attempts to save the checkpoint."),
		swept:             r.counter("rows_swept_total", "Rows reset to PENDING by an update, found by the table sweep."),
		connected:         r.gauge("source_connected", "Whether the source reads the log or polls the tables (1 = connected)."),
		disconnects:       r.counter("source_disconnects_total", "Source connections lost."),
		logLosses:         r.counter("source_log_losses_total", "Times the log, or the relay's position in it, was lost or became unreadable."),
		retained:          r.gauge("source_retained_bytes", "Bytes of log that the database retains for this relay."),
		retainedLimit:     r.gauge("source_retained_limit_bytes", "Bytes of retained log above which the relay spills rows."),
		lastReceived:      r.gauges("source_last_received_timestamp_seconds", "Unix time of the last message from the log, or of the last poll result. Absent while no source is running."),
		deadLetters:       r.gauges("dead_letters", "FAILED rows in the outbox at the last count. A status request with count=true counts them; absent until then.", "outbox"),
		paused:            r.gauge("source_paused", "Whether capture is paused because the sink buffers are full (1 = paused)."),
		mode:              r.gauges("source_mode", "Current capture mode (1 = active).", "mode"),
		claimsMode:        r.gauges("claims_mode", "Current claims mode of this leader (1 = active).", "mode"),
		leader:            r.gauge("leader", "Whether this relay is the leader (1 = leader, 0 = standby)."),
		epoch:             r.gauge("leader_epoch", "Leadership epoch (fencing token) of this relay; 0 on a standby."),
	}

	for result := store.Claimed; result <= store.TableLocked; result++ {
		m.claims[result] = claims.WithLabelValues(result.String())
	}
	r.gauges("build_info", "Build information; the value is always 1.", "version", "goversion").
		WithLabelValues(build.Version, build.GoVersion).Set(1)
	return m
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
// for nil.
func (m *Metrics) SetLastReceived(at *time.Time) {
	if at == nil {
		at = &time.Time{}
	}
	setTimestamp(m.lastReceived, *at)
}

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
func setTimestamp(v *prometheus.GaugeVec, at time.Time) {
	if at.IsZero() {
		v.Reset()
		return
	}
	v.WithLabelValues().Set(float64(at.UnixMicro()) / 1e6)
}

// Paused records whether capture is paused because the sink buffers are full.
func (m *Metrics) Paused(paused bool) { setBool(m.paused, paused) }

// setBool sets a gauge to 1 or 0.
func setBool(g prometheus.Gauge, on bool) {
	g.Set(0)
	if on {
		g.Set(1)
	}
}

// LogLost counts a log that was lost or became unreadable.
func (m *Metrics) LogLost() { m.logLosses.Inc() }

// Mode records the capture mode: stream or poll. "" is none.
func (m *Metrics) Mode(mode sluicebox.Mode) {
	for _, one := range []sluicebox.Mode{sluicebox.ModeStream, sluicebox.ModePoll} {
		setBool(m.mode.WithLabelValues(string(one)), one == mode)
	}
}

// ClaimsMode records the claims mode of a leader. "" is none.
func (m *Metrics) ClaimsMode(mode sluicebox.ClaimsMode) {
	for _, one := range []sluicebox.ClaimsMode{sluicebox.ClaimsOn, sluicebox.ClaimsLate, sluicebox.ClaimsOff} {
		setBool(m.claimsMode.WithLabelValues(string(one)), one == mode)
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
	m.Mode("")
	m.ClaimsMode("")
	m.lastReceived.Reset()
	m.deadLetters.Reset()
	m.replays.reset()
	m.bySink.Range(func(_, known any) bool {
		s := known.(*SinkMetrics)
		s.SetStats(dispatch.Stats{})
		s.BreakersChanged(nil)
		s.stats.lanes.Reset()
		return true
	})
}

// replayMetrics are the metrics of replays and named checkpoints.
type replayMetrics struct {
	rows      *prometheus.CounterVec
	remaining prometheus.Gauge
	state     *prometheus.GaugeVec
	retained  *prometheus.GaugeVec
	logDrops  prometheus.Counter
}

func newReplayMetrics(r registrar) replayMetrics {
	return replayMetrics{
		rows:      r.counters("replay_rows_total", "Replay rows finished, by outcome: sent, refused by the receiver, or skipped.", "sink", "outcome"),
		remaining: r.gauge("replay_remaining_rows", "Rows that the active replay has copied and not yet finished."),
		state:     r.gauges("replay_state", "State of the most recently active replay (1 = current state).", "state"),
		retained:  r.gauges("checkpoint_retained_bytes", "Bytes of log that the database retains for a named checkpoint.", "checkpoint"),
		logDrops:  r.counter("checkpoint_log_drops_total", "Named checkpoints whose retained log was lost or dropped at checkpoint.max-kept."),
	}
}

// reset clears the metrics that only a leader has.
func (m *replayMetrics) reset() {
	m.remaining.Set(0)
	m.state.Reset()
	m.retained.Reset()
}

// Replayed counts replay rows of a sink, by outcome.
func (m *Metrics) Replayed(sink, outcome string, rows int) {
	m.replays.rows.WithLabelValues(sink, outcome).Add(float64(rows))
}

// Replay records the state and the remaining rows of a replay.
func (m *Metrics) Replay(j *store.Job) {
	m.replays.state.Reset()
	m.replays.state.WithLabelValues(string(j.State)).Set(1)
	left := j.Total - j.Sent - j.Skipped - j.Refused
	if j.State.Ended() {
		left = 0
	}
	m.replays.remaining.Set(float64(left))
}

// LogsRetained sets the bytes of log retained for each named checkpoint.
func (m *Metrics) LogsRetained(list []capture.RetainedSlot) {
	m.replays.retained.Reset()
	for _, one := range list {
		m.replays.retained.WithLabelValues(one.Name).Set(float64(one.Bytes))
	}
}

// SavepointLogDropped counts a named checkpoint that lost its log.
func (m *Metrics) SavepointLogDropped(checkpoint string) {
	m.replays.logDrops.Inc()
	m.replays.retained.DeleteLabelValues(checkpoint) // LogsRetained is called later
}

// meterSeconds is the window of a meter: a minute plus the current second.
const meterSeconds = 61

// meter counts per second, so that a rate can be computed on demand, without a ticker.
type meter struct {
	mu      sync.Mutex
	began   int64 // Unix time of the first count
	seconds [meterSeconds]struct{ at, n int64 }
}

// add counts n at a time.
func (m *meter) add(now time.Time, n int) {
	at := now.Unix()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.began == 0 {
		m.began = at
	}
	s := &m.seconds[at%meterSeconds]
	if s.at != at {
		s.at, s.n = at, 0
	}
	s.n += int64(n)
}

// rate returns the counts per second over the given whole seconds before now. The window
// starts no earlier than the first count.
func (m *meter) rate(now time.Time, over int64) float64 {
	end := now.Unix()
	m.mu.Lock()
	defer m.mu.Unlock()
	sum := int64(0)
	for i := range m.seconds {
		if s := &m.seconds[i]; s.at >= end-over && s.at < end {
			sum += s.n
		}
	}
	if m.began > 0 {
		over = min(over, end-m.began)
	}
	return float64(sum) / float64(max(1, over))
}
