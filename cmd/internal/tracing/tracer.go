// Package tracing shows the way of rows as spans of OpenTelemetry, exported by OTLP.
//
// A row continues the trace of its attribute traceparent, which a service writes with the row. Its
// span, "relay OUTBOX", begins with the commit and ends with the final outcome. Below it are
//
//   - capture: from the commit until the relay has read the row
//   - queue: until its claim, or its first request, begins
//   - claim: from then until the request begins; none for a row that is sent before it is claimed
//   - send SINK, for each attempt: the request. The receiver gets the context of this span
//   - settle: from the answer until the outcome is in the table
//
// A row without a context is traced with the probability of the configuration, from its first
// attempt on. Before a request only the ids of its spans are chosen. The spans are made once it is
// answered, with the times of before, so that no row waits for them. A Tracer that is nil traces nothing.
package tracing

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/sluicebox/sluicebox/store"
)

const (
	// maxRows limits the rows whose spans are open, because another program may settle a row. Beyond
	// it the span of any row ends early.
	maxRows = 50_000

	// errorInterval is the least time between two logged errors of the export.
	errorInterval = time.Minute

	// shutdownTimeout limits the export of the last spans.
	shutdownTimeout = 5 * time.Second
)

// Options are the inputs of a Tracer.
type Options struct {
	Config Config

	// Relay, Holder and Version describe this process.
	Relay, Holder, Version string

	Log *slog.Logger

	// Variable returns the value of an environment variable.
	Variable func(string) string
}

// Tracer traces rows. Its methods return at once, except Close, and are safe for concurrent use. A
// nil Tracer does nothing.
type Tracer struct {
	spans   sdk.SpanProcessor
	common  sdk.ReadOnlySpan // has what all spans have
	sampler sdk.Sampler
	roots   bool // rows without a context may be traced

	open atomic.Int64 // len(rows)
	mu   sync.Mutex
	rows map[store.Ref]*rowTrace
}

// rowTrace is a row whose span is to be made.
type rowTrace struct {
	outbox, id string
	parent     trace.SpanContext // of the writer; not valid without one
	own        trace.SpanContext
	began      time.Time
	answered   time.Time // end of the latest request
}

// New returns a tracer, which exports in the background until Close. It does not wait for the
// collector. The error is about a file.
func New(o Options) (*Tracer, error) {
	exporter, err := newExporter(&o)
	if err != nil {
		return nil, err
	}
	// As the standard says, the variables override what the program says of itself.
	about, err := resource.New(context.Background(), resource.WithTelemetrySDK(), resource.WithAttributes(
		attribute.String("service.name", "sluicebox"), attribute.String("service.namespace", o.Relay),
		attribute.String("service.version", o.Version), attribute.String("service.instance.id", o.Holder),
	), resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, err
	}
	return newTracer(&o, about, sdk.NewBatchSpanProcessor(exporter)), nil
}

// newTracer returns a tracer that hands its spans to a processor.
func newTracer(o *Options, about *resource.Resource, spans sdk.SpanProcessor) *Tracer {
	// The exporter reports its errors to the handler of the process only.
	otel.SetErrorHandler(otel.ErrorHandlerFunc((&exportErrors{log: o.Log}).handle))
	sampler := samplerOf(&o.Config, o.Variable)
	none := sampler.Description() == sdk.ParentBased(sdk.TraceIDRatioBased(0)).Description()
	// Package tracetest has the only span of the SDK that a program can make whole.
	common := tracetest.SpanStub{Resource: about, InstrumentationScope: instrumentation.Scope{Name: "github.com/sluicebox/sluicebox"}}.Snapshot()
	return &Tracer{spans: spans, common: common, sampler: sampler, roots: !none, rows: map[store.Ref]*rowTrace{}}
}

// exportErrors logs failed exports, at most one per errorInterval.
type exportErrors struct {
	log *slog.Logger

	mu     sync.Mutex
	logged time.Time
}

func (e *exportErrors) handle(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if now := time.Now(); now.Sub(e.logged) >= errorInterval {
		e.logged = now
		e.log.Warn("trace export failed", "error", exportText(err))
	}
}

// exportText returns the text of a failed export without the collector's own words, because they
// may quote a header, which is a secret.
func exportText(err error) string {
	text := err.Error()
	var rpc interface{ GRPCStatus() *status.Status }
	if errors.As(err, &rpc) {
		s := rpc.GRPCStatus()
		if !strings.HasPrefix(s.Message(), "connection error") { // the client's own
			text = strings.TrimSuffix(strings.ReplaceAll(text, s.Message(), ""), " desc = ")
		}
	}
	text, _, _ = strings.Cut(text, "body: ") // of package otlptracehttp
	return strings.TrimRight(text, " (:")
}

// newExporter returns the exporter of a configuration, without a connection.
func newExporter(o *Options) (*otlptrace.Exporter, error) {
	secure, err := o.Config.tls()
	if err != nil {
		return nil, err
	}
	protocol := cmp.Or(o.Config.Protocol, o.Variable("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), o.Variable("OTEL_EXPORTER_OTLP_PROTOCOL"))
	ctx := context.Background()
	if protocol == protocolGRPC {
		var with []otlptracegrpc.Option
		if o.Config.Endpoint != "" {
			with = append(with, otlptracegrpc.WithEndpointURL(o.Config.Endpoint))
		}
		if len(o.Config.Headers) > 0 {
			with = append(with, otlptracegrpc.WithHeaders(o.Config.headers()))
		}
		if secure != nil {
			with = append(with, otlptracegrpc.WithTLSCredentials(credentials.NewTLS(secure)))
		}
		return otlptracegrpc.New(ctx, with...)
	}
	var with []otlptracehttp.Option
	if base := o.Config.Endpoint; base != "" {
		if !strings.Contains(strings.TrimPrefix(strings.TrimPrefix(base, "http://"), "https://"), "/") {
			base += "/v1/traces" // as for OTEL_EXPORTER_OTLP_ENDPOINT
		}
		with = append(with, otlptracehttp.WithEndpointURL(base))
	}
	if len(o.Config.Headers) > 0 {
		with = append(with, otlptracehttp.WithHeaders(o.Config.headers()))
	}
	if secure != nil {
		with = append(with, otlptracehttp.WithTLSClientConfig(secure))
	}
	return otlptracehttp.New(ctx, with...)
}

// Close ends all spans and exports them, for at most shutdownTimeout.
func (t *Tracer) Close() {
	if t == nil {
		return
	}
	t.Reset()
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	if err := t.spans.Shutdown(ctx); err != nil {
		otel.Handle(err)
	}
}

// Reset ends the spans of all rows, because this relay no longer delivers them.
func (t *Tracer) Reset() {
	if t == nil {
		return
	}
	t.mu.Lock()
	rows := t.rows
	t.rows = map[store.Ref]*rowTrace{}
	t.open.Store(0)
	t.mu.Unlock()
	for _, r := range rows {
		t.endRow(r, "relay stopped delivering")
	}
}

// endRow makes the span of a row that ends now without an outcome.
func (t *Tracer) endRow(r *rowTrace, why string) {
	s := r.span()
	s.event = why
	t.export(s)
}

// span returns the span of a row, which ends now.
func (r *rowTrace) span() span {
	return span{name: "relay ", of: r.outbox, own: r.own, parent: r.parent, began: r.began, ended: time.Now(), outbox: r.outbox, id: r.id}
}

// row returns the open trace of a row, or nil.
func (t *Tracer) row(ref store.Ref) *rowTrace {
	if t.open.Load() == 0 {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rows[ref]
}

// keep opens the trace of a row.
func (t *Tracer) keep(ref store.Ref, r *rowTrace) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.rows) >= maxRows {
		for other, early := range t.rows {
			delete(t.rows, other)
			defer t.endRow(early, "too many rows are traced")
			break
		}
	}
	t.rows[ref] = r
	t.open.Store(int64(len(t.rows)))
}

// drop closes the trace of a row.
func (t *Tracer) drop(ref store.Ref) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.rows, ref)
	t.open.Store(int64(len(t.rows)))
}

// Settled reports an outcome of a row that is in the store. It returns the id of the row's trace, ""
// if the row is not traced.
func (t *Tracer) Settled(ref store.Ref, o *store.Outcome) (traceID string) {
	if t == nil {
		return ""
	}
	r := t.row(ref)
	if r == nil {
		return ""
	}
	t.below(r, span{name: "settle", began: r.answered, ended: time.Now(), outcome: o.Status.String()})
	if o.Status.Settled() {
		t.drop(ref)
		row := r.span()
		row.outcome = o.Status.String()
		if o.Status == store.Failed {
			row.status = failed(o.Error)
		}
		t.export(row)
	}
	return r.own.TraceID().String()
}

// Vanished reports rows that were deleted from their tables.
func (t *Tracer) Vanished(rows []*store.Item) {
	if t == nil {
		return
	}
	for _, it := range rows {
		if r := t.row(it.Ref); r != nil {
			t.drop(it.Ref)
			t.endRow(r, "row deleted")
		}
	}
}
