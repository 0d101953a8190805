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
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/httpsink"
)

const (
	// assumedLife is the lifetime of a token that comes without one.
	assumedLife = 5 * time.Minute
	// maxLife keeps a lifetime in the range of a Duration.
	maxLife = 10 * 365 * 24 * time.Hour
	// maxAnswer is the longest answer with a token. A token is a header value,
	// and few servers take headers beyond 16 KiB.
	maxAnswer = 64 << 10
)

// endpoint asks for tokens. Each field is a secret or holds one.
type endpoint struct {
	client  *httpsink.Client
	request httpsink.Request
	name    string   // for errors: the method and the address without its query
	secrets []string // in every form in which they are sent, the longest first
}

func newEndpoint(cfg Config, userAgent string, client *httpsink.Client) *endpoint {
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
	// RFC 6749, section 2.3.1: the form encoding comes first, then that of Basic.
	id, secret := url.QueryEscape(cfg.ClientID), url.QueryEscape(string(cfg.ClientSecret))
	basic := base64.StdEncoding.EncodeToString([]byte(id + ":" + secret))
	if cfg.ClientAuth == AuthBody {
		form.Set("client_id", cfg.ClientID)
		form.Set("client_secret", string(cfg.ClientSecret))
	} else {
		head.Set("Authorization", "Basic "+basic)
	}
	name, _, _ := strings.Cut(cfg.TokenURL, "?")
	return &endpoint{
		client: client,
		request: httpsink.Request{
			Method: http.MethodPost, URL: cfg.TokenURL,
			Header: head, Body: []byte(form.Encode()), MaxSuccess: maxAnswer,
		},
		name:    "POST " + name,
		secrets: []string{basic, secret, string(cfg.ClientSecret)},
	}
}

// reply is what an endpoint says, in RFC 6749, sections 5.1 and 5.2.
type reply struct {
	AccessToken string   `json:"access_token"`
	TokenType   string   `json:"token_type"`
	ExpiresIn   lifetime `json:"expires_in"`
	Error       string   `json:"error"`
	Description string   `json:"error_description"`
}

// lifetime is a number of seconds; 0 for what is none, or not above 0.
type lifetime time.Duration

// UnmarshalJSON takes a number, or a text with one, which some endpoints send.
// It never fails: what it cannot read is as good as missing.
func (l *lifetime) UnmarshalJSON(b []byte) error {
	var secs float64
	if json.Unmarshal(bytes.Trim(b, `"`), &secs) == nil && secs > 0 {
		*l = lifetime(min(secs, maxLife.Seconds()) * float64(time.Second))
	}
	return nil
}

// fetch asks once and waits for the answer.
func (e *endpoint) fetch(ctx context.Context) (*grant, *Error) {
	sent := time.Now()
	request := e.request
	request.Header = e.request.Header.Clone()
	a, err := e.client.Do(ctx, &request)
	if err != nil {
		res := httpsink.Unanswered(e.name, err, e.secrets...)
		return nil, newError(res.Class, res.Detail)
	}
	var said reply
	parsed := json.Unmarshal(a.Body, &said)
	switch {
	case !a.Success() || said.Error != "":
		return nil, e.refusal(a, &said)
	case a.Err != nil && a.Err != httpsink.ErrTooLong:
		return nil, e.failure(sink.Unavailable, a, ": the answer broke off: "+httpsink.Plain(a.Err))
	case a.Err != nil:
		return nil, e.failure(sink.Misconfigured, a, ": not a token (the answer is too long)")
	case parsed != nil:
		// Not shown: what it holds may be a token in a form of its own.
		return nil, e.failure(sink.Misconfigured, a, fmt.Sprintf(": not a token (the answer is no JSON object of texts), content type %q", a.ContentType))
	case said.AccessToken == "":
		return nil, e.failure(sink.Misconfigured, a, ": no access_token in the answer")
	case !httpsink.Visible(said.AccessToken):
		return nil, e.failure(sink.Misconfigured, a, ": the access_token is none that a header can carry")
	case said.TokenType != "" && !strings.EqualFold(said.TokenType, "Bearer"):
		return nil, e.failure(sink.Misconfigured, a, fmt.Sprintf(": the token_type is %q, must be Bearer", said.TokenType))
	}
	return newGrant(said.AccessToken, sent, time.Now(), time.Duration(said.ExpiresIn)), nil
}

// newGrant dates a token. A life of 0 stands for an unknown one.
func newGrant(token string, sent, fetched time.Time, life time.Duration) *grant {
	if life == 0 {
		life = assumedLife
	}
	return &grant{
		token: token, fetched: fetched,
		renewAt: sent.Add(life - min(life/marginPart, maxMargin)),
		expires: sent.Add(life),
	}
}

// refusal says what an answer that is no success, or names an error, means.
func (e *endpoint) refusal(a *httpsink.Answer, said *reply) *Error {
	class, _ := sink.Classify(a.Status)
	text := ""
	switch {
	case a.Location != "":
		text = ", which redirects to " + a.Location
	case said.Error != "":
		text = ": " + said.Error
		if said.Description != "" {
			text += " (" + said.Description + ")"
		}
	case !a.Success():
		text = a.Excerpt()
	}
	switch {
	case class == sink.Unavailable, a.Status >= 500 && a.Status < 600, passing(said.Error):
		class = sink.Unavailable
	default:
		class = sink.Misconfigured
	}
	if a.Status == http.StatusUnauthorized || said.Error == "invalid_client" {
		// In front, where the bound on details does not cut it off.
		text = "; look at oauth.client-id, oauth.client-secret and oauth.client-auth" + text
	}
	return e.failure(class, a, text)
}

// passing reports whether an error code stands for a state that ends by itself:
// those of RFC 6749, section 4.1.2.1, which some servers use here too, and that
// of RFC 8628, section 3.5.
func passing(code string) bool {
	return code == "temporarily_unavailable" || code == "server_error" || code == "slow_down"
}

func (e *endpoint) failure(class sink.Class, a *httpsink.Answer, text string) *Error {
	err := newError(class, a.Detail(e.name, text, e.secrets...))
	if class == sink.Unavailable {
		err.RetryAfter = a.RetryAfter
	}
	return err
}

// newError is a failure of now.
func newError(class sink.Class, text string) *Error {
	return &Error{Class: class, text: "no token: " + text, at: time.Now()}
}
