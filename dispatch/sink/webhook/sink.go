package webhook

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/httpsink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
)

// Sink delivers to one endpoint over a pool of connections. It runs no goroutine of
// its own.
type Sink struct {
	cfg  Config // without the secrets
	name string // the request in details

	// The fields below are functions, so that printing a Sink does not show the
	// values.
	url    func() string
	keys   func() [][]byte
	fixed  func() http.Header // the headers of every request
	now    func() time.Time
	client *httpsink.Client

	redactor *redact.Redactor // removes the texts that a receiver may echo and no detail may show
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
	to, err := parseURL(string(cfg.URL))
	if err != nil {
		return nil, err
	}

	client, err := httpsink.NewClient(&cfg.HTTP, to)
	if err != nil {
		return nil, err
	}

	keys := make([][]byte, len(cfg.Secrets))
	for i, secret := range cfg.Secrets {
		if keys[i], err = parseSecret(string(secret)); err != nil {
			return nil, fmt.Errorf("secrets[%d] %w", i, err)
		}
	}

	fixed, address := fixedHeaders(&cfg), to.String()
	redactor := redact.New(cfg.ErrorDetail == sink.ErrorDetailStatus, secretTexts(&cfg, to)...)
	cfg.URL, cfg.Token, cfg.Secrets, cfg.Headers = "", "", nil, nil
	cfg.MetadataHeaders = slices.Clone(cfg.MetadataHeaders)
	return &Sink{
		cfg:    cfg,
		name:   cfg.Method + " " + to.Scheme + "://" + to.Host,
		url:    func() string { return address },
		keys:   func() [][]byte { return keys },
		fixed:  func() http.Header { return fixed },
		now:    time.Now,
		client: client,

		redactor: redactor,
	}, nil
}

// Close closes the idle connections. Call it only when no Deliver is running.
func (s *Sink) Close() { s.client.Close() }

// Limits implements sink.Sink: a request has one message, for every kind.
func (s *Sink) Limits(kind string) sink.Limits { return s.cfg.Limits(kind) }

// Limits returns the Limits of a sink with this configuration, which must be valid.
func (c Config) Limits(string) sink.Limits {
	limit := c.MaxRequestBytes
	if limit == 0 {
		limit = math.MaxInt32
	}
	return sink.Limits{Mode: sink.Atomic, MaxItems: 1, MaxBytes: limit}
}

// Deliver sends the first message. All others are NotSent.
func (s *Sink) Deliver(ctx context.Context, msgs []sink.Message) sink.Result {
	if len(msgs) == 0 {
		return delivered()
	}

	res := s.send(ctx, &msgs[0])
	if len(msgs) == 1 {
		return res
	}
	return sink.Result{Items: []sink.Outcome{res.Outcome}, RetryAfter: res.RetryAfter}.Pad(1, len(msgs))
}

// send makes one request and waits for the response, at most RequestTimeout.
func (s *Sink) send(ctx context.Context, m *sink.Message) sink.Result {
	header, reason := s.header(m)
	if limit := s.cfg.MaxRequestBytes; reason == "" && limit > 0 && len(m.Payload) > limit {
		reason = fmt.Sprintf("payload of %d bytes exceeds max-request-bytes (%d)", len(m.Payload), limit)
	}
	if reason != "" {
		return sink.RejectFirst(1, redact.OneLine("not sent: "+reason))
	}

	a, err := s.client.Do(ctx, &httpsink.Request{
		Method: s.cfg.Method, URL: s.url(), Header: header, Body: m.Payload,
	})
	if err != nil {
		return httpsink.NoAnswerResult(s.name, err, s.redactor)
	}
	return s.classifyAnswer(a)
}

// classifyAnswer classifies a response by its status alone.
func (s *Sink) classifyAnswer(a *httpsink.Answer) sink.Result {
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
		Outcome:    sink.Outcome{Class: class, Reason: reason, Detail: a.Failure(s.name, s.redactor)},
		RetryAfter: a.RetryAfter,
	}
}

func delivered() sink.Result {
	return sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}
}

// header returns the headers of an attempt. reason is set if the row can never be sent.
func (s *Sink) header(m *sink.Message) (h http.Header, reason string) {
	id := messageID(s.cfg.IDPrefix, m.ID)
	if id == "" {
		return nil, "row has an empty id, which receivers need to identify rows; set id-prefix"
	}

	h = s.fixed().Clone()
	now := s.now()
	if s.cfg.Format == FormatCloudEvents {
		if reason := s.setEventHeaders(h, m, id); reason != "" {
			return nil, reason
		}
	}

	for _, word := range s.cfg.MetadataHeaders {
		if name, value := metadata(word, m); value != "" && len(value) <= maxGroup {
			h.Set(name, value)
		}
	}

	// Encode the full stop, because the signed text would otherwise be ambiguous.
	signedID, timestamp := httpsink.PercentEncode(id, "."), strconv.FormatInt(now.Unix(), 10)
	h.Set("Webhook-Id", signedID)
	h.Set("Webhook-Timestamp", timestamp)
	if keys := s.keys(); len(keys) > 0 {
		h.Set("Webhook-Signature", sign(keys, signedID, timestamp, m.Payload))
	}

	httpsink.SetIdempotencyKey(h, id)
	httpsink.SetReplay(h, m.Replay)
	return h, ""
}

// Probe implements sink.Prober. It sends HEAD with the fixed headers, but without an
// id and a signature, because those would make it a message.
func (s *Sink) Probe(ctx context.Context, _ string) sink.Outcome {
	where := strings.TrimPrefix(s.name, s.cfg.Method+" ")
	header := s.fixed().Clone()
	header.Del("Content-Type")
	return s.client.Probe(ctx, where, s.url(), header, s.redactor)
}
