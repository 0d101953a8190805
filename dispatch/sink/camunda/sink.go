package camunda

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/oauth"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/template"
	"github.com/sluicebox/sluicebox/store"
)

// api is one of the two APIs of a gateway.
type api interface {
	// publish makes one request. authorization is "" for none.
	publish(ctx context.Context, msg *message, authorization string, red *redact.Redactor) sink.Result

	// topology asks for the state of the cluster. The outcome is Delivered if of is set. Its
	// detail names the answer.
	topology(ctx context.Context, authorization string, red *redact.Redactor) (of *topology, out sink.Outcome)

	// calls returns the names of the two requests, for details.
	calls() (publish, topology string)

	close()
}

// Sink publishes to one gateway. With OAuth it runs one goroutine per fetch of a token, and with
// gRPC those of its connection.
type Sink struct {
	encoder    encoder
	limits     sink.Limits
	timeToLive time.Duration
	longest    time.Duration // from an attempt to its retry; 0 if unknown
	api        api
	bearer     *oauth.Bearer
	basic      func() string // the header of a user, "" for none; a function, so that printing a Sink does not show it
}

var (
	_ sink.Sink   = (*Sink)(nil)
	_ sink.Prober = (*Sink)(nil)
)

// New returns a Sink. It does not connect. It fails if the configuration is invalid. The error is a
// *sink.FileError if one of its files is missing or invalid.
func New(cfg Config) (*Sink, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	to, err := parseURL(string(cfg.URL))
	if err != nil {
		return nil, err // not reached: it is valid
	}
	api, err := newAPI(&cfg, to)
	if err != nil {
		return nil, err
	}
	hidesBody := cfg.ErrorDetail == sink.ErrorDetailStatus
	secrets := append(redact.ReferencesSecrets(cfg.References), string(cfg.Password))
	secrets = append(secrets, redact.PathSecrets(to)...)
	settings := cfg.http()
	bearer, err := oauth.NewBearer(&settings, cfg.OAuth, func(token string) *redact.Redactor {
		return redact.New(hidesBody, append(slices.Clone(secrets), token)...)
	})
	if err != nil {
		api.close()
		return nil, err
	}
	basic := ""
	if cfg.User != "" {
		basic = "Basic " + base64.StdEncoding.EncodeToString([]byte(cfg.User+":"+string(cfg.Password)))
	}
	s := &Sink{
		encoder: newEncoder(&cfg), limits: cfg.Limits(""), timeToLive: cfg.TimeToLive,
		api: api, bearer: bearer, basic: func() string { return basic },
	}
	if cfg.MaxBackoff > 0 {
		s.longest = cfg.MaxBackoff + settings.RequestTimeout
	}
	return s, nil
}

// newAPI returns the API that the scheme of the address names.
func newAPI(cfg *Config, to *url.URL) (api, error) {
	if to.Scheme == "grpc" || to.Scheme == "grpcs" {
		return newGRPC(cfg, to)
	}
	return newREST(cfg, to)
}

// Close cancels the fetch of a token and closes the connections. Call it only when no Deliver is
// running.
func (s *Sink) Close() {
	s.bearer.Close()
	s.api.close()
}

// Limits implements sink.Sink, the same for every kind.
func (s *Sink) Limits(string) sink.Limits { return s.limits }

// Deliver publishes the first message. All others are NotSent.
func (s *Sink) Deliver(ctx context.Context, msgs []sink.Message) sink.Result {
	if len(msgs) == 0 {
		return sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}
	}
	msg, reason := s.encoder.encode(&msgs[0])
	if reason != "" {
		return sink.RejectFirst(len(msgs), redact.OneLine("not sent: "+reason))
	}
	name, _ := s.api.calls()
	res := s.bearer.Send(ctx, name, func(ctx context.Context, token string, red *redact.Redactor) sink.Result {
		return s.api.publish(ctx, &msg, s.authorization(token), red)
	})
	if len(msgs) > 1 {
		res.Items, res.Outcome = []sink.Outcome{res.Outcome}, sink.Outcome{}
	}
	return res.Pad(1, len(msgs))
}

// authorization returns the header of a request with a token, "" for none.
func (s *Sink) authorization(token string) string {
	if token != "" {
		return "Bearer " + token
	}
	return s.basic()
}

// Probe implements sink.Prober. It asks for the topology, and publishes nothing.
func (s *Sink) Probe(ctx context.Context, _ string) sink.Outcome {
	_, name := s.api.calls()
	return s.bearer.Send(ctx, name, func(ctx context.Context, token string, red *redact.Redactor) sink.Result {
		of, out := s.api.topology(ctx, s.authorization(token), red)
		if of == nil {
			return sink.Result{Outcome: out}
		}
		doubts := of.doubts()
		if s.timeToLive < s.longest {
			doubts = append(doubts, fmt.Sprintf(
				"time-to-live %s is shorter than backoff.max and request-timeout (%s), so a retry may be published twice; make it longer",
				s.timeToLive, s.longest))
		}
		if doubts != nil {
			out.Class, out.Reason = sink.Refused, store.ReasonInternal
		}
		facts := strings.Join(append(doubts, of.String()), "; ")
		out.Detail = red.OneLine(out.Detail + ": " + facts + "; only a delivery proves that it accepts messages")
		return sink.Result{Outcome: out}
	}).Outcome
}

// delivered returns the result of a published message with its key, "" for none.
func delivered(key string, receipts bool) sink.Result {
	out := sink.Outcome{Class: sink.Delivered}
	if receipts && key != "" {
		out.Receipt = []sink.Receipt{{Name: "key", Value: key}}
	}
	return sink.Result{Outcome: out}
}

// repeated returns the result of a message that the gateway already has.
func repeated() sink.Result {
	return sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}, Skipped: 1}
}

// refinedClass returns the class of a refusal by the text of the gateway, whose status alone says
// too little.
func refinedClass(class sink.Class, text string, fixedTenant bool) sink.Class {
	switch {
	case strings.Contains(text, "MAX_MESSAGE_SIZE_EXCEEDED"), strings.Contains(text, "maxMessageSize"),
		strings.Contains(text, "message exceeds maximum size"):
		return sink.Rejected // reported like backpressure
	case class == sink.Rejected && fixedTenant && strings.Contains(text, "tenant identifier"):
		return sink.Misconfigured // no row can be published
	}
	return class
}

// isFixed reports whether a valid template is a text without fields.
func isFixed(text string) bool {
	t := template.MustParse(text)
	return t.Fixed()
}
