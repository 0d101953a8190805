package httpsink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/tlsfiles"
)

const (
	dialTimeout      = 5 * time.Second
	handshakeTimeout = 5 * time.Second

	// idleTimeout is below the keep-alive time of common proxies and load balancers
	// (60 s and more). The relay should close an idle connection first, because a
	// request may otherwise run into the close.
	idleTimeout = 30 * time.Second

	// pingAfter and pingTimeout detect a dead HTTP/2 connection, which many requests
	// share.
	pingAfter   = 10 * time.Second
	pingTimeout = 5 * time.Second

	maxAnswerHeader = 64 << 10
	writeBuffer     = 32 << 10

	// A refused dial often means that the receiver restarts. One retry saves the lane
	// a backoff.
	dialRetries   = 1
	dialRetryWait = 50 * time.Millisecond
)

// maxIdleConns bounds the idle connections of a pool for many hosts.
const maxIdleConns = 256

// newTransport returns the connection pool. It does not connect. A pool without a dial
// function connects directly or by the proxy of the environment.
func newTransport(s *Settings, dial func(ctx context.Context, network, addr string) (net.Conn, error)) (*http.Transport, error) {
	proxy, idle := http.ProxyFromEnvironment, 0
	if dial == nil {
		dial = (&net.Dialer{Timeout: DialTimeout(s)}).DialContext
	} else {
		proxy, idle = nil, max(maxIdleConns, s.MaxConnections)
	}
	secure, err := tlsfiles.Config(s.CAFile, s.CertFile, s.KeyFile)
	if err != nil {
		return nil, err
	}
	return &http.Transport{
		Proxy:                  proxy,
		OnProxyConnectResponse: checkProxy,
		DialContext:            dial,
		TLSClientConfig:        secure,
		TLSHandshakeTimeout:    min(handshakeTimeout, s.RequestTimeout),
		MaxResponseHeaderBytes: maxAnswerHeader,
		// The default keeps only two connections per host.
		MaxIdleConns:        idle,
		MaxIdleConnsPerHost: s.MaxConnections,
		IdleConnTimeout:     idleTimeout,
		// Responses are small, and a limit in bytes should mean bytes.
		DisableCompression: true,
		WriteBufferSize:    writeBuffer,
		ForceAttemptHTTP2:  true,
		HTTP2:              &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
	}, nil
}

// DialTimeout bounds a dial.
func DialTimeout(s *Settings) time.Duration { return min(dialTimeout, s.RequestTimeout) }

// proxyError reports that the proxy refused to connect to the receiver.
type proxyError struct{ status int }

func (e *proxyError) Error() string {
	return fmt.Sprintf("proxy answered %d %s to CONNECT", e.status, http.StatusText(e.status))
}

func checkProxy(_ context.Context, _ *url.URL, _ *http.Request, resp *http.Response) error {
	if resp.StatusCode != http.StatusOK {
		return &proxyError{status: resp.StatusCode}
	}
	return nil
}

// keepConnections hides the pool's CloseIdleConnections from go-retryablehttp, which
// calls it after each failure. That would drop the idle connections of all senders.
type keepConnections struct{ rt http.RoundTripper }

func (k keepConnections) RoundTrip(r *http.Request) (*http.Response, error) {
	return k.rt.RoundTrip(r)
}

func newRetryClient(rt http.RoundTripper) *retryablehttp.Client {
	return &retryablehttp.Client{
		HTTPClient: &http.Client{
			Transport:     keepConnections{rt},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		RetryMax:     dialRetries,
		RetryWaitMin: dialRetryWait,
		RetryWaitMax: dialRetryWait,
		CheckRetry:   retryDial,
		Backoff:      func(wait, _ time.Duration, _ int, _ *http.Response) time.Duration { return wait },
		ErrorHandler: retryablehttp.PassthroughErrorHandler,
	}
}

// retryDial allows a retry only if no connection was made, because then the request
// cannot have reached the receiver. A dial that timed out has waited long enough.
func retryDial(ctx context.Context, _ *http.Response, err error) (bool, error) {
	var op *net.OpError
	if ctx.Err() != nil || !errors.As(err, &op) {
		return false, nil
	}
	return (op.Op == "dial" || op.Op == "proxyconnect") && !op.Timeout(), nil
}
