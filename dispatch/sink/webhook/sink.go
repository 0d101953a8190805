package webhook

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/ascii"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/egress"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/event"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/httpsink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/oauth"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
)

// Sink delivers to one endpoint over a pool of connections. With OAuth it runs one
// goroutine per fetch of a token, otherwise none.
type Sink struct {
	cfg Config // without the secrets

	// The fields below are functions, so that printing a Sink does not show the
	// values.
	url    func() *address
	keys   func() [][]byte
	fixed  func() http.Header // the headers of every request
	byRow  func() rowHeaders  // the headers that depend on the row
	now    func() time.Time
	client *httpsink.Client
	dialer *egress.Dialer // of hosts that rows name

	events *event.Events

	bearer *oauth.Bearer

	limits sink.Limits
	gzip   *httpsink.Compressor
}

var (
	_ sink.Sink   = (*Sink)(nil)
	_ sink.Prober = (*Sink)(nil)
)

// New returns a Sink. It does not connect. It fails if the configuration is invalid,
// the CA file is unusable, or the proxy in the environment is invalid.
func New(cfg Config) (*Sink, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}

	cfg = cfg.withDefaults()
	to, err := parseAddress(string(cfg.URL), cfg.AllowHosts)
	if err != nil {
		return nil, err
	}

	dialer := &egress.Dialer{Hosts: to.hosts, Timeout: httpsink.DialTimeout(&cfg.HTTP)}
	client, err := httpsink.NewClient(&cfg.HTTP, to.shared)
	if to.named() {
		client, err = httpsink.NewGuardedClient(&cfg.HTTP, dialer)
	}
	if err != nil {
		return nil, err
	}

	keys := make([][]byte, len(cfg.Secrets))
	for i, secret := range cfg.Secrets {
		if keys[i], err = parseSecret(string(secret)); err != nil {
			return nil, fmt.Errorf("secrets[%d] %w", i, err)
		}
	}

	fixed, byRow := splitHeaders(&cfg)
	hidesBody, secrets := cfg.ErrorDetail == sink.ErrorDetailStatus, secretTexts(&cfg, &to)
	bearer, err := oauth.NewBearer(&cfg.HTTP, cfg.OAuth, func(token string) *redact.Redactor {
		return redact.New(hidesBody, append(slices.Clone(secrets), token)...)
	})
	if err != nil {
		return nil, err
	}
	limits := cfg.Limits("")
	gzip := httpsink.NewCompressor(cfg.Compression)
	events := event.NewEvents(cfg.events())
	cfg.URL, cfg.Token, cfg.OAuth, cfg.Secrets, cfg.Headers, cfg.References = "", "", OAuth{}, nil, nil, nil
	cfg.MetadataHeaders = slices.Clone(cfg.MetadataHeaders)
	return &Sink{
		cfg:    cfg,
		url:    func() *address { return &to },
		keys:   func() [][]byte { return keys },
		fixed:  func() http.Header { return fixed },
		byRow:  func() rowHeaders { return byRow },
		now:    time.Now,
		client: client,
		dialer: dialer,
		events: events,
		bearer: bearer,
		limits: limits,
		gzip:   gzip,
	}, nil
}

// Close cancels the fetch of a token and closes the idle connections. Call it only when no
// Deliver is running.
func (s *Sink) Close() {
	s.bearer.Close()
	s.client.Close()
}

// Limits implements sink.Sink, the same for every kind. Rows that name their host have a circuit
// breaker for each.
func (s *Sink) Limits(string) sink.Limits { return s.limits }

// Limits returns the Limits of a sink with this configuration, which must be valid. They are the
// same for every kind.
func (c *Config) Limits(string) sink.Limits {
	if c.Format.severalRows() {
		return sink.Limits{Mode: sink.Atomic, MaxItems: maxBatch, MaxBytes: cmp.Or(c.MaxRequestBytes, maxBatchBytes)}
	}
	limits := sink.Limits{Mode: sink.Atomic, MaxItems: 1, MaxBytes: cmp.Or(c.MaxRequestBytes, math.MaxInt32)}
	if to, err := parseAddress(string(c.URL), c.AllowHosts); err == nil && to.named() {
		limits.EndpointOf = to.endpointOf
	}
	return limits
}

// Deliver sends as many messages as a request carries: one, or in a format of several rows
// as many as fit. All others are NotSent.
func (s *Sink) Deliver(ctx context.Context, msgs []sink.Message) sink.Result {
	if len(msgs) == 0 {
		return delivered()
	}
	body, n, reason := s.fit(msgs)
	var header http.Header
	if reason == "" {
		header, reason = s.header(msgs[:n], body)
	}
	var to target
	if reason == "" {
		to, reason = s.url().of(&msgs[0])
	}
	if reason != "" {
		return sink.RejectFirst(len(msgs), redact.OneLine("not sent: "+reason))
	}

	res := s.send(ctx, to, header, s.gzip.Compress(header, body))
	if len(msgs) > 1 && !s.cfg.Format.severalRows() {
		res.Items, res.Outcome = []sink.Outcome{res.Outcome}, sink.Outcome{}
	}
	return res.Pad(n, len(msgs))
}

// send makes one request and waits for the response, at most RequestTimeout.
func (s *Sink) send(ctx context.Context, to target, header http.Header, body []byte) sink.Result {
	name := s.cfg.Method + " " + to.origin
	return s.bearer.Send(ctx, name, func(ctx context.Context, token string, red *redact.Redactor) sink.Result {
		httpsink.Authorize(header, token)
		a, err := s.client.Do(ctx, &httpsink.Request{Method: s.cfg.Method, URL: to.text, Header: header, Body: body})
		if err == nil && a.Success() {
			return delivered()
		}
		if !s.url().fixed() || len(s.byRow()) > 0 {
			red = red.With(append(to.secrets(), s.byRow().secrets(header)...)...)
		}
		if err != nil {
			return httpsink.NoAnswerResult(name, err, red)
		}
		return s.classifyAnswer(name, a, red)
	})
}

// classifyAnswer classifies a response to the named request by its status alone.
func (s *Sink) classifyAnswer(name string, a *httpsink.Answer, red *redact.Redactor) sink.Result {
	class, reason := sink.Classify(a.Status)
	switch a.Status {
	case http.StatusConflict:
		if s.cfg.Treat409AsDelivered {
			return delivered()
		}
	case http.StatusGone:
		// The endpoint wants no more rows at all, so this row is not to blame.
		class = sink.Misconfigured
	}

	if class == sink.Delivered {
		return delivered()
	}
	return sink.Result{
		Outcome:    sink.Outcome{Class: class, Reason: reason, Detail: a.Failure(name, red)},
		RetryAfter: a.RetryAfter,
	}
}

func delivered() sink.Result {
	return sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}
}

// header returns the headers of an attempt. reason is set if the first row can never be sent.
func (s *Sink) header(msgs []sink.Message, body []byte) (h http.Header, reason string) {
	m := &msgs[0]
	id := event.ID(s.cfg.IDPrefix, m.ID)
	if len(msgs) > 1 {
		id = batchID(s.cfg.IDPrefix, msgs)
	}
	if id == "" {
		return nil, event.NoIDReason
	}

	h = s.fixed().Clone()
	s.byRow().set(h, m)
	now := s.now()
	if s.cfg.Format == FormatCloudEvents {
		if reason := s.setEventHeaders(h, m, id); reason != "" {
			return nil, reason
		}
	}

	s.setMetadata(h, m)
	if n := headerBytes(h) - headerBytes(s.fixed()); n > maxValues {
		return nil, fmt.Sprintf("values of the row need %d bytes of headers, which exceeds %d", n, maxValues)
	}

	// Encode the full stop, because the signed text would otherwise be ambiguous.
	signedID, timestamp := ascii.PercentEncode(id, "."), strconv.FormatInt(now.Unix(), 10)
	h.Set("Webhook-Id", signedID)
	h.Set("Webhook-Timestamp", timestamp)
	if keys := s.keys(); len(keys) > 0 {
		h.Set("Webhook-Signature", sign(keys, signedID, timestamp, body))
	}

	if len(msgs) == 1 {
		httpsink.SetIdempotencyKey(h, id)
	}
	if m.Chain != "" && !s.cfg.Format.severalRows() { // there is one for each row
		h.Set(sink.ChainHeader, m.Chain)
	}
	httpsink.SetReplay(h, m.Replay)
	return h, ""
}
