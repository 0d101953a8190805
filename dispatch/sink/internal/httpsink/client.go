package httpsink

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// bodyTimeout bounds how long the body of an answer is waited for whose status
// says it all.
const bodyTimeout = 2 * time.Second

// Options are what all HTTP sinks have to be told. All fields but CAFile are
// needed.
type Options struct {
	// RequestTimeout bounds an attempt from the dial to the last byte of the
	// answer.
	RequestTimeout time.Duration
	// MaxConnections is how many idle connections are kept.
	MaxConnections int
	// CAFile names a PEM file with the authorities that are trusted in place of
	// the system's; empty trusts those.
	CAFile string
}

// Client makes requests of one attempt each. It keeps connections between them
// and runs nothing else. It is safe for concurrent use.
type Client struct {
	timeout     time.Duration
	retryClient *retryablehttp.Client
	transport   *http.Transport
}

// NewClient makes a client for one receiver. It connects to nothing. The error
// says what is wrong with the CA file or the proxy in the environment.
func NewClient(o Options, to *url.URL) (*Client, error) {
	transport, err := newTransport(o, to)
	if err != nil {
		return nil, err
	}
	return &Client{timeout: o.RequestTimeout, retryClient: newRetryClient(transport), transport: transport}, nil
}

// Close closes the idle connections. Call it when no Do runs any more.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// Request is what one attempt sends.
type Request struct {
	Method string
	URL    string
	Header http.Header
	Body   []byte
	// MaxSuccess is the longest body of a 2xx that makes sense. The body is read
	// whole then, and it takes a whole one to be sure of the 2xx. 0 stands for a
	// receiver whose 2xx says it all.
	MaxSuccess int
}

// Do makes one attempt and waits for its answer, RequestTimeout at most. An
// error is for Unanswered.
func (c *Client) Do(ctx context.Context, r *Request) (*Answer, error) {
	attempt, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var body any // nil for none: else net/http sends an empty chunked body
	if len(r.Body) > 0 {
		body = r.Body
	}
	req, err := retryablehttp.NewRequestWithContext(attempt, r.Method, r.URL, body)
	if err != nil {
		return nil, c.noAnswerErr(ctx, attempt, err)
	}
	req.Header = r.Header
	resp, err := c.retryClient.Do(req)
	if err != nil {
		return nil, c.noAnswerErr(ctx, attempt, err)
	}
	defer func() { _ = resp.Body.Close() }()
	whole := isSuccess(resp.StatusCode) && r.MaxSuccess > 0
	if !whole {
		defer time.AfterFunc(bodyTimeout, cancel).Stop()
		return readBounded(resp), nil
	}
	a := readFull(resp, r.MaxSuccess)
	if a.Err != nil && attempt.Err() != nil {
		return nil, c.noAnswerErr(ctx, attempt, a.Err)
	}
	return a, nil
}

// noAnswerError says that an attempt brought no answer, or none that is whole.
type noAnswerError struct {
	class sink.Class
	text  string
}

func (e *noAnswerError) Error() string { return e.text }

func (c *Client) noAnswerErr(ctx, attempt context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return &noAnswerError{sink.Unavailable, fmt.Sprintf("the relay broke the request off: %v", context.Cause(ctx))}
	case attempt.Err() != nil:
		return &noAnswerError{sink.Unavailable, fmt.Sprintf("no answer within request-timeout (%s)", c.timeout)}
	}
	return &noAnswerError{classifyError(err), ErrorText(err)}
}

// NoAnswerResult is the result of an attempt for which Do returned an error. The
// detail names the request, such as "POST /path", and shows none of the secrets.
func NoAnswerResult(request string, err error, r *Redactor) sink.Result {
	class := sink.Unavailable
	if e := (*noAnswerError)(nil); errors.As(err, &e) {
		class = e.class
	}
	return sink.Result{Outcome: sink.Outcome{
		Class: class, Reason: store.ReasonGateway,
		Detail: r.OneLine(request + ": " + err.Error()),
	}}
}

// classifyError says what a request without an answer means.
func classifyError(err error) sink.Class {
	if proxy := (*proxyError)(nil); errors.As(err, &proxy) {
		if class, _ := sink.Classify(proxy.status); class == sink.Unavailable {
			return class
		}
		return sink.Misconfigured // whatever else a proxy says, it is not about a row
	}
	var cert *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	if errors.As(err, &cert) || errors.As(err, &record) || errors.Is(err, http.ErrSchemeMismatch) {
		return sink.Misconfigured
	}
	return sink.Unavailable
}

// ErrorText is the text of an error without the method and address that net/http
// puts in front.
func ErrorText(err error) string {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "the receiver closed the connection"
	}
	return err.Error()
}
