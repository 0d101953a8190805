package tracing

import (
	"context"
	"slices"
	"time"

	"go.opentelemetry.io/otel/propagation"
	sdk "go.opentelemetry.io/otel/sdk/trace"
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

// attempt is a message in a request.
type attempt struct {
	row   *rowTrace // nil if the message is not traced
	own   trace.SpanContext
	first bool // of the row's attempts that are traced
	began time.Time
}

// Deliver implements sink.Sink.
func (s *tracedSink) Deliver(ctx context.Context, msgs []sink.Message) sink.Result {
	var all []attempt // by message; nil while none is traced
	exchange := &sink.Exchange{}
	sent := msgs
	for i := range msgs {
		a, text := s.begin(&msgs[i])
		if len(msgs) == 1 { // a request with rows of several traces has no context of its own
			exchange.Traceparent = text
		}
		if a.row == nil {
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
		if all[i].row != nil {
			s.end(&all[i], msgs, i, res.At(i), status, now)
		}
	}
	return res
}

// begin begins an attempt and returns its traceparent. Without a row the message is not traced; then
// the context is that of the row, if it has one, so that the receiver does not trace it either.
func (s *tracedSink) begin(m *sink.Message) (a attempt, text string) {
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
	a.row, a.began, a.own = row, time.Now(), row.own.WithSpanID(newSpanID())
	return a, "00-" + a.own.TraceID().String() + "-" + a.own.SpanID().String() + "-01"
}

// open begins the trace of a row. It returns nil if the row is not traced, and the row's own context,
// "" for none.
func (s *tracedSink) open(m *sink.Message) (row *rowTrace, own string) {
	ctx := context.Background()
	if text, ok := m.Attributes.Get(traceparent); ok {
		state, _ := m.Attributes.Get(tracestate)
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{traceparent: text, tracestate: state})
		own = text
	}
	parent := trace.SpanContextFromContext(ctx)
	traceID := parent.TraceID()
	if !parent.IsValid() {
		if own = ""; !s.tracer.roots || m.Attempt > 1 {
			return nil, ""
		}
		traceID = newTraceID()
	}
	decision := s.tracer.sampler.ShouldSample(sdk.SamplingParameters{ParentContext: ctx, TraceID: traceID})
	if decision.Decision != sdk.RecordAndSample {
		return nil, own
	}
	began := m.Captured
	if !m.Committed.IsZero() && (began.IsZero() || m.Committed.Before(began)) {
		began = m.Committed
	}
	if began.IsZero() || m.Replay != "" {
		began = time.Now()
	}
	return &rowTrace{outbox: m.Outbox, id: m.ID, parent: parent, began: began, own: trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: traceID, SpanID: newSpanID(), TraceFlags: trace.FlagsSampled, TraceState: parent.TraceState(),
	})}, own
}

// end makes the span of an attempt, which ends now.
func (s *tracedSink) end(a *attempt, msgs []sink.Message, i int, out sink.Outcome, status int, now time.Time) {
	m := &msgs[i]
	send := span{name: "send ", of: s.name, own: a.own, parent: a.row.own, began: a.began, ended: now, id: m.ID, send: &sendAttributes{
		system: s.system, sink: s.name, replay: m.Replay, size: len(m.Payload), attempt: m.Attempt, httpStatus: status, batchCount: len(msgs), class: out.Class,
	}}
	if out.Class != sink.Delivered {
		send.status = failed(out.Detail)
	}
	s.tracer.export(send)
	a.row.answered = now
	if m.Replay != "" { // its outcome is not the row's
		row := a.row.span()
		row.ended = now
		s.tracer.export(row)
		return
	}
	if a.first {
		s.way(a, m)
	}
}

// way makes the spans of a row before its first request.
func (s *tracedSink) way(a *attempt, m *sink.Message) {
	stage := func(name string, from, to time.Time) {
		if !from.IsZero() && from.Before(to) {
			s.tracer.below(a.row, span{name: name, began: from, ended: to})
		}
	}
	queued := a.began
	if !m.Claimed.IsZero() {
		queued = m.Claimed
		stage("claim", m.Claimed, a.began)
	}
	stage("capture", m.Committed, m.Captured)
	stage("queue", m.Captured, queued)
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
