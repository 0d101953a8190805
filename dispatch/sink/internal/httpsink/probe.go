package httpsink

import (
	"context"
	"net/http"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
)

// Probe sends HEAD to an address, which the detail names as where. If the response is 404
// it sends OPTIONS, which a receiver may support for a path that accepts POST only. Both
// methods are safe: no receiver acts on them (RFC 9110, section 9.2.1).
func (c *Client) Probe(ctx context.Context, where, url string, header http.Header, r *redact.Redactor) sink.Outcome {
	var request string
	var a *Answer
	for _, method := range []string{http.MethodHead, http.MethodOptions} {
		var err error
		request = method + " " + where
		if a, err = c.Do(ctx, &Request{Method: method, URL: url, Header: header.Clone()}); err != nil {
			return NoAnswerResult(request, err, r).Outcome
		}
		if a.Status != http.StatusNotFound {
			break
		}
	}
	return probeOutcome(request, a, r)
}

// ProbeHost sends HEAD to the root of a host, if the path of a delivery depends on its row. The
// detail names the host as where. Any answer proves that the host can be reached, and no more.
func (c *Client) ProbeHost(ctx context.Context, where string, header http.Header, r *redact.Redactor) sink.Outcome {
	request := http.MethodHead + " " + where
	a, err := c.Do(ctx, &Request{Method: http.MethodHead, URL: where + "/", Header: header})
	if err != nil {
		return NoAnswerResult(request, err, r).Outcome
	}
	return sink.Outcome{Class: sink.Delivered, Detail: a.Detail(request,
		": receiver reachable; the path depends on the row, so only a delivery proves more", r)}
}

// probeOutcome classifies the response of a probed address.
func probeOutcome(request string, a *Answer, r *redact.Redactor) sink.Outcome {
	class, reason := sink.Classify(a.Status)
	detail := func(text string) string { return a.Detail(request, text, r) }
	const reached = ": receiver reachable"
	switch status := a.Status; {
	case status == http.StatusNotFound:
		return sink.Outcome{Class: sink.Refused, Reason: reason,
			Detail: detail(reached + ", but the path does not exist, or for POST only; if deliveries also get 404, check the address")}
	case class == sink.Misconfigured && status != http.StatusMethodNotAllowed:
		return sink.Outcome{Class: class, Reason: reason, Detail: a.Failure(request, r)}
	case class == sink.Unavailable || status >= 500 && status != http.StatusNotImplemented: // 501 refuses the method, like 405
		return sink.Outcome{Class: sink.Refused, Reason: reason, Detail: detail(reached + ", but unhealthy")}
	}

	text := reached + ", credentials not refused; only a delivery proves that it accepts rows"
	if !a.Success() { // the receiver may have answered before it checked the credentials
		text = reached + "; only a delivery proves that it accepts credentials and rows"
	}
	return sink.Outcome{Class: sink.Delivered, Detail: detail(text)}
}
