package app

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicebox/sluicebox/store/ingest"
	"github.com/sluicebox/sluicebox/store/outbox"
)

// startIngest starts the server that takes rows, if one is configured. It serves until the
// context ends, then answers what waits. failed is called if it ends before. stop ends it and
// waits for it.
func (p *program) startIngest(ctx context.Context, reg prometheus.Registerer, failed func()) (stop func() error, err error) {
	cfg, ok := p.cfg.Load().Ingest()
	if !ok {
		return func() error { return nil }, nil
	}
	db, err := openDatabase(p.cfg.Load())
	if err != nil {
		return nil, err
	}
	writer, err := p.cfg.Load().IngestWriter("sluicebox " + p.cfg.Load().Settings.Name + " ingest")
	if err != nil {
		db.store.Close()
		return nil, err
	}
	free := func() { writer.Close(); db.store.Close() }
	server, err := ingest.New(ingest.Options{Config: cfg, Writer: writer, Statuses: db.store, Observer: newIngestMetrics(reg, cfg.Clients), Log: p.log})
	if err == nil {
		err = server.Listen()
	}
	if err != nil {
		free()
		return nil, err
	}

	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		defer free()
		err := server.Run(ctx)
		if err != nil {
			failed()
		}
		done <- err
	}()
	return func() error { cancel(); return <-done }, nil
}

// ingestMetrics are the metrics of the server that takes rows. It implements ingest.Observer.
type ingestMetrics struct {
	requests *prometheus.CounterVec
	rows     *prometheus.CounterVec
	bytes    *prometheus.CounterVec
	seconds  prometheus.Histogram
	writes   prometheus.Histogram
	batch    prometheus.Histogram
}

func newIngestMetrics(reg prometheus.Registerer, clients []ingest.Client) *ingestMetrics {
	r := newRegistrar(reg)
	m := &ingestMetrics{
		requests: r.counters("ingest_requests_total", "Requests answered by ingest, by HTTP status.", "status"),
		rows:     r.counters("ingest_rows_total", "Rows of ingest that the database answered, by outcome: created, repeated, conflict or refused.", "outbox", "outcome"),
		bytes:    r.counters("ingest_payload_bytes_total", "Bytes of the payloads that ingest created.", "outbox"),
		seconds:  r.histogram("ingest_request_seconds", "Time from the header of a request to ingest to its answer.", prometheus.ExponentialBuckets(0.001, 2, 15)),
		writes:   r.histogram("ingest_write_seconds", "Time of a write of ingest, with its commit.", prometheus.ExponentialBuckets(0.0005, 2, 15)),
		batch:    r.histogram("ingest_batch_rows", "Rows that share a write of ingest.", prometheus.ExponentialBuckets(1, 2, 11)),
	}
	// From 0 on, so that the first rows, and the first answers of an outage, are an increase, which
	// shows in rates and raises an alert.
	for _, c := range clients {
		for _, box := range c.Outboxes {
			m.bytes.WithLabelValues(box)
			for _, outcome := range []string{"created", "repeated", "conflict", "refused"} {
				m.rows.WithLabelValues(box, outcome)
			}
		}
	}
	for _, status := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable} {
		m.requests.WithLabelValues(strconv.Itoa(status))
	}
	return m
}

// IngestAnswered implements ingest.Observer.
func (m *ingestMetrics) IngestAnswered(status int, took time.Duration) {
	m.requests.WithLabelValues(strconv.Itoa(status)).Inc()
	m.seconds.Observe(took.Seconds())
}

// IngestBatch implements ingest.Observer.
func (m *ingestMetrics) IngestBatch(box string, rows []outbox.Row, written []outbox.Written, took time.Duration) {
	m.batch.Observe(float64(len(rows)))
	m.writes.Observe(took.Seconds())
	created, outcomes := 0, map[string]int{}
	for i := range written {
		switch w := &written[i]; {
		case w.Err != nil:
			outcomes["refused"]++
		case w.Conflict:
			outcomes["conflict"]++
		case w.Repeated:
			outcomes["repeated"]++
		default:
			outcomes["created"]++
			created += len(rows[i].Payload)
		}
	}
	for outcome, n := range outcomes {
		m.rows.WithLabelValues(box, outcome).Add(float64(n))
	}
	m.bytes.WithLabelValues(box).Add(float64(created))
}
