package flowcatalyst

import (
	"strings"

	"github.com/sluicebox/sluicebox/dispatch/sink/internal/oauth"
	"github.com/sluicebox/sluicebox/store"
)

// tokenPath is the path of the platform's own token endpoint.
const tokenPath = "/oauth/token"

// OAuth configures a client that fetches its bearer tokens by the client credentials
// grant (RFC 6749, section 4.4). ClientID and ClientSecret, a [Token], are required.
// TokenURL defaults to the platform's own endpoint, BaseURL and /oauth/token. Scope,
// Audience and ClientAuth may be empty.
type OAuth = oauth.Config

// ClientAuth is the method of client authentication.
type ClientAuth = oauth.ClientAuth

// Methods of client authentication (RFC 6749, section 2.3.1).
const (
	// AuthAuto tries HTTP Basic, and the body if the endpoint refuses that. It is the
	// default.
	AuthAuto = oauth.AuthAuto

	// AuthBasic sends id and secret by HTTP Basic.
	AuthBasic = oauth.AuthBasic

	// AuthBody sends client_id and client_secret in the body.
	AuthBody = oauth.AuthBody
)

// validateCredentials reports conflicts and invalid values of the token and the OAuth
// client.
func (c *Config) validateCredentials() error {
	switch {
	case !c.OAuth.Enabled():
		return nil
	case c.Token != "":
		return &store.FieldError{Key: "api-token", Text: "and oauth are both set; keep one"}
	}
	return c.OAuth.Validate()
}

// newTokenSource returns the source of the tokens, nil if the token is fixed or there
// is none.
func newTokenSource(cfg *Config, base string) (*oauth.Source, error) {
	if !cfg.OAuth.Enabled() {
		return nil, nil
	}
	client := cfg.OAuth
	if client.TokenURL == "" {
		client.TokenURL = strings.TrimRight(base, "/") + tokenPath
	}
	return oauth.NewSource(client, cfg.CAFile, cfg.UserAgent)
}
