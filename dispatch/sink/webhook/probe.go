package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/egress"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/httpsink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
)

// Probe implements sink.Prober. It sends HEAD with the fixed headers, but without an
// id and a signature, because those would make it a message. An address with fields has no
// rows to fill them: Probe sends HEAD to the root of the host, or checks the list of the hosts
// that rows may name.
func (s *Sink) Probe(ctx context.Context, _ string) sink.Outcome {
	to := s.url()
	if to.named() {
		return s.probeHosts(ctx)
	}
	where := to.shared.Scheme + "://" + to.shared.Host
	header := s.fixed().Clone()
	header.Del("Content-Type")
	return s.bearer.Send(ctx, http.MethodHead+" "+where, func(ctx context.Context, token string, red *redact.Redactor) sink.Result {
		httpsink.Authorize(header, token)
		if to.fixed() {
			return sink.Result{Outcome: s.client.Probe(ctx, where, to.shared.String(), header, red)}
		}
		return sink.Result{Outcome: s.client.ProbeHost(ctx, where, header, red)}
	}).Outcome
}

// probeHosts checks the hosts that rows may name, without a request to any.
func (s *Sink) probeHosts(ctx context.Context) sink.Outcome {
	for _, host := range s.url().hosts.Names() {
		err := s.dialer.Check(ctx, host)
		if refused := (*egress.RefusedError)(nil); errors.As(err, &refused) {
			return sink.Outcome{Class: sink.Misconfigured, Detail: redact.OneLine("allow-hosts: " + err.Error())}
		}
		if err != nil {
			return sink.Outcome{Class: sink.Refused, Detail: redact.OneLine("allow-hosts: host " + host + " does not resolve: " + err.Error())}
		}
	}
	return sink.Outcome{Class: sink.Delivered, Detail: fmt.Sprintf(
		"no request sent, because each row names its host; entries of allow-hosts: %d; their names resolve", len(s.url().hosts))}
}
