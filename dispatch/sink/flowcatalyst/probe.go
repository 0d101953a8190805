package flowcatalyst

import (
	"cmp"
	"context"
	"fmt"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/httpsink"
	"github.com/sluicebox/sluicebox/store"
)

// Probe implements sink.Prober: it asks the path of a kind, that of events for "",
// by HEAD, with a token that it gets for it where OAuth is configured.
func (s *Sink) Probe(ctx context.Context, kind string) sink.Outcome {
	r, err := s.cfg.route(cmp.Or(kind, KindEvent))
	if err != nil {
		return sink.Outcome{Class: sink.Misconfigured, Reason: store.ReasonBadRequest, Detail: httpsink.Clean(err.Error())}
	}
	ask := func(token string) sink.Result {
		p, err := s.client.Probe(ctx, s.base+r.path, s.header(token))
		if err != nil {
			return sink.Result{Outcome: httpsink.Unproven(r.path, err, token)}
		}
		return sink.Result{Outcome: p.Outcome(r.path, true, token)}
	}
	if s.tokens == nil {
		return ask(s.token()).Outcome
	}
	slow := fmt.Errorf("no answer within request-timeout (%s)", s.cfg.RequestTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.RequestTimeout, slow)
	defer cancel()
	return s.tokens.Attempt(ctx, "HEAD "+r.path, ask).Outcome
}

// Ping implements sink.Pinger: an empty list, to which the platform answers like to any
// other, credentials first.
func (s *Sink) Ping(ctx context.Context, kind string) (sink.Result, bool) {
	r, err := s.cfg.route(cmp.Or(kind, KindEvent))
	if err != nil {
		return sink.Result{}, false
	}
	return s.send(ctx, &r, nil), true
}
