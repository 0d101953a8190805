package tracing

import (
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// span is a span that has ended. The SDK's own spans cost three times as much memory, because they may
// change until their end. This one makes its name and its attributes when it is exported, so the rows
// in flight do not pay for them, and a span that is dropped before costs nothing more.
type span struct {
	sdk.ReadOnlySpan // the tracer's, with the resource and the scope of all spans

	name, of     string // its name is both
	own, parent  trace.SpanContext
	began, ended time.Time
	status       sdk.Status
	event        string // "" for none

	outbox, id, outcome string // "" for none
	send                *sendAttributes
}

// sendAttributes are the attributes of a request alone.
type sendAttributes struct {
	system, sink, replay                  string
	size, attempt, httpStatus, batchCount int
	class                                 sink.Class
}

// Name implements sdk.ReadOnlySpan, as the following methods do.
func (s *span) Name() string { return s.name + s.of }

// SpanContext returns the ids of the span.
func (s *span) SpanContext() trace.SpanContext { return s.own }

// Parent returns the ids of the span above.
func (s *span) Parent() trace.SpanContext { return s.parent }

// SpanKind returns whether the span is a request.
func (s *span) SpanKind() trace.SpanKind {
	if s.send != nil {
		return trace.SpanKindProducer
	}
	return trace.SpanKindInternal
}

// StartTime returns when the span began.
func (s *span) StartTime() time.Time { return s.began }

// EndTime returns when the span ended.
func (s *span) EndTime() time.Time { return s.ended }

// Status returns whether the span failed.
func (s *span) Status() sdk.Status { return s.status }

// Events returns why the span of a row ended without an outcome.
func (s *span) Events() []sdk.Event {
	if s.event == "" {
		return nil
	}
	return []sdk.Event{{Name: s.event, Time: s.ended}}
}

// Attributes returns the attributes that the span has.
func (s *span) Attributes() []attribute.KeyValue {
	all := make([]attribute.KeyValue, 0, 12)
	text := func(key, value string) {
		if value != "" {
			all = append(all, attribute.String(key, valid(value)))
		}
	}
	text("sluicebox.outbox", s.outbox)
	text("messaging.message.id", s.id)
	text("sluicebox.status", s.outcome)
	if s.send == nil {
		return all
	}
	text("messaging.system", s.send.system)
	text("messaging.operation.name", "send")
	text("messaging.operation.type", "send")
	text("messaging.destination.name", s.send.sink)
	text("sluicebox.replay", s.send.replay)
	text("sluicebox.class", s.send.class.String())
	if s.send.class != sink.Delivered {
		text("error.type", s.send.class.String())
	}
	all = append(all, attribute.Int("messaging.message.body.size", s.send.size), attribute.Int("sluicebox.attempt", s.send.attempt))
	if s.send.batchCount > 1 {
		all = append(all, attribute.Int("messaging.batch.message_count", s.send.batchCount))
	}
	if s.send.httpStatus != 0 {
		all = append(all, attribute.Int("http.response.status_code", s.send.httpStatus))
	}
	return all
}

// failed is the status of a span that failed.
func failed(why string) sdk.Status { return sdk.Status{Code: codes.Error, Description: valid(why)} }

// valid makes a text of a row fit for OTLP, which drops a whole batch of spans with one that is not UTF-8.
func valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// export hands a span to the exporter, which drops it if too many wait.
func (t *Tracer) export(s span) {
	s.ReadOnlySpan = t.common
	t.spans.OnEnd(&s)
}

// below exports a span below that of a row, with an id of its own, which nothing else has to know.
func (t *Tracer) below(r *rowTrace, s span) {
	s.own, s.parent = r.own.WithSpanID(newSpanID()), r.own
	t.export(s)
}
