package oauth

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/ascii"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/httpsink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
)

const (
	// assumedLifetime is the lifetime of a token without expires_in.
	assumedLifetime = 5 * time.Minute

	// maxLifetime keeps a lifetime in the range of a Duration.
	maxLifetime = 10 * 365 * 24 * time.Hour

	// maxAnswer is the maximum length of a response with a token. A token is a header
	// value, and few servers accept headers above 16 KiB.
	maxAnswer = 64 << 10
)

// endpoint requests tokens. Each of its fields is a secret or holds one.
type endpoint struct {
	client       *httpsink.Client
	authRequests []httpsink.Request // one for each method of authentication, in the order to try
	workingAuth  atomic.Int32       // the method that brought a token, from 1; 0 for none yet
	name         string             // for errors: the method and the address without its query

	redactor *redact.Redactor
}

func newEndpoint(cfg Config, address *url.URL, userAgent string, client *httpsink.Client) *endpoint {
	form := url.Values{"grant_type": {"client_credentials"}}
	if cfg.Scope != "" {
		form.Set("scope", cfg.Scope)
	}
	if cfg.Audience != "" {
		form.Set("audience", cfg.Audience)
	}

	head := http.Header{
		"Content-Type": {"application/x-www-form-urlencoded"},
		"Accept":       {"application/json"},
		"User-Agent":   {userAgent},
	}

	// RFC 6749, section 2.3.1: encode as a form first, then for Basic.
	id, secret := url.QueryEscape(cfg.ClientID), url.QueryEscape(string(cfg.ClientSecret))
	basic := base64.StdEncoding.EncodeToString([]byte(id + ":" + secret))
	newRequest := func() httpsink.Request {
		return httpsink.Request{
			Method: http.MethodPost, URL: cfg.TokenURL,
			Header: head.Clone(), Body: []byte(form.Encode()), MaxSuccess: maxAnswer,
		}
	}

	var requests []httpsink.Request
	if cfg.ClientAuth != AuthBody {
		basicAuth := newRequest()
		basicAuth.Header.Set("Authorization", "Basic "+basic)
		requests = append(requests, basicAuth)
	}

	if cfg.ClientAuth != AuthBasic {
		form.Set("client_id", cfg.ClientID)
		form.Set("client_secret", string(cfg.ClientSecret))
		requests = append(requests, newRequest())
	}

	name, _, _ := strings.Cut(cfg.TokenURL, "?")
	return &endpoint{
		client:       client,
		authRequests: requests,
		name:         "POST " + name,

		redactor: redact.New(false, append(redact.QuerySecrets(address), basic, secret, string(cfg.ClientSecret))...),
	}
}

// reply is the response of an endpoint (RFC 6749, sections 5.1 and 5.2).
type reply struct {
	AccessToken string   `json:"access_token"`
	TokenType   string   `json:"token_type"`
	ExpiresIn   lifetime `json:"expires_in"`
	Error       string   `json:"error"`
	Description string   `json:"error_description"`
}

// lifetime is a number of seconds, 0 if it is unknown or not above 0.
type lifetime time.Duration

// UnmarshalJSON accepts a number or a string with a number, which some endpoints
// send. It never fails: an unreadable value counts as missing.
func (l *lifetime) UnmarshalJSON(b []byte) error {
	var secs float64
	if json.Unmarshal(bytes.Trim(b, `"`), &secs) == nil && secs > 0 {
		*l = lifetime(min(secs, maxLifetime.Seconds()) * float64(time.Second))
	}
	return nil
}

// fetch requests a token and waits for the response. If the endpoint does not know
// the client by the first method of authentication, fetch tries the second, because a
// refusal issued no token.
func (e *endpoint) fetch(ctx context.Context) (*grant, *Error) {
	if i := e.workingAuth.Load(); i > 0 {
		return e.request(ctx, e.authRequests[i-1])
	}

	var refusal *Error
	for i := range e.authRequests {
		got, err := e.request(ctx, e.authRequests[i])
		switch {
		case err == nil:
			e.workingAuth.Store(int32(i) + 1)
			return got, nil
		case !err.unknownClient:
			return nil, err
		case refusal == nil || refusal.code != invalidClient && err.code == invalidClient:
			refusal = err // the error of the method that the endpoint reads
		}
	}
	return nil, refusal
}

// request makes one request.
func (e *endpoint) request(ctx context.Context, request httpsink.Request) (*grant, *Error) {
	sent := time.Now()
	request.Header = request.Header.Clone()
	a, err := e.client.Do(ctx, &request)
	if err != nil {
		res := httpsink.NoAnswerResult(e.name, err, e.redactor)
		return nil, newError(res.Class, res.Detail)
	}

	var rep reply
	parsed := json.Unmarshal(a.Body, &rep)
	switch {
	case !a.Success() || rep.Error != "":
		return nil, e.refusal(a, &rep)
	case a.Err != nil && a.Err != httpsink.ErrTooLong:
		return nil, e.failure(sink.Unavailable, a, ": incomplete response: "+httpsink.ErrorText(a.Err))
	case a.Err != nil:
		return nil, e.failure(sink.Misconfigured, a, ": not a token (response too long)")
	case parsed != nil:
		// Do not quote the body, because it may hold a token in an unknown format.
		return nil, e.failure(sink.Misconfigured, a, fmt.Sprintf(": not a token (response is not a JSON object of strings), content type %q", a.ContentType))
	case rep.AccessToken == "":
		return nil, e.failure(sink.Misconfigured, a, ": no access_token in the response")
	case !ascii.Visible(rep.AccessToken):
		return nil, e.failure(sink.Misconfigured, a, ": access_token is not a valid header value")
	case rep.TokenType != "" && !strings.EqualFold(rep.TokenType, "Bearer"):
		return nil, e.failure(sink.Misconfigured, a, fmt.Sprintf(": token_type is %q, must be Bearer", rep.TokenType))
	}

	return newGrant(rep.AccessToken, sent, time.Now(), time.Duration(rep.ExpiresIn)), nil
}

// newGrant sets the times of a token. A life of 0 is unknown.
func newGrant(token string, sent, fetched time.Time, life time.Duration) *grant {
	if life == 0 {
		life = assumedLifetime
	}
	return &grant{
		token: token, fetched: fetched,
		renewAt: sent.Add(life - min(life/renewFraction, maxRenewMargin)),
		expires: sent.Add(life),
	}
}

// refusal classifies a response that is not a success or has an error code.
func (e *endpoint) refusal(a *httpsink.Answer, rep *reply) *Error {
	class, _ := sink.Classify(a.Status)
	text := ""
	switch {
	case a.Location != "":
		text = ", redirect to " + a.Location
	case rep.Error != "":
		text = ": " + rep.Error
		if rep.Description != "" {
			text += " (" + rep.Description + ")"
		}
	case !a.Success():
		text = a.Excerpt(e.redactor)
	}

	switch {
	case class == sink.Unavailable, a.Status >= 500 && a.Status < 600, isTransient(rep.Error):
		class = sink.Unavailable
	default:
		class = sink.Misconfigured
	}

	unknown := a.Status == http.StatusUnauthorized ||
		a.Status == http.StatusBadRequest && (rep.Error == "" || rep.Error == invalidRequest) || rep.Error == invalidClient
	if unknown { // at the start, so that the bound on details does not cut it off
		hint := "; check oauth.client-id, oauth.client-secret and oauth.client-auth"
		if len(e.authRequests) > 1 {
			hint = "; check oauth.client-id and oauth.client-secret (oauth.client-auth: auto tries basic and body)"
		}
		text = hint + text
	}

	err := e.failure(class, a, text)
	err.unknownClient, err.code = unknown && class == sink.Misconfigured, rep.Error
	return err
}

// Error codes of RFC 6749, section 5.2, for an unknown client, or for credentials
// that are not where the endpoint looks for them.
const (
	invalidClient  = "invalid_client"
	invalidRequest = "invalid_request"
)

// isTransient reports whether an error code names a temporary state. The codes are
// from RFC 6749, section 4.1.2.1, which some servers use here too, and from RFC 8628,
// section 3.5.
func isTransient(code string) bool {
	return code == "temporarily_unavailable" || code == "server_error" || code == "slow_down"
}

func (e *endpoint) failure(class sink.Class, a *httpsink.Answer, text string) *Error {
	err := newError(class, a.Detail(e.name, text, e.redactor))
	if class == sink.Unavailable {
		err.RetryAfter = a.RetryAfter
	}
	return err
}

// newError returns a failure that is dated now.
func newError(class sink.Class, text string) *Error {
	return &Error{Class: class, text: "no token: " + text, at: time.Now()}
}
