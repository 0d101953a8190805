package oauth

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/httpsink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
)

// Bearer makes the requests of a sink with its bearer token: a fixed one, that of a token
// endpoint, or none.
type Bearer struct {
	// token and redactor are functions, so that printing a Bearer does not show a secret.
	token    func() string
	redactor func(token string) *redact.Redactor

	tokens  *Source // replaces token; nil without a token endpoint
	timeout time.Duration
	latest  atomic.Pointer[redacted]
}

// redacted is the redactor of a token. Most requests use the same one.
type redacted struct {
	token    func() string
	redactor *redact.Redactor
}

// NewBearer returns a Bearer. It uses the endpoint of cfg if that is enabled, else the token of
// the settings. redactor returns the redactor of a request with a token. NewBearer fails like
// NewSource.
func NewBearer(s *httpsink.Settings, cfg Config, redactor func(token string) *redact.Redactor) (*Bearer, error) {
	token := string(s.Token)
	b := &Bearer{token: func() string { return token }, redactor: redactor, timeout: s.RequestTimeout}
	if !cfg.Enabled() {
		return b, nil
	}
	var err error
	b.tokens, err = NewSource(cfg, s.CAFile, s.UserAgent)
	return b, err
}

// Send makes one request, and a second one if its token has become invalid. RequestTimeout
// bounds the tokens and both requests together. The name, for example "POST /path", is for
// the details.
func (b *Bearer) Send(ctx context.Context, name string, request func(ctx context.Context, token string, red *redact.Redactor) sink.Result) sink.Result {
	if b.tokens == nil {
		token := b.token()
		return request(ctx, token, b.redactorOf(token))
	}
	timeoutErr := fmt.Errorf("no response within request-timeout (%s)", b.timeout)
	ctx, cancel := context.WithTimeoutCause(ctx, b.timeout, timeoutErr)
	defer cancel()
	return b.tokens.Attempt(ctx, name, func(token string) sink.Result { return request(ctx, token, b.redactorOf(token)) })
}

// redactorOf returns the redactor of a token.
func (b *Bearer) redactorOf(token string) *redact.Redactor {
	if last := b.latest.Load(); last != nil && last.token() == token {
		return last.redactor
	}
	next := &redacted{func() string { return token }, b.redactor(token)}
	b.latest.Store(next)
	return next.redactor
}

// Close cancels the fetch of a token. Call it only when no Send is running.
func (b *Bearer) Close() {
	if b.tokens != nil {
		b.tokens.Close()
	}
}
