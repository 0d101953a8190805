package httpsink

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/egress"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
)

func newTestClient(t *testing.T, to string, o Settings) *Client {
	t.Helper()
	u, err := ParseAddress("url", to, "token")
	if err != nil {
		t.Fatal(err)
	}
	if o.RequestTimeout == 0 {
		o.RequestTimeout = 30 * time.Second
	}

	o.MaxConnections = 10
	c, err := NewClient(&o, u)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(c.Close)
	return c
}

// send posts one row and classifies the response by its status alone.
func send(t *testing.T, c *Client, to string) sink.Result {
	t.Helper()
	h := http.Header{}
	SetIdempotencyKey(h, "1")
	a, err := c.Do(t.Context(), &Request{Method: http.MethodPost, URL: to, Header: h, Body: []byte(`{"id":"1"}`)})
	if err != nil {
		return NoAnswerResult("POST /x", err, nil)
	}

	class, reason := sink.Classify(a.Status)
	res := sink.Result{Outcome: sink.Outcome{Class: class, Reason: reason}, RetryAfter: a.RetryAfter}
	if class != sink.Delivered {
		res.Detail = a.Failure("POST /x", nil)
	}
	return res
}

// startTLS starts a TLS server. It returns the server and a file with its
// certificate.
func startTLS(t *testing.T, h http.HandlerFunc) (*httptest.Server, string) {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.EnableHTTP2 = true
	// Do not log the handshakes that fail on purpose.
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	file := filepath.Join(t.TempDir(), "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	if err := os.WriteFile(file, block, 0o600); err != nil {
		t.Fatal(err)
	}
	return srv, file
}

func TestTLS(t *testing.T) {
	var proto atomic.Value
	srv, ca := startTLS(t, func(w http.ResponseWriter, r *http.Request) {
		proto.Store(r.Proto)
		w.WriteHeader(http.StatusCreated)
	})

	c := newTestClient(t, srv.URL, Settings{CAFile: ca})
	if res := send(t, c, srv.URL); res.Class != sink.Delivered {
		t.Fatalf("got %s: %s", res.Class, res.Detail)
	}
	if proto.Load() != "HTTP/2.0" {
		t.Errorf("the request went over %v", proto.Load())
	}

	stranger := newTestClient(t, srv.URL, Settings{})
	res := send(t, stranger, srv.URL)
	if res.Class != sink.Misconfigured || !strings.Contains(res.Detail, "certificate") {
		t.Errorf("an unknown authority is %s: %s", res.Class, res.Detail)
	}
}

// TestSchemeMismatch: the wrong scheme for a port is a configuration error.
func TestSchemeMismatch(t *testing.T) {
	plainText := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plainText.Close)
	to := strings.Replace(plainText.URL, "http:", "https:", 1)
	if res := send(t, newTestClient(t, to, Settings{}), to); res.Class != sink.Misconfigured {
		t.Errorf("https to an http port is %s: %s", res.Class, res.Detail)
	}
}

// TestHTTP2NoRepeat: a request whose stream broke is not repeated, because the
// receiver may have handled it.
func TestHTTP2NoRepeat(t *testing.T) {
	var requests atomic.Int64
	srv, ca := startTLS(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if requests.Add(1) > 1 {
			panic(http.ErrAbortHandler) // resets the stream
		}
	})

	c := newTestClient(t, srv.URL, Settings{CAFile: ca})
	for i, want := range []sink.Class{sink.Delivered, sink.Unavailable} {
		if res := send(t, c, srv.URL); res.Class != want {
			t.Errorf("request %d is %s: %s", i+1, res.Class, res.Detail)
		}
	}

	if n := requests.Load(); n != 2 {
		t.Errorf("two messages made %d requests", n)
	}
}

func TestProxy(t *testing.T) {
	for status, want := range map[int]sink.Class{
		407: sink.Misconfigured, 403: sink.Misconfigured, 500: sink.Misconfigured,
		502: sink.Unavailable, 503: sink.Unavailable,
	} {
		proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodConnect {
				t.Errorf("the proxy was asked to %s", r.Method)
			}
			w.WriteHeader(status)
		}))
		t.Cleanup(proxy.Close)
		const to = "https://platform.invalid"
		c := newTestClient(t, to, Settings{})
		at, err := url.Parse(strings.Replace(proxy.URL, "//", "//user:proxy-canary@", 1))
		if err != nil {
			t.Fatal(err)
		}
		c.transport.Proxy = http.ProxyURL(at)
		res := send(t, c, to)
		if res.Class != want || !strings.Contains(res.Detail, fmt.Sprint("proxy answered ", status)) {
			t.Errorf("a proxy's %d is %s: %s", status, res.Class, res.Detail)
		}
		if strings.Contains(res.Detail, "proxy-canary") {
			t.Errorf("the detail shows the proxy's password: %s", res.Detail)
		}
	}
}

// TestDialRetry: a refused dial is retried once. A receiver that is back by then gets
// the request.
func TestDialRetry(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	slow := &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(srv.Close)
	for name, c := range map[string]struct {
		errs  []error // errors of the first dials
		class sink.Class
		dials int64
	}{
		"back at once": {[]error{refused}, sink.Delivered, 2},
		"gone":         {[]error{refused, refused, refused}, sink.Unavailable, 2},
		"time-out":     {[]error{slow, slow}, sink.Unavailable, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var dials atomic.Int64
			client := newTestClient(t, srv.URL, Settings{})
			dial := client.transport.DialContext
			client.transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if n := int(dials.Add(1)); n <= len(c.errs) {
					return nil, c.errs[n-1]
				}
				return dial(ctx, network, addr)
			}
			res := send(t, client, srv.URL)
			if res.Class != c.class || dials.Load() != c.dials {
				t.Errorf("%s after %d dials, want %s after %d: %s", res.Class, dials.Load(), c.class, c.dials, res.Detail)
			}
		})
	}
}

func TestRetryDial(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	dial := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	for name, c := range map[string]struct {
		ctx  context.Context
		err  error
		want bool
	}{
		"dial":           {t.Context(), &url.Error{Op: "Post", URL: "x", Err: dial}, true},
		"no such host":   {t.Context(), &net.OpError{Op: "dial", Err: &net.DNSError{IsNotFound: true}}, true},
		"proxy":          {t.Context(), &net.OpError{Op: "proxyconnect", Err: dial}, true},
		"context ended":  {ended, dial, false},
		"read":           {t.Context(), &net.OpError{Op: "read", Err: syscall.ECONNRESET}, false},
		"write":          {t.Context(), &net.OpError{Op: "write", Err: syscall.EPIPE}, false},
		"end of file":    {t.Context(), &url.Error{Op: "Post", URL: "x", Err: io.EOF}, false},
		"anything":       {t.Context(), errors.New("dial"), false},
		"any answer":     {t.Context(), nil, false},
		"dial timed out": {t.Context(), &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, false},
	} {
		again, err := retryDial(c.ctx, &http.Response{StatusCode: 503}, c.err)
		if again != c.want || err != nil {
			t.Errorf("%s: %v, %v; want %v", name, again, err, c.want)
		}
	}
}

// TestCloseEndsConnections: after Close the receiver sees its connections end.
func TestCloseEndsConnections(t *testing.T) {
	closed := make(chan struct{})
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	srv.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			close(closed)
		}
	}

	srv.Start()
	t.Cleanup(srv.Close)
	c := newTestClient(t, srv.URL, Settings{})
	if res := send(t, c, srv.URL); res.Class != sink.Delivered {
		t.Fatalf("got %s: %s", res.Class, res.Detail)
	}

	c.Close()
	c.Close() // a second Close is harmless
	select {
	case <-closed:
	case <-time.After(5 * time.Second):
		t.Error("the connection is still open")
	}
}

// TestBodyTimeout: the status decides a failure whose body hangs, long before the
// request times out.
func TestBodyTimeout(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // else the server does not notice that the client has gone
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = io.WriteString(w, "no such type")
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
		<-r.Context().Done()
	}))
	t.Cleanup(srv.Close)
	c := newTestClient(t, srv.URL, Settings{RequestTimeout: time.Minute})
	start := time.Now()
	res := send(t, c, srv.URL)
	if res.Class != sink.Rejected || !strings.HasSuffix(res.Detail, ": no such type") {
		t.Errorf("got %s: %s", res.Class, res.Detail)
	}
	if took := time.Since(start); took > 10*bodyTimeout {
		t.Errorf("it took %s", took)
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A guarded client dials each host itself: a proxy would dial unchecked.
func TestGuardedClientUsesNoProxy(t *testing.T) {
	s := WithDefaults(Settings{})
	c, err := NewGuardedClient(&s, &egress.Dialer{})
	if err != nil {
		t.Fatal(err)
	}
	if c.transport.Proxy != nil || c.transport.DialTLSContext != nil || c.transport.MaxIdleConns == 0 {
		t.Error("the transport has a proxy, another dial function or no bound")
	}
	_, err = c.Do(t.Context(), &Request{Method: http.MethodPost, URL: "http://127.0.0.1:1/key"})
	res := NoAnswerResult("POST /", err, redact.New(false))
	if res.Class != sink.Rejected || !res.Unsent || res.Detail != "not sent: address 127.0.0.1 is not public; list it in allow-hosts to allow it" {
		t.Errorf("got %s, unsent %v: %s", res.Class, res.Unsent, res.Detail)
	}
}
