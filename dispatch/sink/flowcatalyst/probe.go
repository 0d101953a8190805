package flowcatalyst

import (
	"cmp"
	"context"
	"net/http"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/httpsink"
	"github.com/sluicebox/sluicebox/store"
)

// Ping implements sink.Pinger with an empty list. The platform checks its credentials
// like those of any other request.
func (s *Sink) Ping(ctx context.Context, kind string) (sink.Result, bool) {
	r, err := s.cfg.route(cmp.Or(kind, KindEvent))
	if err != nil {
		return sink.Result{}, false
	}
	return s.send(ctx, &r, nil), true
}

// Probe implements sink.Prober by a ping to the path of a kind, that of events for
// "". A HEAD proves less, because the platform answers it with 405 before it checks
// the credentials.
func (s *Sink) Probe(ctx context.Context, kind string) sink.Outcome {
	r, err := s.cfg.route(cmp.Or(kind, KindEvent))
	if err != nil {
		return sink.Outcome{Class: sink.Misconfigured, Reason: store.ReasonBadRequest, Detail: httpsink.OneLine(err.Error())}
	}
	return s.post(ctx, &r, nil, func(a *httpsink.Answer, red *httpsink.Redactor) sink.Result {
		return sink.Result{Outcome: probeOutcome(a, &r, red)}
	}).Outcome
}

// probeOutcome classifies the response to an empty list.
func probeOutcome(a *httpsink.Answer, r *route, red *httpsink.Redactor) sink.Outcome {
	out := classifyAnswer(a, r, 0, red).Outcome
	switch {
	case out.Class == sink.Delivered:
		out.Detail = a.Detail(r.name(), ": receiver accepts the credentials and an empty list; only a delivery proves that it accepts rows", red)
	case out.Class == sink.Unavailable || a.Status >= http.StatusInternalServerError:
		out.Class, out.Detail = sink.Refused, a.Detail(r.name(), ": receiver reachable, but unhealthy", red)
	case out.Class != sink.Misconfigured:
		out.Class = sink.Refused
		out.Detail = a.Detail(r.name(), ": receiver reachable, but refuses an empty list; only a delivery proves that it accepts credentials and rows", red)
	}
	return out
}
