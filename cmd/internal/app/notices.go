package app

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/notices"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// noticeObserver passes on what the notices are about, beside the metrics.
type noticeObserver struct {
	*Metrics
	to *notices.Notifier
}

// SetLeader implements sluicebox.Observer.
func (o *noticeObserver) SetLeader(epoch store.Epoch) {
	o.Metrics.SetLeader(epoch)
	o.to.Leads()
}

// SetStandby implements sluicebox.Observer.
func (o *noticeObserver) SetStandby() {
	o.Metrics.SetStandby()
	o.to.StandsBy()
}

// Retained implements sluicebox.Observer.
func (o *noticeObserver) Retained(bytes, limit int64) {
	o.Metrics.Retained(bytes, limit)
	o.to.Retained(bytes, limit)
}

// Sink implements sluicebox.Observer.
func (o *noticeObserver) Sink(name string) sluicebox.SinkObserver {
	return &noticeSink{SinkMetrics: o.sink(name), name: name, to: o.to}
}

// noticeSink is a noticeObserver for one sink.
type noticeSink struct {
	*SinkMetrics
	name string
	to   *notices.Notifier
}

// BreakersChanged implements dispatch.Observer.
func (o *noticeSink) BreakersChanged(all []dispatch.OpenBreaker) {
	o.SinkMetrics.BreakersChanged(all)
	o.to.Breakers(o.name, all)
}

// Settled implements dispatch.Observer.
func (o *noticeSink) Settled(it *store.Item, out *store.Outcome) {
	o.SinkMetrics.Settled(it, out)
	if out.Status == store.Failed {
		o.to.RowFailed(o.name, it.Outbox, it.ID)
	}
}

// newNotifier returns the notifier of the program, which has no configuration yet.
func (p *program) newNotifier(reg prometheus.Registerer, relay string, holder string) *notices.Notifier {
	sent := newRegistrar(reg).counters("notices_total", "Notices of conditions, by target and by outcome: sent, failed, or dropped because too many waited.", "target", "outcome")
	return notices.New(notices.Options{
		Relay: relay, Holder: holder, Agent: userAgent(p.version), Log: p.log, Age: p.rowAge,
		Sent: func(target, outcome string) { sent.WithLabelValues(target, outcome).Inc() },
	})
}

// rowAge returns the age of the oldest row in memory.
func (p *program) rowAge() (age notices.Age) {
	for _, s := range p.relay.Status().Sinks {
		if at := s.Oldest; !at.IsZero() && (age.Oldest.IsZero() || at.Before(age.Oldest)) {
			age.Oldest = at
		}
		age.Rows += s.Waiting
	}
	return age
}

// startNotices sends notices until stop is called, which waits for the last ones.
func (p *program) startNotices(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.notifier.Run(ctx)
	}()
	return func() { cancel(); <-done }
}
