package app

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

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
