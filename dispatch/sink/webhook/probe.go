package webhook

import (
	"context"
	"strings"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/httpsink"
)

// Probe implements sink.Prober. It sends HEAD with the fixed headers, but without an
// id and a signature, because those would make it a message.
func (s *Sink) Probe(ctx context.Context, _ string) sink.Outcome {
	where := strings.TrimPrefix(s.name, s.cfg.Method+" ")
	header := s.fixed().Clone()
	header.Del("Content-Type")
	p, err := s.client.Probe(ctx, s.url(), header)
	if err != nil {
		return httpsink.NoAnswerOutcome(where, err, s.redactor)
	}
	return p.Outcome(where, s.redactor)
}
