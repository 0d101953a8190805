package tracing

import (
	"context"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// Names of the attributes with a trace context, as in CloudEvents.
const (
	traceparent = "traceparent"
	tracestate  = "tracestate"
)

// tracedSink traces the rows that a sink delivers.
type tracedSink struct {
	sink.Sink
	tracer *Tracer
	name   string // of the sink
	system string // its type
}

// Wrap returns a sink that traces what another delivers. system is the type of the destination, for
// example kafka.
func (t *Tracer) Wrap(name, system string, to sink.Sink) sink.Sink {
	return &tracedSink{Sink: to, tracer: t, name: name, system: system}
}

// Ping implements sink.Pinger if the other sink does.
func (s *tracedSink) Ping(ctx context.Context, kind string) (res sink.Result, ok bool) {
	if p, is := s.Sink.(sink.Pinger); is {
		return p.Ping(ctx, kind)
	}
	return res, false
}

// attempt is the span of a message in a request.
type attempt struct {
	row   *rowTrace
	span  trace.Span // nil if the message is not traced
	first bool       // of the row's attempts that are traced
	began time.Time
}

// Deliver implements sink.Sink.
func (s *tracedSink) Deliver(ctx context.Context, msgs []sink.Message) sink.Result {
	var all []attempt // by message; nil while none is traced
	exchange := &sink.Exchange{}
	sent := msgs
	for i := range msgs {
		a, text := s.begin(&msgs[i], len(msgs))
		if len(msgs) == 1 { // a request with rows of several traces has no context of its own
			exchange.Traceparent = text
		}
		if a.span == nil {
			continue
		}
		if all == nil {
			all, sent = make([]attempt, len(msgs)), slices.Clone(msgs)
		}
		all[i] = a
		sent[i].Attributes = withTraceparent(msgs[i].Attributes, text)
	}
	if all == nil && exchange.Traceparent == "" {
		return s.Sink.Deliver(ctx, msgs)
	}
	res := s.Sink.Deliver(sink.WithExchange(ctx, exchange), sent)
	now, status := time.Now(), int(exchange.Status.Load())
	for i := range all {
		if all[i].span != nil {
			s.end(&all[i], &msgs[i], res.At(i), status, now)
		}
	}
	return res
}

// begin begins the span of a message and returns its traceparent. The span is nil if the message is
// not traced; then the context is that of the row, if it has one, so that the receiver does not trace it
// either.
func (s *tracedSink) begin(m *sink.Message, messages int) (a attempt, text string) {
	t := s.tracer
	ref := store.Ref{Outbox: m.Outbox, ID: m.ID}
	row := t.row(ref)
	if row == nil || m.Replay != "" {
		if row, text = s.open(m); row == nil {
			return attempt{}, text
		}
		if m.Replay == "" {
			t.keep(ref, row)
		}
		a.first = true
	}
	a.row, a.began = row, time.Now()
	attributes := []attribute.KeyValue{
		attribute.String("messaging.system", s.system), attribute.String("messaging.operation.name", "send"), attribute.String("messaging.operation.type", "send"),
		attribute.String("messaging.destination.name", s.name), attribute.String("messaging.message.id", m.ID),
		attribute.Int("messaging.message.body.size", len(m.Payload)), attribute.Int("sluicebox.attempt", m.Attempt),
	}
	if messages > 1 {
		attributes = append(attributes, attribute.Int("messaging.batch.message_count", messages))
	}
	if m.Replay != "" {
		attributes = append(attributes, attribute.String("sluicebox.replay", m.Replay))
	}
	ctx, span := t.tracer.Start(row.ctx, "send "+s.name, trace.WithSpanKind(trace.SpanKindProducer), trace.WithTimestamp(a.began), trace.WithAttributes(attributes...))
	a.span = span
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return a, carrier[traceparent]
}

// open begins the span of a row. It returns nil if the row is not traced, and its own context, ""
// for none.
func (s *tracedSink) open(m *sink.Message) (row *rowTrace, own string) {
	ctx := context.Background()
	text, ok := m.Attributes.Get(traceparent)
	if ok {
		state, _ := m.Attributes.Get(tracestate)
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{traceparent: text, tracestate: state})
	}
	parent := trace.SpanContextFromContext(ctx)
	if parent.IsValid() {
		own = text
	} else if !s.tracer.roots || m.Attempt > 1 {
		return nil, ""
	}
	began := m.Captured
	if !m.Committed.IsZero() && (began.IsZero() || m.Committed.Before(began)) {
		began = m.Committed
	}
	if began.IsZero() || m.Replay != "" {
		began = time.Now()
	}
	ctx, span := s.tracer.tracer.Start(ctx, "relay "+m.Outbox, trace.WithTimestamp(began), trace.WithAttributes(
		attribute.String("sluicebox.outbox", m.Outbox), attribute.String("messaging.message.id", m.ID)))
	if !span.IsRecording() {
		return nil, own
	}
	return &rowTrace{ctx: ctx, span: span}, own
}

// end ends the span of a message.
func (s *tracedSink) end(a *attempt, m *sink.Message, out sink.Outcome, status int, now time.Time) {
	a.span.SetAttributes(attribute.String("sluicebox.class", out.Class.String()))
	if status != 0 {
		a.span.SetAttributes(attribute.Int("http.response.status_code", status))
	}
	if out.Class != sink.Delivered {
		a.span.SetAttributes(attribute.String("error.type", out.Class.String()))
		a.span.SetStatus(codes.Error, out.Detail)
	}
	a.span.End(trace.WithTimestamp(now))
	a.row.answered = now
	if m.Replay != "" { // its outcome is not the row's
		a.row.span.End(trace.WithTimestamp(now))
		return
	}
	if a.first {
		s.way(a, m)
	}
}

// way adds the spans of a row before its first request. They come after the request, so that it does
// not wait for them.
func (s *tracedSink) way(a *attempt, m *sink.Message) {
	span := func(name string, from, to time.Time) {
		if from.IsZero() || !from.Before(to) {
			return
		}
		_, one := s.tracer.tracer.Start(a.row.ctx, name, trace.WithTimestamp(from))
		one.End(trace.WithTimestamp(to))
	}
	queued := a.began
	if !m.Claimed.IsZero() {
		queued = m.Claimed
		span("claim", m.Claimed, a.began)
	}
	span("capture", m.Committed, m.Captured)
	span("queue", m.Captured, queued)
}

// withTraceparent returns attributes with another trace context.
func withTraceparent(all store.Attributes, text string) store.Attributes {
	own := make(store.Attributes, 0, len(all)+1)
	for _, a := range all {
		if a.Name != traceparent {
			own = append(own, a)
		}
	}
	return append(own, store.Attribute{Name: traceparent, Value: text})
}
