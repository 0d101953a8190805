package httpsink

import (
	"context"
	"net/http"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
)

// Probe is the response of a receiver to a request that delivers nothing.
type Probe struct {
	// Method is the method of the answered request.
	Method string
	Answer *Answer
}

// Probe sends HEAD to an address. If the response is 404 it sends OPTIONS, which a
// receiver may support for a path that accepts POST only. Both methods are safe: no
// receiver acts on them (RFC 9110, section 9.2.1). Pass an error to
// [NoAnswerResult], as one of HEAD.
func (c *Client) Probe(ctx context.Context, url string, header http.Header) (*Probe, error) {
	var p Probe
	for _, method := range []string{http.MethodHead, http.MethodOptions} {
		a, err := c.Do(ctx, &Request{Method: method, URL: url, Header: header.Clone()})
		if err != nil {
			return nil, err
		}
		p = Probe{method, a}
		if a.Status != http.StatusNotFound {
			break
		}
	}
	return &p, nil
}

// Outcome classifies the response of a probed address. The detail names it as where.
func (p *Probe) Outcome(where string, r *redact.Redactor) sink.Outcome {
	request := p.Method + " " + where
	class, reason := sink.Classify(p.Answer.Status)
	detail := func(text string) string { return p.Answer.Detail(request, text, r) }
	const reached = ": receiver reachable"
	switch status := p.Answer.Status; {
	case status == http.StatusNotFound:
		return sink.Outcome{Class: sink.Refused, Reason: reason,
			Detail: detail(reached + ", but the path does not exist, or for POST only; if deliveries also get 404, check the address")}
	case class == sink.Misconfigured && status != http.StatusMethodNotAllowed:
		return sink.Outcome{Class: class, Reason: reason, Detail: p.Answer.Failure(request, r)}
	case class == sink.Unavailable || status >= 500 && status != http.StatusNotImplemented: // 501 refuses the method, like 405
		return sink.Outcome{Class: sink.Refused, Reason: reason, Detail: detail(reached + ", but unhealthy")}
	}

	text := reached + ", credentials not refused; only a delivery proves that it accepts rows"
	if !p.Answer.Success() { // the receiver may have answered before it checked the credentials
		text = reached + "; only a delivery proves that it accepts credentials and rows"
	}
	return sink.Outcome{Class: sink.Delivered, Detail: detail(text)}
}
