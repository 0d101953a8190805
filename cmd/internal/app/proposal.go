package app

import (
	"context"
	"slices"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/cmd/internal/propose"
	"github.com/sluicebox/sluicebox/store"
)

// proposeLayouts adds a configuration to the first fault of each outbox whose layout does not
// fit its table.
func (d *doctor) proposeLayouts(ctx context.Context) {
	for i, o := range d.cfg.Outboxes() {
		at := slices.IndexFunc(d.findings, func(f Finding) bool {
			return f.Part == PartDatabase && f.Grade == store.GradeFault && f.Subject == "outbox "+o.Name
		})
		if at >= 0 {
			d.findings[at].Configuration = d.proposal(ctx, &d.cfg.Settings.Outboxes[i], &o.Layout)
		}
	}
}

// proposal returns the configuration for the table of an outbox, "" if its layout fits, or if
// there is no such table.
func (d *doctor) proposal(ctx context.Context, o *config.Outbox, l *store.Layout) string {
	s := d.cfg.Settings
	t, err := s.Source.URL.Describe(ctx, "sluicebox doctor", o.Table, propose.Columns)
	if err != nil || propose.Suits(l, t) {
		return "" // the store has reported the error
	}
	name := o.SinkNames()[0]
	s.Sinks = map[string]config.Sink{name: s.Sinks[name]}
	p, err := propose.Propose(propose.RequestOf(t, &s))
	if err != nil {
		return ""
	}
	text, err := p.YAML()
	if err != nil {
		return ""
	}
	return text
}
