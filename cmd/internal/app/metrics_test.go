package app

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

func newTestMetrics(t *testing.T) (*prometheus.Registry, *Metrics) {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	return reg, NewMetrics(reg, Build{Version: "1.2.3", GoVersion: "go1.26"})
}

func expect(t *testing.T, reg *prometheus.Registry, want string, names ...string) {
	t.Helper()
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
}

func TestMetricNamesPassTheLinter(t *testing.T) {
	reg, m := newTestMetrics(t)
	m.Captured("outbox_events", 1)
	m.Mode("stream")
	m.sink("platform").SetStats(dispatch.Stats{Lanes: map[string]int{"ready": 1}, Oldest: time.Now()})
	m.SetLastReceived(new(time.Now()))
	m.DeadLetters("outbox_events", new(int))
	problems, err := testutil.GatherAndLint(reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestNoMetricHasALabelPerGroup checks that labels are bounded, because the number of
// groups is not.
func TestNoMetricHasALabelPerGroup(t *testing.T) {
	reg, m := newTestMetrics(t)
	s := m.sink("platform")
	for _, group := range []string{"a", "b", "c"} {
		it := &store.Item{Ref: store.Ref{Outbox: "o", ID: "id-" + group}, Group: store.GroupOf("group-" + group), Kind: "EVENT"}
		s.Settled(it, &store.Outcome{Ref: it.Ref, Status: store.Completed})
	}
	m.Captured("o", 3)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	allowed := map[string]bool{"outbox": true, "result": true, "sink": true, "outcome": true, "class": true, "status": true,
		"state": true, "mode": true, "version": true, "goversion": true}
	for _, f := range families {
		for _, metric := range f.GetMetric() {
			for _, label := range metric.GetLabel() {
				if !allowed[label.GetName()] || strings.Contains(label.GetValue(), "group-") || strings.Contains(label.GetValue(), "id-") {
					t.Errorf("%s has the label %s=%q", f.GetName(), label.GetName(), label.GetValue())
				}
			}
		}
	}
}

func TestRelayMetrics(t *testing.T) {
	reg, m := newTestMetrics(t)
	m.Captured("events", 3)
	m.Captured("events", 2)
	m.Captured("jobs", 1)
	m.Connected()
	m.Disconnected(errors.New("gone"), time.Second)
	m.LogLost()
	m.Retained(4096, 8192)
	m.Paused(true)
	m.Mode("stream")
	m.Mode("poll")
	m.ClaimsMode(sluicebox.ClaimsOn)
	m.ClaimsMode(sluicebox.ClaimsLate)
	m.SetLeader(7)
	m.SaveFailed(errors.New("down"))
	expect(t, reg, `
# HELP sluicebox_build_info Build information; the value is always 1.
# TYPE sluicebox_build_info gauge
sluicebox_build_info{goversion="go1.26",version="1.2.3"} 1
# HELP sluicebox_checkpoint_save_failures_total Failed attempts to save the checkpoint.
# TYPE sluicebox_checkpoint_save_failures_total counter
sluicebox_checkpoint_save_failures_total 1
# HELP sluicebox_claims_mode Current claims mode of this leader (1 = active).
# TYPE sluicebox_claims_mode gauge
sluicebox_claims_mode{mode="late"} 1
sluicebox_claims_mode{mode="off"} 0
sluicebox_claims_mode{mode="on"} 0
# HELP sluicebox_leader Whether this relay is the leader (1 = leader, 0 = standby).
# TYPE sluicebox_leader gauge
sluicebox_leader 1
# HELP sluicebox_leader_epoch Leadership epoch (fencing token) of this relay; 0 on a standby.
# TYPE sluicebox_leader_epoch gauge
sluicebox_leader_epoch 7
# HELP sluicebox_rows_captured_total Rows captured from the log or by polling, by outbox.
# TYPE sluicebox_rows_captured_total counter
sluicebox_rows_captured_total{outbox="events"} 5
sluicebox_rows_captured_total{outbox="jobs"} 1
# HELP sluicebox_source_connected Whether the source reads the log or polls the tables (1 = connected).
# TYPE sluicebox_source_connected gauge
sluicebox_source_connected 0
# HELP sluicebox_source_log_losses_total Times the log, or the relay's position in it, was lost or became unreadable.
# TYPE sluicebox_source_log_losses_total counter
sluicebox_source_log_losses_total 1
# HELP sluicebox_source_mode Current capture mode (1 = active).
# TYPE sluicebox_source_mode gauge
sluicebox_source_mode{mode="poll"} 1
sluicebox_source_mode{mode="stream"} 0
# HELP sluicebox_source_paused Whether capture is paused because the sink buffers are full (1 = paused).
# TYPE sluicebox_source_paused gauge
sluicebox_source_paused 1
# HELP sluicebox_source_disconnects_total Source connections lost.
# TYPE sluicebox_source_disconnects_total counter
sluicebox_source_disconnects_total 1
# HELP sluicebox_source_retained_bytes Bytes of log that the database retains for this relay.
# TYPE sluicebox_source_retained_bytes gauge
sluicebox_source_retained_bytes 4096
`, "sluicebox_build_info", "sluicebox_checkpoint_save_failures_total", "sluicebox_claims_mode", "sluicebox_leader", "sluicebox_leader_epoch", "sluicebox_rows_captured_total",
		"sluicebox_source_connected", "sluicebox_source_log_losses_total", "sluicebox_source_mode", "sluicebox_source_paused",
		"sluicebox_source_disconnects_total", "sluicebox_source_retained_bytes")
	before := float64(time.Now().Add(-time.Second).Unix())
	m.Saved(store.Checkpoint{})
	if got := testutil.ToFloat64(m.checkpointSavedAt); got < before {
		t.Errorf("the checkpoint was saved at %f", got)
	}
}

// A standby resets its gauges and keeps its counters.
func TestStandbyResetsGauges(t *testing.T) {
	reg, m := newTestMetrics(t)
	m.Connected()
	m.Retained(4096, 8192)
	m.Mode("stream")
	m.ClaimsMode(sluicebox.ClaimsLate)
	m.SetLeader(7)
	m.Captured("events", 3)
	s := m.sink("platform")
	s.SetStats(dispatch.Stats{Rows: 3, Spilled: 2, Bytes: 1, InFlight: 1, Lanes: map[string]int{"sending": 1}})
	s.BreakersChanged([]dispatch.OpenBreaker{{Endpoint: "x", LastFailure: sink.Outcome{Class: sink.Refused}}})
	m.SetStandby()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, metric := range f.GetMetric() {
			if f.GetName() != "sluicebox_build_info" && metric.GetGauge().GetValue() != 0 {
				t.Errorf("%s is %v", f.GetName(), metric)
			}
		}
	}
	if got := testutil.ToFloat64(m.captured.WithLabelValues("events")); got != 3 {
		t.Errorf("%v rows captured", got)
	}
}

// Endpoints that rows name are counted, and open no breaker of the sink as a whole.
func TestEndpointsThatRowsName(t *testing.T) {
	_, m := newTestMetrics(t)
	s := m.sink("customers")
	down := dispatch.OpenBreaker{LastFailure: sink.Outcome{Class: sink.Unavailable}, Named: true}
	idle := down
	idle.Idle = true
	s.BreakersChanged([]dispatch.OpenBreaker{down, down, idle})
	if n, open := testutil.ToFloat64(s.endpointsOpen), testutil.ToFloat64(s.breakerOpen.WithLabelValues("unavailable")); n != 2 || open != 0 {
		t.Errorf("%v endpoints are open, want 2; the sink: %v, want 0", n, open)
	}
	s.BreakersChanged(nil)
	if n := testutil.ToFloat64(s.endpointsOpen); n != 0 {
		t.Errorf("%v endpoints are open, want 0", n)
	}
}

func TestSinkMetrics(t *testing.T) {
	reg, m := newTestMetrics(t)
	s := m.sink("platform")
	if m.sink("platform") != s {
		t.Error("a sink has two sets of metrics")
	}
	s.Claimed(store.Claimed, 4)
	s.Claimed(store.Gone, 1)
	s.Claimed(0, 9)
	s.Claimed(99, 9)
	s.Requested(dispatch.RequestInfo{Rows: 3, Lanes: 1}, &sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}, time.Millisecond)
	s.Requested(dispatch.RequestInfo{Rows: 2, Lanes: 2}, &sink.Result{Items: []sink.Outcome{{Class: sink.Delivered}, {Class: sink.Refused}}}, time.Second)
	s.Requested(dispatch.RequestInfo{Rows: 5, Lanes: 1, Split: true}, &sink.Result{Outcome: sink.Outcome{Class: sink.Unavailable}}, time.Second)
	s.Requested(dispatch.RequestInfo{Rows: 1, Lanes: 1, Probe: true}, &sink.Result{}, time.Second) // no class: only the duration counts
	s.StoreFailed("claim", errors.New("down"))
	s.RowsSpilled(3)
	s.BreakersChanged(suspect(sink.Refused))
	s.BreakersChanged(nil)
	s.BreakersChanged(suspect(sink.Misconfigured))
	s.BreakersChanged(suspect(sink.Misconfigured + 1)) // not a class
	s.BreakersChanged([]dispatch.OpenBreaker{{Endpoint: "/", LastFailure: sink.Outcome{Class: sink.Refused}, Idle: true}})
	s.BreakersChanged(suspect(sink.Misconfigured))
	expect(t, reg, `
# HELP sluicebox_claim_rows_total Rows requested in claim statements, by result.
# TYPE sluicebox_claim_rows_total counter
sluicebox_claim_rows_total{result="already_settled"} 0
sluicebox_claim_rows_total{result="claimed"} 4
sluicebox_claim_rows_total{result="gone"} 1
sluicebox_claim_rows_total{result="held"} 0
sluicebox_claim_rows_total{result="not_yet_visible"} 0
sluicebox_claim_rows_total{result="table_locked"} 0
# HELP sluicebox_delivery_attempts_total Delivery attempts of rows, by outcome. A request counts once for each of its rows.
# TYPE sluicebox_delivery_attempts_total counter
sluicebox_delivery_attempts_total{outcome="delivered",sink="platform"} 4
sluicebox_delivery_attempts_total{outcome="misconfigured",sink="platform"} 0
sluicebox_delivery_attempts_total{outcome="refused",sink="platform"} 1
sluicebox_delivery_attempts_total{outcome="rejected",sink="platform"} 0
sluicebox_delivery_attempts_total{outcome="unavailable",sink="platform"} 5
# HELP sluicebox_probes_total Single-row probes of an endpoint with an open circuit breaker, and retries requested by an operator.
# TYPE sluicebox_probes_total counter
sluicebox_probes_total{sink="platform"} 1
# HELP sluicebox_requests_total Completed requests, by result class. Class "mixed" is a response with a result for each row.
# TYPE sluicebox_requests_total counter
sluicebox_requests_total{class="delivered",sink="platform"} 1
sluicebox_requests_total{class="misconfigured",sink="platform"} 0
sluicebox_requests_total{class="mixed",sink="platform"} 1
sluicebox_requests_total{class="refused",sink="platform"} 0
sluicebox_requests_total{class="rejected",sink="platform"} 0
sluicebox_requests_total{class="unavailable",sink="platform"} 1
# HELP sluicebox_multi_group_requests_total Requests that carried rows of several message groups.
# TYPE sluicebox_multi_group_requests_total counter
sluicebox_multi_group_requests_total{sink="platform"} 1
# HELP sluicebox_sink_breaker_open Whether a circuit breaker of the sink is open while rows wait (1 = open, only probes are sent), by class of its latest failure.
# TYPE sluicebox_sink_breaker_open gauge
sluicebox_sink_breaker_open{class="misconfigured",sink="platform"} 1
sluicebox_sink_breaker_open{class="refused",sink="platform"} 0
sluicebox_sink_breaker_open{class="rejected",sink="platform"} 0
sluicebox_sink_breaker_open{class="unavailable",sink="platform"} 0
# HELP sluicebox_bisect_requests_total Requests that bisect a failed batch to isolate the row that caused the failure.
# TYPE sluicebox_bisect_requests_total counter
sluicebox_bisect_requests_total{sink="platform"} 1
# HELP sluicebox_store_failures_total Failed claim and settle operations, including rows refused by their table. Each is retried, except late claims.
# TYPE sluicebox_store_failures_total counter
sluicebox_store_failures_total{sink="platform"} 1
`, "sluicebox_claim_rows_total", "sluicebox_delivery_attempts_total", "sluicebox_requests_total", "sluicebox_store_failures_total",
		"sluicebox_probes_total", "sluicebox_bisect_requests_total", "sluicebox_multi_group_requests_total", "sluicebox_sink_breaker_open")
	if n := testutil.CollectAndCount(s.duration); n != 1 {
		t.Errorf("%d histograms of durations, want 1", n)
	}
}

func TestSettledMetrics(t *testing.T) { synctest.Test(t, testSettledMetrics) }

func testSettledMetrics(t *testing.T) {
	reg, m := newTestMetrics(t)
	s, now := m.sink("platform"), time.Now()
	item := func(committed, captured time.Duration) *store.Item {
		it := &store.Item{}
		if committed > 0 {
			it.Committed = now.Add(-committed)
		}
		if captured > 0 {
			it.Captured = now.Add(-captured)
		}
		return it
	}
	s.Settled(item(2*time.Second, time.Second), &store.Outcome{Status: store.Completed})
	s.Settled(item(0, 500*time.Microsecond), &store.Outcome{Status: store.Completed}) // read from a table
	s.Settled(item(0, 0), &store.Outcome{Status: store.Completed})                    // no time known
	s.Settled(&store.Item{Committed: now.Add(time.Minute)}, &store.Outcome{Status: store.Completed})
	s.Settled(item(time.Second, 0), &store.Outcome{Status: store.Failed, Error: "no"})
	s.Settled(item(time.Second, 0), &store.Outcome{Status: store.Pending, Error: "later"})
	s.Settled(item(time.Second, 0), &store.Outcome{Status: store.Pending}) // released
	expect(t, reg, `
# HELP sluicebox_retries_total Failed delivery attempts that counted against a row and will be retried.
# TYPE sluicebox_retries_total counter
sluicebox_retries_total{sink="platform"} 1
# HELP sluicebox_rows_settled_total Rows whose final status was written to the outbox table, by status.
# TYPE sluicebox_rows_settled_total counter
sluicebox_rows_settled_total{sink="platform",status="COMPLETED"} 4
sluicebox_rows_settled_total{sink="platform",status="FAILED"} 1
`, "sluicebox_retries_total", "sluicebox_rows_settled_total")
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "sluicebox_commit_to_ack_seconds" {
			continue
		}
		h := f.GetMetric()[0].GetHistogram()
		// 2 s, 0.5 ms, and 0 for a clock that is ahead.
		if h.GetSampleCount() != 3 || h.GetSampleSum() != 2.0005 {
			t.Errorf("%d rows in %f seconds, want 3 in 2.0005", h.GetSampleCount(), h.GetSampleSum())
		}
	}
}

func TestHolds(t *testing.T) {
	reg, m := newTestMetrics(t)
	s := m.sink("platform")
	s.SetStats(dispatch.Stats{Rows: 5, Bytes: 600, InFlight: 2, Lanes: map[string]int{"ready": 3, "waiting": 1}})
	s.SetStats(dispatch.Stats{Rows: 1, Spilled: 7, Bytes: 20, InFlight: 1, Lanes: map[string]int{"ready": 0, "waiting": 1}})
	expect(t, reg, `
# HELP sluicebox_lanes Lanes (message groups) with undelivered or held rows, by state.
# TYPE sluicebox_lanes gauge
sluicebox_lanes{sink="platform",state="ready"} 0
sluicebox_lanes{sink="platform",state="waiting"} 1
# HELP sluicebox_spilled_rows Rows currently spilled to the relay's own table.
# TYPE sluicebox_spilled_rows gauge
sluicebox_spilled_rows{sink="platform"} 7
# HELP sluicebox_pending_bytes Bytes of payload in memory.
# TYPE sluicebox_pending_bytes gauge
sluicebox_pending_bytes{sink="platform"} 20
# HELP sluicebox_pending_rows Rows in memory whose outcome is not yet written.
# TYPE sluicebox_pending_rows gauge
sluicebox_pending_rows{sink="platform"} 1
# HELP sluicebox_requests_in_flight Requests and claims in flight.
# TYPE sluicebox_requests_in_flight gauge
sluicebox_requests_in_flight{sink="platform"} 1
`, "sluicebox_lanes", "sluicebox_spilled_rows", "sluicebox_pending_bytes", "sluicebox_pending_rows", "sluicebox_requests_in_flight")
}

func TestHotPathAllocatesNothing(t *testing.T) {
	_, m := newTestMetrics(t)
	s := m.sink("platform")
	m.Captured("events", 1)
	it := &store.Item{Committed: time.Now()}
	done := &store.Outcome{Status: store.Completed}
	res := &sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}
	if n := testing.AllocsPerRun(100, func() {
		m.Captured("events", 1)
		s.Claimed(store.Claimed, 1)
		s.Requested(dispatch.RequestInfo{Rows: 10, Lanes: 1}, res, time.Millisecond)
		s.Settled(it, done)
	}); n != 0 {
		t.Errorf("%v allocations for a row, want none", n)
	}
}

func suspect(class sink.Class) []dispatch.OpenBreaker {
	return []dispatch.OpenBreaker{{Endpoint: "/", LastFailure: sink.Outcome{Class: class}}}
}

// A timestamp without a value is absent, because 0 would look like the oldest.
func TestUnknownTimesAreAbsent(t *testing.T) {
	reg, m := newTestMetrics(t)
	at, three := time.Unix(1_700_000_000, 250_000_000), 3
	s := m.sink("platform")
	s.SetStats(dispatch.Stats{Oldest: at})
	m.SetLastReceived(&at)
	m.DeadLetters("orders", &three)
	m.Retained(1, 2)
	names := []string{"sluicebox_oldest_pending_timestamp_seconds", "sluicebox_source_last_received_timestamp_seconds", "sluicebox_dead_letters"}
	expect(t, reg, `
# HELP sluicebox_dead_letters FAILED rows in the outbox at the last count. A status request with count=true counts them; absent until then.
# TYPE sluicebox_dead_letters gauge
sluicebox_dead_letters{outbox="orders"} 3
# HELP sluicebox_oldest_pending_timestamp_seconds Unix commit time of the oldest row in memory (capture time, if the log has no commit time). Absent while no row is in memory.
# TYPE sluicebox_oldest_pending_timestamp_seconds gauge
sluicebox_oldest_pending_timestamp_seconds{sink="platform"} 1.70000000025e+09
# HELP sluicebox_source_last_received_timestamp_seconds Unix time of the last message from the log, or of the last poll result. Absent while no source is running.
# TYPE sluicebox_source_last_received_timestamp_seconds gauge
sluicebox_source_last_received_timestamp_seconds 1.70000000025e+09
# HELP sluicebox_source_retained_limit_bytes Bytes of retained log above which the relay spills rows.
# TYPE sluicebox_source_retained_limit_bytes gauge
sluicebox_source_retained_limit_bytes 2
`, append(names, "sluicebox_source_retained_limit_bytes")...)
	s.SetStats(dispatch.Stats{})
	m.SetLastReceived(nil)
	m.DeadLetters("orders", nil)
	expect(t, reg, "", names...)
	s.SetStats(dispatch.Stats{Oldest: at})
	m.SetLastReceived(&at)
	m.DeadLetters("orders", &three)
	m.SetStandby()
	expect(t, reg, "", names...)
}

// A notice about the destination is counted, so that an alert can follow.
func TestNoticesAreCounted(t *testing.T) {
	reg, m := newTestMetrics(t)
	s := m.sink("bus")
	s.Requested(dispatch.RequestInfo{Rows: 1}, &sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}, 0)
	s.Requested(dispatch.RequestInfo{Rows: 1}, &sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}, Notice: "more partitions"}, 0)
	expect(t, reg, `
# HELP sluicebox_destination_changes_total Changes that the sink noticed in its destination, for example more partitions of a topic.
# TYPE sluicebox_destination_changes_total counter
sluicebox_destination_changes_total{sink="bus"} 1
`, "sluicebox_destination_changes_total")
}
