package oauth

import (
	"net/url"
	"strings"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/httpsink"
	"github.com/sluicebox/sluicebox/store"
)

// ClientAuth is the method of client authentication (RFC 6749, section 2.3.1).
type ClientAuth string

// Methods of client authentication.
const (
	// AuthAuto tries HTTP Basic, which every endpoint must support (RFC 6749, section
	// 2.3.1). If the endpoint refuses that, it tries the body. The method that works
	// is kept.
	AuthAuto ClientAuth = "auto"

	// AuthBasic sends id and secret, each form-encoded, by HTTP Basic.
	AuthBasic ClientAuth = "basic"

	// AuthBody sends client_id and client_secret in the body.
	AuthBody ClientAuth = "body"
)

// Config is a token endpoint and its client.
type Config struct {
	// TokenURL is the endpoint's address. The sink chooses the default. It may have a
	// query, which no error shows.
	TokenURL     string
	ClientID     string
	ClientSecret sink.Secret

	// Scope lists the scopes to request, separated by spaces. If it is empty, the
	// endpoint chooses.
	Scope string

	// Audience is sent as the parameter of that name, which some endpoints require.
	// Empty sends none.
	Audience string

	// ClientAuth is the method of client authentication. The default is AuthAuto.
	ClientAuth ClientAuth
}

// Enabled reports whether any field is set.
func (c *Config) Enabled() bool { return *c != Config{} }

// Check reports every invalid value like Validate, and a fixed token beside an enabled
// endpoint. tokenKey is the key of the token.
func (c *Config) Check(token sink.Secret, tokenKey string) error {
	switch {
	case !c.Enabled():
		return nil
	case token != "":
		return &store.FieldError{Key: tokenKey, Text: "and oauth are both set; keep one"}
	}
	return c.Validate()
}

// Validate reports every invalid value by its configuration key. The errors do not
// show the secret or a password.
func (c *Config) Validate() error {
	var bad store.FieldErrors
	if c.TokenURL != "" {
		if _, err := parseURL(c.TokenURL); err != nil {
			bad.AddErr(err)
		}
	}

	switch {
	case c.ClientID == "":
		bad.Add("oauth.client-id", "is not set")
	case !printable(c.ClientID):
		bad.Add("oauth.client-id", "%s", strayCharText)
	}

	switch {
	case c.ClientSecret == "":
		bad.Add("oauth.client-secret", "is not set")
	case !printable(string(c.ClientSecret)):
		bad.Add("oauth.client-secret", "%s", strayCharText)
	}

	if !printable(c.Scope) || strings.ContainsAny(c.Scope, `"\`) {
		bad.Add("oauth.scope", "%q must be space-separated names without quotes or backslashes", c.Scope)
	}
	if !printable(c.Audience) {
		bad.Add("oauth.audience", "%s", strayCharText)
	}
	switch c.ClientAuth {
	case "", AuthAuto, AuthBasic, AuthBody:
	default:
		bad.Add("oauth.client-auth", "is %q, must be %s, %s or %s", string(c.ClientAuth), AuthAuto, AuthBasic, AuthBody)
	}

	return bad.Err()
}

const strayCharText = "contains a line break or a character outside ASCII, or starts or ends with a space; check for a trailing newline"

// parseURL parses the address, which must have no fragment (RFC 6749, section 3.2).
func parseURL(raw string) (*url.URL, error) {
	const key = "oauth.token-url"
	if u, err := url.Parse(raw); err == nil && u.User != nil {
		return nil, &store.FieldError{Key: key, Text: "contains a user or password; put them in oauth.client-id and oauth.client-secret"}
	}

	u, err := httpsink.ParseAddress(key, raw, "oauth.client-secret")
	if err != nil {
		return nil, err
	}
	if u.Fragment != "" {
		return nil, &store.FieldError{Key: key, Text: "must not have a fragment (#)"}
	}
	return u, nil
}

// printable reports whether s has only characters that RFC 6749, appendix A, permits,
// and neither starts nor ends with a space.
func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return s == strings.TrimSpace(s)
}
