package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/dispatch"
)

const (
	// clientTimeout exceeds actionTimeout, so that the relay can report its own timeout.
	clientTimeout = actionTimeout + 15*time.Second
	dialTimeout   = 5 * time.Second
	maxResponse   = 64 << 20
)

// Client calls the API of a running relay.
type Client struct {
	base, token string
	http        *http.Client
}

// APIError is an error response of a relay.
type APIError struct {
	Status int // HTTP status
	Text   string
}

func (e *APIError) Error() string { return e.Text }

// UnreachableError is returned if no relay answers, or the connection breaks.
type UnreachableError struct {
	Base string // http://host:port
	Err  error
}

func (e *UnreachableError) Error() string {
	if e.Sent() {
		return fmt.Sprintf("relay at %s closed the connection before it responded: %v", e.Base, e.Err)
	}
	return fmt.Sprintf("no relay responds at %s: %v", e.Base, networkReason(e.Err))
}

// Sent reports whether the relay may have received the request, and so may have carried
// it out.
func (e *UnreachableError) Sent() bool {
	var op *net.OpError
	return !errors.As(e.Err, &op) || op.Op != "dial"
}

// Unwrap returns the cause.
func (e *UnreachableError) Unwrap() error { return e.Err }

// BaseURL returns the URL of a relay that listens at host:port on this machine.
func BaseURL(listen string) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", fmt.Errorf("%q is not host:port", listen)
	}

	if port == "0" {
		return "", fmt.Errorf("%s picks a free port, which is unknown to clients", listen)
	}
	switch ip := net.ParseIP(host); {
	case host == "":
		host = "127.0.0.1"
	case ip != nil && ip.IsUnspecified() && ip.To4() != nil:
		host = "127.0.0.1"
	case ip != nil && ip.IsUnspecified():
		host = "::1"
	}

	return "http://" + net.JoinHostPort(host, port), nil
}

// NewClient returns a client of the relay at a URL such as http://127.0.0.1:8090. The
// scheme http:// may be omitted. An empty token sends none. It connects on first use.
// Close it when done.
func NewClient(base, token string) (*Client, error) {
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("invalid relay address: want a URL such as http://127.0.0.1:8090")
	}

	transport := &http.Transport{
		Proxy:       http.ProxyFromEnvironment,
		DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext,
	}

	return &Client{base: strings.TrimRight(u.String(), "/"), token: token, http: &http.Client{
		Transport: transport, Timeout: clientTimeout,
		// Do not follow redirects, because the token is only for this address.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Lanes returns at most limit of the chosen lanes; 0 means the relay's default.
func (c *Client) Lanes(ctx context.Context, f dispatch.LaneFilter, limit int) (LaneList, error) {
	q := url.Values{}
	for name, value := range map[string]string{"outbox": f.Outbox, "kind": f.Kind, "state": f.State} {
		if value != "" {
			q.Set(name, value)
		}
	}

	if f.Group != nil && f.Group.Valid {
		q.Set("group", f.Group.Name)
	} else if f.Group != nil {
		q.Set("no-group", "true")
	}

	if limit != 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	return call[LaneList](ctx, c, http.MethodGet, lanesPath+"?"+q.Encode(), nil)
}

// ActOnLane runs retry-now, skip, pause or resume. It returns the lane after the action,
// or one with an empty State if no rows are left.
func (c *Client) ActOnLane(ctx context.Context, action string, req LaneRequest) (dispatch.LaneInfo, error) {
	return call[dispatch.LaneInfo](ctx, c, http.MethodPost, lanesPath+"/"+action, req)
}

// ActOnDeadLetters requeues or discards at most MaxDeadLetters rows, or counts them.
func (c *Client) ActOnDeadLetters(ctx context.Context, action string, req DeadLetterRequest) (DeadLetterCount, error) {
	return call[DeadLetterCount](ctx, c, http.MethodPost, deadLettersPath+"/"+action, req)
}

// Status returns the relay's status; with failed, including the counts of FAILED rows.
func (c *Client) Status(ctx context.Context, failed bool) (RelayStatus, error) {
	return call[RelayStatus](ctx, c, http.MethodGet, statusPath+"?"+url.Values{"count": {strconv.FormatBool(failed)}}.Encode(), nil)
}

// call sends a request and returns the response; see Client.do.
func call[T any](ctx context.Context, c *Client, method, path string, body any) (answer T, err error) {
	err = c.do(ctx, method, path, body, &answer)
	return answer, err
}

// do sends a request and decodes the response into v. The error is an *APIError, an
// *UnreachableError or the context's.
func (c *Client) do(ctx context.Context, method, path string, body, v any) error {
	var sent io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		sent = bytes.NewReader(text)
	}

	req, err := http.NewRequestWithContext(ctx, method, c.base+path, sent)
	if err != nil {
		return err
	}

	if sent != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}

	res, err := c.http.Do(req)
	if err != nil {
		return c.transportError(ctx, err)
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxResponse))
	if err != nil {
		return c.transportError(ctx, err)
	}

	return c.decodeResponse(res.StatusCode, answer, v)
}

// transportError returns the context's error if the caller's context ended, else an
// *UnreachableError.
func (c *Client) transportError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	return &UnreachableError{Base: c.base, Err: err}
}

// decodeResponse decodes a response. An error page that is not the API's is not shown,
// because another server may have sent it.
func (c *Client) decodeResponse(status int, answer []byte, v any) error {
	if status == http.StatusOK {
		if err := json.Unmarshal(answer, v); err != nil {
			return &APIError{Status: status, Text: fmt.Sprintf("server at %s is not a relay", c.base)}
		}
		return nil
	}
	var refused wireError
	if err := json.Unmarshal(answer, &refused); err == nil && refused.Error != "" {
		return &APIError{Status: status, Text: refused.Error}
	}
	return &APIError{Status: status, Text: fmt.Sprintf("server at %s (status %d) has no such endpoint; it is not a relay, or has another version", c.base, status)}
}
