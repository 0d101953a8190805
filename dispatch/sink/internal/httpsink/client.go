package httpsink

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/egress"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/tlsfiles"
	"github.com/sluicebox/sluicebox/store"
)

// bodyTimeout bounds the wait for a body if the status already decides the outcome.
const bodyTimeout = 2 * time.Second

// Client makes requests of one attempt each over a pool of connections. It runs no
// goroutine of its own and is safe for concurrent use.
type Client struct {
	timeout     time.Duration
	retryClient *retryablehttp.Client
	transport   *http.Transport
}

// NewClient returns a client for one receiver. The settings must have no defaults left to
// fill in. It does not connect. It fails if the CA file is unusable or the proxy in the
// environment is invalid.
func NewClient(s *Settings, to *url.URL) (*Client, error) {
	// Check the proxy here, because the error of a later request would quote its
	// address, password included.
	if _, err := http.ProxyFromEnvironment(&http.Request{URL: to}); err != nil {
		return nil, errors.New("proxy in HTTP_PROXY or HTTPS_PROXY is not a URL")
	}
	return newClient(s, nil)
}

// NewGuardedClient returns a client for the receivers that rows name. It does not use the
// proxy of the environment, because only the proxy would know to which address it connects.
func NewGuardedClient(s *Settings, d *egress.Dialer) (*Client, error) {
	return newClient(s, d.DialContext)
}

func newClient(s *Settings, dial func(ctx context.Context, network, addr string) (net.Conn, error)) (*Client, error) {
	transport, err := newTransport(s, dial)
	if err != nil {
		return nil, err
	}
	return &Client{timeout: s.RequestTimeout, retryClient: newRetryClient(transport), transport: transport}, nil
}

// Close closes the idle connections. Call it only when no Do is running.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// Request is the request of one attempt.
type Request struct {
	Method string
	URL    string
	Header http.Header
	Body   []byte

	// MaxSuccess is the maximum length of the body of a 2xx. If it is set, Do reads
	// the whole body, and a 2xx counts only with a whole body. Set 0 for a receiver
	// whose status alone decides.
	MaxSuccess int
}

// Do makes one attempt and waits for the response, at most RequestTimeout. Pass an
// error to [NoAnswerResult].
func (c *Client) Do(ctx context.Context, r *Request) (*Answer, error) {
	attempt, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var body any // nil for an empty body: else net/http sends an empty chunked body
	if len(r.Body) > 0 {
		body = r.Body
	}

	req, err := retryablehttp.NewRequestWithContext(attempt, r.Method, r.URL, body)
	if err != nil {
		return nil, c.noAnswerErr(ctx, attempt, err)
	}

	exchange := sink.ExchangeOf(ctx)
	req.Header = traced(r.Header, exchange)
	resp, err := c.retryClient.Do(req)
	if err != nil {
		return nil, c.noAnswerErr(ctx, attempt, err)
	}
	if exchange != nil {
		exchange.Status.Store(int32(resp.StatusCode)) //nolint:gosec // three digits
	}
	defer func() { _ = resp.Body.Close() }()
	readAll := isSuccess(resp.StatusCode) && r.MaxSuccess > 0
	if !readAll {
		defer time.AfterFunc(bodyTimeout, cancel).Stop()
		return readBounded(resp), nil
	}

	a := readFull(resp, r.MaxSuccess)
	if a.Err != nil && attempt.Err() != nil {
		return nil, c.noAnswerErr(ctx, attempt, a.Err)
	}
	return a, nil
}

// traced returns the headers of a request with its trace context.
func traced(h http.Header, e *sink.Exchange) http.Header {
	const name = "Traceparent"
	if e == nil || e.Traceparent == "" || len(h[name]) > 0 {
		return h
	}
	h = h.Clone()
	h[name] = []string{e.Traceparent}
	return h
}

// noAnswerError reports that an attempt brought no response, or an incomplete one.
type noAnswerError struct {
	class sink.Class
	text  string
}

func (e *noAnswerError) Error() string { return e.text }

func (c *Client) noAnswerErr(ctx, attempt context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return &noAnswerError{sink.Unavailable, fmt.Sprintf("request canceled: %v", context.Cause(ctx))}
	case attempt.Err() != nil:
		return &noAnswerError{sink.Unavailable, fmt.Sprintf("no response within request-timeout (%s)", c.timeout)}
	}
	return &noAnswerError{classifyError(err), ErrorText(err)}
}

// NoAnswerResult returns the result of an attempt for which Do returned an error. The
// detail names the request, for example "POST /path", and holds no secrets.
func NoAnswerResult(request string, err error, red *redact.Redactor) sink.Result {
	class := sink.Unavailable
	if e := (*noAnswerError)(nil); errors.As(err, &e) {
		class = e.class
	}
	if class == sink.Rejected {
		return sink.RejectFirst(1, red.OneLine("not sent: "+err.Error()))
	}
	return sink.Result{Outcome: sink.Outcome{
		Class: class, Reason: store.ReasonGateway,
		Detail: red.OneLine(request + ": " + err.Error()),
	}}
}

// classifyError classifies an attempt without a response.
func classifyError(err error) sink.Class {
	if refused := (*egress.RefusedError)(nil); errors.As(err, &refused) {
		return sink.Rejected // the row names an address to which the relay does not connect
	}
	if proxy := (*proxyError)(nil); errors.As(err, &proxy) {
		if class, _ := sink.Classify(proxy.status); class == sink.Unavailable {
			return class
		}
		return sink.Misconfigured // any other answer of a proxy is not about a row
	}

	var cert *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	if errors.As(err, &cert) || errors.As(err, &record) || errors.Is(err, http.ErrSchemeMismatch) {
		return sink.Misconfigured
	}
	return sink.Unavailable
}

// ErrorText returns the text of an error without the method and address that net/http
// adds.
func ErrorText(err error) string {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "receiver closed the connection"
	}
	return tlsfiles.Explain(err.Error())
}
