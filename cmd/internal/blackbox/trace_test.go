package blackbox

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/propagation"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/cmd/internal/tracing/tracetest"
	"github.com/sluicebox/sluicebox/store/outbox"
	pgwriter "github.com/sluicebox/sluicebox/store/outbox/postgres"
)

// tracedOutbox is a table whose rows have a trace context, and a relay that exports traces.
const tracedOutbox = `
name: %s
source: {mode: stream, url: %q}
outboxes:
  - table: orders
    layout: custom
    kind: order
    state: timestamps
    columns: {id: id, group: grp, payload: body, delivered: sent_at, failed: dead_at, attributes: [traceparent]}
sinks:
  hooks: {type: webhook, url: %q}
admin: {listen: %s}
`

// collectorVariable is an OpenTelemetry Collector that passes the traces on, see make collector.
const collectorVariable = "SLUICEBOX_TEST_COLLECTOR"

// collectorConfig takes traces at one address and sends them to another. Its page of health is that of metrics.
const collectorConfig = `
receivers: {otlp: {protocols: {grpc: {endpoint: %s}}}}
exporters: {otlp: {endpoint: %s, tls: {insecure: true}}}
service:
  pipelines: {traces: {receivers: [otlp], exporters: [otlp]}}
  telemetry: {metrics: {readers: [{pull: {exporter: {prometheus: {host: 127.0.0.1, port: %s}}}}]}}
`

// collect returns the endpoint where relays send traces that the server gets.
func collect(t *testing.T, server *tracetest.Server) string {
	t.Helper()
	program := os.Getenv(collectorVariable)
	if program == "" {
		return server.URL
	}
	address, metrics := freeAddress(t), freeAddress(t)
	_, port, _ := strings.Cut(metrics, ":")
	file := filepath.Join(t.TempDir(), "collector.yaml")
	writeFile(t, file, fmt.Sprintf(collectorConfig, address, server.URL, port))
	startProgram(t, "http://"+metrics+"/metrics", program, "--config", file)
	return "http://" + address
}

// One trace leads from the span of the service that writes a row, over those of the relay, to the
// receiver. A row whose context is not sampled has no spans. The latency has the trace as exemplar.
func TestTraceFromTheWriterToTheReceiver(t *testing.T) {
	t.Parallel()
	aVersion(t, func(t *testing.T, version int) {
		got := make(chan string, 10)
		to := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { got <- req.Header.Get("Traceparent") }))
		t.Cleanup(to.Close)
		h, server := postgresHost(version), tracetest.New(t, "grpc")
		database := h.database(t)
		h.kind.run(t, database, "CREATE TABLE orders (id uuid PRIMARY KEY, grp text, body bytea, traceparent text, sent_at timestamptz, dead_at timestamptz)")
		text := strings.Replace(fmt.Sprintf(tracedOutbox, nameFor(database), database, to.URL, adminKey), "attributes: [traceparent]}", "attributes: [traceparent]}\n    sink: hooks", 1)
		address, file := freeAddress(t), filepath.Join(t.TempDir(), "sluicebox.yaml")
		if err := os.WriteFile(file, []byte(strings.ReplaceAll(text, adminKey, address)), 0o600); err != nil {
			t.Fatal(err)
		}
		r := launch(t, file, "http://"+address, "OTEL_EXPORTER_OTLP_ENDPOINT="+collect(t, server), "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_BSP_SCHEDULE_DELAY=100")
		r.waitFor("source connected")

		cfg, err := config.Load(file, nil)
		if err != nil {
			t.Fatal(err)
		}
		box, err := outbox.New(cfg.Outboxes()[0], outbox.Traceparent(func(ctx context.Context) string {
			carrier := propagation.MapCarrier{}
			propagation.TraceContext{}.Inject(ctx, carrier)
			return carrier["traceparent"]
		}))
		if err != nil {
			t.Fatal(err)
		}
		conn, err := pgx.Connect(t.Context(), database)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(context.Background()) }()
		write := func(sampler sdk.Sampler) (traceID [16]byte) {
			t.Helper()
			ctx, span := sdk.NewTracerProvider(sdk.WithSampler(sampler)).Tracer("service").Start(t.Context(), "pay")
			defer span.End()
			err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				_, err := pgwriter.Write(ctx, tx, box, outbox.Row{Group: []string{"7"}, Payload: []byte("{}")})
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			return span.SpanContext().TraceID()
		}
		unsampled := write(sdk.NeverSample())
		if header := <-got; header != fmt.Sprintf("00-%x-", unsampled)+header[min(len(header), 36):] || !strings.HasSuffix(header, "-00") {
			t.Errorf("the receiver of a row that is not sampled got %q", header)
		}
		traceID := write(sdk.AlwaysSample())
		header := <-got
		send := awaitSpan(t, server, "send hooks")
		row := awaitSpan(t, server, "relay orders")
		if header != tracetest.Traceparent(send) || !bytes.Equal(send.GetTraceId(), traceID[:]) || !bytes.Equal(send.GetParentSpanId(), row.GetSpanId()) {
			t.Errorf("the receiver got %q; span %s below %x, the writer's trace is %x", header, tracetest.Traceparent(send), send.GetParentSpanId(), traceID)
		}
		all, _ := server.Spans()
		for _, s := range all {
			if !bytes.Equal(s.GetTraceId(), traceID[:]) {
				t.Errorf("span %s of trace %x; the row that is not sampled has %x", s.GetName(), s.GetTraceId(), unsampled)
			}
		}
		checkExemplar(t, r, fmt.Sprintf("%x", traceID))
		expectStop(t, r)
	})
}

// awaitSpan waits for a span.
func awaitSpan(t *testing.T, server *tracetest.Server, name string) *spans.Span {
	t.Helper()
	limit := time.After(testTimeout)
	for {
		all, grown := server.Spans()
		for _, s := range all {
			if s.GetName() == name {
				return s
			}
		}
		select {
		case <-grown:
		case <-limit:
			t.Fatalf("no span %s among %d", name, len(all))
		}
	}
}

// checkExemplar expects a trace as exemplar of the latency.
func checkExemplar(t *testing.T, r *relay, traceID string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.admin+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var body bytes.Buffer
	if _, err := body.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(body.String()) {
		if strings.HasPrefix(line, "sluicebox_commit_to_ack_seconds_bucket") && strings.Contains(line, `trace_id="`+traceID) {
			return
		}
	}
	t.Errorf("no exemplar with trace %s", traceID)
}
