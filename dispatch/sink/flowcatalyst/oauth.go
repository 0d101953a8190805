package flowcatalyst

import (
	"errors"
	"strings"

	"github.com/sluicebox/sluicebox/dispatch/sink/internal/oauth"
)

// tokenPath is the platform's own token endpoint.
const tokenPath = "/oauth/token"

// OAuth is a client that gets its bearer tokens from a token endpoint by the
// client credentials grant (RFC 6749, section 4.4). ClientID and ClientSecret are
// needed. TokenURL is the platform's own endpoint by default, BaseURL and
// /oauth/token. Scope, Audience and ClientAuth may be empty. ClientSecret is a
// [Token].
type OAuth = oauth.Config

// ClientAuth says how an OAuth client proves who it is.
type ClientAuth = oauth.ClientAuth

// The ways of a client's credentials (RFC 6749, section 2.3.1).
const (
	// AuthAuto: by HTTP Basic, and in the body where the endpoint refuses that; the
	// default.
	AuthAuto = oauth.AuthAuto
	// AuthBasic: by HTTP Basic.
	AuthBasic = oauth.AuthBasic
	// AuthBody: as client_id and client_secret in the body.
	AuthBody = oauth.AuthBody
)

// validateCredentials reports what is wrong with the token and the OAuth client.
func (c *Config) validateCredentials() error {
	switch {
	case !c.OAuth.Enabled():
		return nil
	case c.Token != "":
		return errors.New("api-token and oauth are both set; keep one")
	}
	return c.OAuth.Validate()
}

// newTokenSource returns the source of the tokens, nil for a token that is fixed or
// none at all.
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
