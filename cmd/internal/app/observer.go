package app

import (
	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/notices"
	"github.com/sluicebox/sluicebox/cmd/internal/tracing"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// observer observes the relay: it feeds the metrics, the notices and the traces.
type observer struct {
	*Metrics
	notices *notices.Notifier
	tracer  *tracing.Tracer // may be nil
}

// SetLeader implements sluicebox.Observer.
func (o *observer) SetLeader(epoch store.Epoch) {
	o.Metrics.SetLeader(epoch)
	o.notices.Leads()
}

// SetStandby implements sluicebox.Observer.
func (o *observer) SetStandby() {
	o.Metrics.SetStandby()
	o.notices.StandsBy()
	o.tracer.Reset()
}

// Retained implements sluicebox.Observer.
func (o *observer) Retained(bytes, limit int64) {
	o.Metrics.Retained(bytes, limit)
	o.notices.Retained(bytes, limit)
}

// Sink implements sluicebox.Observer.
func (o *observer) Sink(name string) sluicebox.SinkObserver {
	return &sinkObserver{SinkMetrics: o.sink(name), name: name, notices: o.notices, tracer: o.tracer}
}

// sinkObserver is an observer of one sink.
type sinkObserver struct {
	*SinkMetrics
	name    string
	notices *notices.Notifier
	tracer  *tracing.Tracer // may be nil
}

// BreakersChanged implements dispatch.Observer.
func (o *sinkObserver) BreakersChanged(all []dispatch.OpenBreaker) {
	o.SinkMetrics.BreakersChanged(all)
	o.notices.Breakers(o.name, all)
}

// Settled implements dispatch.Observer.
func (o *sinkObserver) Settled(it *store.Item, out *store.Outcome) {
	o.settled(it, out, o.tracer.Settled(it.Ref, out))
	if out.Status == store.Failed {
		o.notices.RowFailed(o.name, it.Outbox, it.ID)
	}
}

// Vanished implements dispatch.Observer.
func (o *sinkObserver) Vanished(rows []*store.Item) {
	o.SinkMetrics.Vanished(rows)
	o.tracer.Vanished(rows)
}
