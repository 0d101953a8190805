package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/cmd/internal/verify"
	"github.com/sluicebox/sluicebox/cmd/internal/verify/audit"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink/kafka"
	"github.com/sluicebox/sluicebox/store"
)

// Verification says what to verify.
type Verification struct {
	audit.Options
	audit.Window
	// Receipts are [NAME=]FROM: NAME is an outbox or a route, and FROM a file, - for Stdin, or
	// kafka:SINK[/TOPIC]. Without a name they are of all outboxes without routes.
	Receipts []string
	Outbox   string // limits receipts without a name to one outbox
	IDPrefix string
	IDHeader string
	Stdin    io.Reader
}

// kafkaReceipts begins receipts that are records of a topic.
const kafkaReceipts = "kafka:"

// partitionNumbers is the distance of two numbers of sources: more partitions than a topic has.
const partitionNumbers = 1 << 20

// OpenAudits returns the audits of a verification, one for each receiver. They connect with their
// first round. Call closed when done. The error is a *sluicebox.RequestError for an unknown name.
func OpenAudits(cfg *config.Config, v *Verification) (audits []*audit.Audit, closed func(), err error) {
	db, err := openDatabase(cfg)
	if err != nil {
		return nil, nil, err
	}
	closed = func() {
		for _, a := range audits {
			a.Close()
		}
		db.store.Close()
	}
	targets := map[string]*audit.Target{}
	for i, one := range v.Receipts {
		name, from, err := splitReceipts(cfg, one)
		to := targets[name]
		if err == nil && to == nil {
			to = &audit.Target{Name: name, IDPrefix: v.IDPrefix}
			targets[name] = to
			to.Outboxes, err = outboxesOf(cfg, name, v.Outbox)
		}
		var receipts audit.Receipts
		if err == nil {
			receipts, err = v.open(cfg, from, i*partitionNumbers)
		}
		if err != nil {
			closed()
			return nil, nil, err
		}
		to.Receipts = append(to.Receipts, receipts)
	}
	for _, name := range slices.Sorted(maps.Keys(targets)) {
		audits = append(audits, audit.New(db.store, *targets[name], v.Options))
	}
	return audits, closed, nil
}

// splitReceipts splits [NAME=]FROM. A name without its outbox is completed.
func splitReceipts(cfg *config.Config, text string) (name, from string, err error) {
	name, from, named := strings.Cut(text, "=")
	if _, missing := os.Stat(text); !named || missing == nil {
		return "", text, nil
	}
	known := slices.Sorted(maps.Keys(cfg.Routes()))
	var found []string
	for _, leg := range known {
		if _, route, _ := strings.Cut(leg, "/"); leg == name || route == name {
			found = append(found, leg)
		}
	}
	switch len(found) {
	case 1:
		return found[0], from, nil
	case 0:
		return "", "", &sluicebox.RequestError{Problem: fmt.Sprintf("unknown outbox or route %q: there are %s", name, strings.Join(known, ", "))}
	}
	return "", "", &sluicebox.RequestError{Problem: fmt.Sprintf("several outboxes have a route %q: write one of %s", name, strings.Join(found, ", "))}
}

// outboxesOf returns the outboxes whose rows a receiver gets: the named outbox or route, or all
// outboxes without routes.
func outboxesOf(cfg *config.Config, name, only string) (list []audit.Outbox, err error) {
	sinks := cfg.Routes()
	unordered := func(leg string) bool { return cfg.Dispatch(sinks[leg]).Ungrouped == dispatch.Parallel }
	for i, o := range cfg.Outboxes() {
		if len(o.Routes) == 0 {
			if name == o.Name || name == "" && (only == "" || only == o.Name) {
				list = append(list, audit.Outbox{Outbox: o, Unordered: unordered(o.Name)})
			}
			continue
		}
		router, err := cfg.Settings.Outboxes[i].Router()
		if err != nil {
			return nil, err
		}
		for _, r := range o.Routes {
			if leg := store.LegName(o.Name, r.Name); leg == name {
				list = append(list, audit.Outbox{Outbox: o, Route: r.Name, Router: router, Unordered: unordered(leg)})
			}
		}
	}
	if len(list) == 0 {
		return nil, &sluicebox.RequestError{Problem: "the outboxes have routes, and each route its receipts: write --receipts ROUTE=FILE; the routes are " + strings.Join(slices.Sorted(maps.Keys(sinks)), ", ")}
	}
	return list, nil
}

// open opens receipts without reading them.
func (v *Verification) open(cfg *config.Config, from string, source int) (audit.Receipts, error) {
	if from == "-" {
		return audit.Stream("of standard input", v.Stdin, source), nil
	}
	at, isTopic := strings.CutPrefix(from, kafkaReceipts)
	if !isTopic {
		return audit.File(from, source), nil
	}
	name, topic, _ := strings.Cut(at, "/")
	if s, known := cfg.Settings.Sinks[name]; !known || s.Type != config.SinkKafka {
		return nil, &sluicebox.RequestError{Problem: fmt.Sprintf("receipts %s: %q is no sink of type kafka", from, name)}
	}
	if err := cfg.SinkReferenceErrors(name); err != nil {
		return nil, err
	}
	c := cfg.Kafka(name, "")
	if topic == "" {
		topic = c.Topic
	}
	if strings.Contains(topic, "{") {
		return nil, &sluicebox.RequestError{Problem: fmt.Sprintf("receipts %s: the topic of the sink depends on the row; name one: kafka:%s/TOPIC", from, name)}
	}
	options, err := kafka.ClientOptions(c)
	if err != nil {
		return nil, err
	}
	clean := func(err error) error { return kafka.Clean(c, err) }
	return audit.OpenTopic(audit.Topic{Name: topic, IDHeader: v.IDHeader, Since: v.Since, Clean: clean}, source, options)
}

// VerifyMetrics are the metrics of a program that verifies continuously. The label target is empty
// for all outboxes without routes.
type VerifyMetrics struct {
	registry *prometheus.Registry
	byKind   map[verify.Kind]*prometheus.GaugeVec
	rows     *prometheus.GaugeVec
	waiting  *prometheus.GaugeVec
	finished prometheus.Gauge
	failures prometheus.Counter
}

// NewVerifyMetrics creates the metrics in a registry of their own.
func NewVerifyMetrics() *VerifyMetrics {
	reg := prometheus.NewRegistry()
	r := newRegistrar(reg)
	m := &VerifyMetrics{
		registry: reg, byKind: map[verify.Kind]*prometheus.GaugeVec{},
		rows:     r.gauges("verify_rows", "Rows of the window, at the last verification.", "target"),
		waiting:  r.gauges("verify_waiting_rows", "Rows that are not settled and not lost, at the last verification.", "target"),
		finished: r.gauge("verify_last_success_timestamp_seconds", "Unix time of the last verification that read everything."),
		failures: r.counter("verify_failures_total", "Verifications that could not read the tables or the receipts."),
	}
	for kind, help := range map[verify.Kind]string{
		verify.Lost:           "Rows that should have arrived and did not, at the last verification.",
		verify.FalseCompleted: "COMPLETED rows that did not arrive, at the last verification.",
		verify.OutOfOrder:     "Rows that arrived first behind a later row of their lane, at the last verification.",
		verify.BodyDiffers:    "Rows that arrived with another body, at the last verification.",
		verify.Gap:            "Rows that arrived while a row before them in their chain had not, at the last verification.",
		verify.Duplicate:      "Arrivals beyond the first of a row, at the last verification.",
	} {
		m.byKind[kind] = r.gauges("verify_"+string(kind)+"_rows", help, "target")
	}
	return m
}

// Observe records the results of a round; err is why it failed.
func (m *VerifyMetrics) Observe(results []*audit.Result, err error) {
	if err != nil {
		m.failures.Inc()
		return
	}
	for _, r := range results {
		m.rows.WithLabelValues(r.Target).Set(float64(r.Rows))
		m.waiting.WithLabelValues(r.Target).Set(float64(r.Waiting))
		for kind, gauge := range m.byKind {
			gauge.WithLabelValues(r.Target).Set(float64(r.Count(kind)))
		}
	}
	m.finished.SetToCurrentTime()
}

// Serve answers GET /metrics on an address until the context ends. ready is called with the address
// that it listens on.
func (m *VerifyMetrics) Serve(ctx context.Context, address string, ready func(net.Addr)) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen for metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	ready(listener.Addr())
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// VerifyEvery verifies at an interval until the context ends, and passes on the results of each
// round. The window moves along.
func VerifyEvery(ctx context.Context, audits []*audit.Audit, w audit.Window, every time.Duration, log *slog.Logger, took func([]*audit.Result, error) error) error {
	started := time.Now()
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		now := audit.Window{Since: w.Since.Add(time.Since(started)), Until: w.Until}
		var results []*audit.Result
		var err error
		for _, a := range audits {
			var one *audit.Result
			if one, err = a.Round(ctx, now); err != nil {
				break
			}
			results = append(results, one)
		}
		if ctx.Err() != nil {
			return nil
		}
		var setup *store.SetupError
		if errors.As(err, &setup) {
			return err
		}
		if err != nil {
			log.Warn("verification failed; retrying", "error", err)
		}
		if err := took(results, err); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}
