package tracing

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// BenchmarkRow is the time and the memory that the spans of a row cost, with their export to a server
// that drops them: of a row that is sampled, and of one that is not.
func BenchmarkRow(b *testing.B) {
	for _, ratio := range []Ratio{0, 1} {
		b.Run(fmt.Sprint("ratio=", ratio), func(b *testing.B) {
			server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
			defer server.Close()
			o := &Options{
				Config: Config{Endpoint: server.URL, SampleRatio: ratio}, Log: slog.New(slog.DiscardHandler), Variable: func(string) string { return "" },
			}
			exporter, err := newExporter(o)
			if err != nil {
				b.Fatal(err)
			}
			tracer := newTracer(o, resource.Default(), sdk.NewBatchSpanProcessor(exporter, sdk.WithBlocking()))
			s := tracer.Wrap("hooks", "webhook", none{})
			msgs, done := []sink.Message{{Outbox: "orders", Payload: []byte("{}"), Attempt: 1}}, store.Outcome{Status: store.Completed}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				m := &msgs[0]
				m.ID, m.Captured = fmt.Sprint(i), time.Now()
				m.Committed = m.Captured.Add(-time.Millisecond)
				s.Deliver(b.Context(), msgs)
				tracer.Settled(store.Ref{Outbox: m.Outbox, ID: m.ID}, &done)
			}
			tracer.Close()
		})
	}
}
