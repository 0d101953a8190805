package flowcatalyst

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// failureGrace bounds how long the body of an answer that is no success is
// waited for: what it means is known from its status.
const failureGrace = 2 * time.Second

// Sink delivers to one platform. It keeps connections between requests and runs
// nothing else.
type Sink struct {
	cfg  Config // without the token
	base string // without a slash at its end
	// token is a function, so that no printing of a Sink shows what it returns.
	token     func() string
	client    *retryablehttp.Client
	transport *http.Transport
}

var _ sink.Sink = (*Sink)(nil)

// New makes a sink. It connects to nothing. The error is one of Validate, or
// says what is wrong with the CA file or the proxy in the environment.
func New(cfg Config) (*Sink, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	base, err := parseBaseURL(cfg.BaseURL)
	if err != nil {
		return nil, err
	}
	transport, err := newTransport(&cfg, base)
	if err != nil {
		return nil, err
	}
	token := string(cfg.Token)
	cfg.Token = ""
	return &Sink{
		cfg:       cfg,
		base:      strings.TrimRight(base.String(), "/"),
		token:     func() string { return token },
		client:    newClient(transport),
		transport: transport,
	}, nil
}

// Close closes the idle connections. Call it when no Deliver runs any more.
func (s *Sink) Close() { s.transport.CloseIdleConnections() }

// Limits returns what the platform takes in one request.
func (s *Sink) Limits(kind string) sink.Limits {
	r, err := s.cfg.route(kind)
	if err != nil {
		return sink.Limits{Mode: sink.Atomic, MaxItems: 1, MaxBytes: 1}
	}
	// The platform's limit is "just under" a round number: a request of several
	// rows keeps clear of it.
	room := r.maxBody - r.maxBody/256 - len(r.open) - len(r.shut) - r.maxItems
	return sink.Limits{Mode: sink.Atomic, MaxItems: r.maxItems, MaxBytes: max(room, 1)}
}

// Deliver sends the messages in one request. A message that can never be sent is
// rejected when it is the first; otherwise those before it are sent. See the
// package comment.
func (s *Sink) Deliver(ctx context.Context, msgs []sink.Message) sink.Result {
	if len(msgs) == 0 {
		return delivered()
	}
	r, err := s.cfg.route(msgs[0].Kind)
	if err != nil {
		return rejectFirst(len(msgs), clean("not sent: "+err.Error(), ""))
	}
	n, why := r.fit(msgs)
	if n == 0 {
		return rejectFirst(len(msgs), why)
	}
	return extend(s.send(ctx, &r, msgs[:n]), n, len(msgs))
}

// rejectFirst is the answer to n messages of which the first cannot be sent.
func rejectFirst(n int, why string) sink.Result {
	out := sink.Outcome{Class: sink.Rejected, Reason: store.ReasonBadRequest, Detail: why}
	if n == 1 {
		return sink.Result{Outcome: out}
	}
	return extend(sink.Result{Items: []sink.Outcome{out}}, 1, n)
}

// extend makes an answer to n messages one to all of them.
//
// A failure of the request as a whole stays as it is. Items are verdicts on
// single rows, and there is none: the dispatcher has to find the row to blame,
// or wait, and comes back with fewer rows.
func extend(res sink.Result, n, all int) sink.Result {
	if n == all || (res.Items == nil && res.Class != sink.Delivered) {
		return res
	}
	items := make([]sink.Outcome, all)
	for i := range items {
		if i < n {
			items[i] = res.At(i)
			continue
		}
		items[i] = sink.Outcome{Class: sink.NotSent}
	}
	res.Outcome, res.Items = sink.Outcome{}, items
	return res
}

// send makes one request and waits for its answer, RequestTimeout at most.
func (s *Sink) send(ctx context.Context, r *route, msgs []sink.Message) sink.Result {
	attempt, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
	defer cancel()
	req, err := s.request(attempt, r, msgs)
	if err != nil {
		return s.noAnswer(ctx, attempt, r, err)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return s.noAnswer(ctx, attempt, r, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if class, _ := sink.Classify(resp.StatusCode); class != sink.Delivered {
		defer time.AfterFunc(failureGrace, cancel).Stop()
	}
	a := read(resp)
	if a.success() && attempt.Err() != nil && a.err != nil {
		return s.noAnswer(ctx, attempt, r, a.err)
	}
	res := a.judge(r, len(msgs), s.token())
	if !a.success() {
		res.RetryAfter = sink.RetryAfter(resp.Header, time.Now())
	}
	return res
}

func (s *Sink) request(ctx context.Context, r *route, msgs []sink.Message) (*retryablehttp.Request, error) {
	req, err := retryablehttp.NewRequestWithContext(ctx, http.MethodPost, s.base+r.path, r.body(msgs))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", s.cfg.UserAgent)
	if token := s.token(); token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if len(msgs) == 1 {
		setIdempotencyKey(req.Header, msgs[0].ID)
	}
	return req, nil
}

// noAnswer is the result of a request that brought no answer, or none that is
// whole.
func (s *Sink) noAnswer(ctx, attempt context.Context, r *route, err error) sink.Result {
	class, what := classifyError(err), plain(err)
	switch {
	case ctx.Err() != nil:
		class, what = sink.Unavailable, fmt.Sprintf("the relay broke the request off: %v", context.Cause(ctx))
	case attempt.Err() != nil:
		class, what = sink.Unavailable, fmt.Sprintf("no answer within request-timeout (%s)", s.cfg.RequestTimeout)
	}
	return sink.Result{Outcome: sink.Outcome{
		Class: class, Reason: store.ReasonGateway,
		Detail: clean(fmt.Sprintf("POST %s: %s", r.path, what), s.token()),
	}}
}

// plain is the text of an error without the method and address that net/http
// puts in front.
func plain(err error) string {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "the receiver closed the connection"
	}
	return err.Error()
}
