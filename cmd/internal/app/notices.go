package app

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicebox/sluicebox/cmd/internal/notices"
)

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
