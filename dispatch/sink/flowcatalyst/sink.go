package flowcatalyst

import (
	"cmp"
	"context"
	"net/http"
	"strings"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/httpsink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/oauth"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
	"github.com/sluicebox/sluicebox/store"
)

// Sink delivers to one platform over a pool of connections. With OAuth it runs one
// goroutine per fetch of a token, otherwise none.
type Sink struct {
	cfg  Config // without the credentials
	base string // without a trailing slash

	bearer *oauth.Bearer
	client *httpsink.Client
	gzip   *httpsink.Compressor
}

var (
	_ sink.Sink   = (*Sink)(nil)
	_ sink.Prober = (*Sink)(nil)
	_ sink.Pinger = (*Sink)(nil)
)

// New returns a Sink. It does not connect. It fails if the configuration is invalid,
// the CA file is unusable, or the proxy in the environment is invalid.
func New(cfg Config) (*Sink, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}

	cfg = cfg.withDefaults()
	base, err := parseBaseURL(cfg.BaseURL)
	if err != nil {
		return nil, err
	}

	client, err := httpsink.NewClient(&cfg.HTTP, base)
	if err != nil {
		return nil, err
	}

	if cfg.OAuth.Enabled() && cfg.OAuth.TokenURL == "" {
		cfg.OAuth.TokenURL = strings.TrimRight(base.String(), "/") + tokenPath
	}
	hidesBody := cfg.ErrorDetail == sink.ErrorDetailStatus
	bearer, err := oauth.NewBearer(&cfg.HTTP, cfg.OAuth, func(token string) *redact.Redactor { return redact.New(hidesBody, token) })
	if err != nil {
		return nil, err
	}
	cfg.Token, cfg.OAuth = "", OAuth{}
	return &Sink{cfg: cfg, base: strings.TrimRight(base.String(), "/"), bearer: bearer, client: client, gzip: httpsink.NewCompressor(cfg.Compression)}, nil
}

// Close cancels the fetch of a token and closes the idle connections. Call it only
// when no Deliver is running.
func (s *Sink) Close() {
	s.bearer.Close()
	s.client.Close()
}

// Limits returns the platform's limits for one request.
func (s *Sink) Limits(kind string) sink.Limits { return s.cfg.Limits(kind) }

// Limits returns the Limits of a sink with this configuration, which must be valid.
func (c Config) Limits(kind string) sink.Limits {
	c = c.withDefaults()
	r, err := c.route(kind)
	if err != nil {
		return sink.Limits{Mode: sink.Atomic, MaxItems: 1, MaxBytes: 1}
	}
	// The platform's limit is "just under" a round number, so a request of several
	// rows stays well below it.
	room := r.maxBody - r.maxBody/256 - len(r.prefix) - len(r.suffix) - r.maxItems
	return sink.Limits{Mode: sink.Atomic, Endpoint: r.path, MaxItems: r.maxItems, MaxBytes: max(room, 1)}
}

// Deliver sends the messages in one request. A message that can never be sent is
// rejected if it is the first. Otherwise Deliver sends the messages before it. See
// the package comment.
func (s *Sink) Deliver(ctx context.Context, msgs []sink.Message) sink.Result {
	if len(msgs) == 0 {
		return delivered()
	}

	r, err := s.cfg.route(msgs[0].Kind)
	if err != nil {
		return sink.RejectFirst(len(msgs), redact.OneLine("not sent: "+err.Error()))
	}

	n, reason := r.fit(msgs)
	if n == 0 {
		return sink.RejectFirst(len(msgs), reason)
	}
	return s.send(ctx, &r, msgs[:n]).Pad(n, len(msgs))
}

// send makes one request and classifies the response.
func (s *Sink) send(ctx context.Context, r *route, msgs []sink.Message) sink.Result {
	return s.post(ctx, r, msgs, func(a *httpsink.Answer, red *redact.Redactor) sink.Result {
		return classifyAnswer(a, r, len(msgs), red)
	})
}

// post makes one request; see oauth.Bearer.Send.
func (s *Sink) post(ctx context.Context, r *route, msgs []sink.Message, judge func(a *httpsink.Answer, red *redact.Redactor) sink.Result) sink.Result {
	return s.bearer.Send(ctx, r.name(), func(ctx context.Context, token string, red *redact.Redactor) sink.Result {
		a, err := s.client.Do(ctx, s.request(token, r, msgs))
		if err != nil {
			return httpsink.NoAnswerResult(r.name(), err, red)
		}
		return judge(a, red)
	})
}

func (s *Sink) request(token string, r *route, msgs []sink.Message) *httpsink.Request {
	h := httpsink.Header(&s.cfg.HTTP, token)
	h.Set("Accept", "application/json")
	h.Set("Content-Type", "application/json")
	if len(msgs) == 1 {
		httpsink.SetIdempotencyKey(h, msgs[0].ID)
	}
	if len(msgs) > 0 { // a ping has none
		httpsink.SetReplay(h, msgs[0].Replay)
	}

	return &httpsink.Request{
		Method: http.MethodPost, URL: s.base + r.path, Header: h, Body: s.gzip.Compress(h, r.body(msgs)), MaxSuccess: maxSuccess,
	}
}

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
		return sink.Outcome{Class: sink.Misconfigured, Reason: store.ReasonBadRequest, Detail: redact.OneLine(err.Error())}
	}
	return s.post(ctx, &r, nil, func(a *httpsink.Answer, red *redact.Redactor) sink.Result {
		return sink.Result{Outcome: probeOutcome(a, &r, red)}
	}).Outcome
}

// probeOutcome classifies the response to an empty list.
func probeOutcome(a *httpsink.Answer, r *route, red *redact.Redactor) sink.Outcome {
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
