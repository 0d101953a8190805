package oauth

import (
	"fmt"
	"strings"
	"testing"
)

func TestValidate(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		want   string // prefix of the error; "" for none
	}{
		"good":             {func(*Config) {}, ""},
		"default address":  {func(c *Config) { c.TokenURL = "" }, ""},
		"query":            {func(c *Config) { c.TokenURL += "?tenant=7" }, ""},
		"all":              {func(c *Config) { c.Scope, c.Audience, c.ClientAuth = "a b:c/d", "https://x", AuthBody }, ""},
		"fragment":         {func(c *Config) { c.TokenURL += "#canary" }, "oauth.token-url must not have a fragment (#)"},
		"scheme":           {func(c *Config) { c.TokenURL = "ftp://h" }, `oauth.token-url has scheme "ftp"`},
		"no host":          {func(c *Config) { c.TokenURL = "/oauth/token" }, `oauth.token-url has scheme ""`},
		"not a URL":        {func(c *Config) { c.TokenURL = "https://h:x" }, "oauth.token-url is not a URL"},
		"password":         {func(c *Config) { c.TokenURL = "https://relay:canary@h/" }, "oauth.token-url contains a user or password; put them in oauth.client-id"},
		"password, broken": {func(c *Config) { c.TokenURL = "https://relay:canary@h:x/" }, "oauth.token-url is not a URL"},
		"no id":            {func(c *Config) { c.ClientID = "" }, "oauth.client-id is not set"},
		"id newline":       {func(c *Config) { c.ClientID += "\n" }, "oauth.client-id contains a line break"},
		"no secret":        {func(c *Config) { c.ClientSecret = "" }, "oauth.client-secret is not set"},
		"secret newline":   {func(c *Config) { c.ClientSecret += "\n" }, "oauth.client-secret contains a line break"},
		"secret umlaut":    {func(c *Config) { c.ClientSecret += "ü" }, "oauth.client-secret contains a line break or a character outside ASCII"},
		"secret blank":     {func(c *Config) { c.ClientSecret = " " + c.ClientSecret }, "oauth.client-secret contains"},
		"scope":            {func(c *Config) { c.Scope = `"a"` }, "oauth.scope"},
		"scope tab":        {func(c *Config) { c.Scope = "a\tb" }, "oauth.scope"},
		"audience":         {func(c *Config) { c.Audience = "a\r\n" }, "oauth.audience contains a line break"},
		"auth":             {func(c *Config) { c.ClientAuth = "post" }, `oauth.client-auth is "post", must be auto, basic or body`},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config("https://login.example/token")
			c.change(&cfg)
			err := cfg.Validate()
			if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("got error %v, want %q", err, c.want)
			}
			if err != nil {
				wantHidden(t, err.Error())
			}
		})
	}

	cfg := Config{TokenURL: "x", ClientAuth: "y", Scope: "\\", Audience: "\x00"}
	err := cfg.Validate()
	for _, key := range []string{"token-url", "client-id", "client-secret", "scope", "audience", "client-auth"} {
		if err == nil || !strings.Contains(err.Error(), "oauth."+key) {
			t.Errorf("%s is not in %v", key, err)
		}
	}
}

func TestEnabled(t *testing.T) {
	for _, c := range []Config{
		{TokenURL: "x"}, {ClientID: "x"}, {ClientSecret: "x"}, {Scope: "x"}, {Audience: "x"}, {ClientAuth: AuthBasic},
	} {
		if !c.Enabled() {
			t.Errorf("%+v is not enabled", c)
		}
	}

	if (&Config{}).Enabled() {
		t.Error("zero value is enabled")
	}
}

// TestNotPrinted: printing a configuration or a source in use shows no secret.
func TestNotPrinted(t *testing.T) {
	d := &fakeEndpoint{}
	s := newSource(t, config("https://login.example/token"))
	s.fetch = d.fetch
	token, err := s.Token(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	s.fetches.Wait() // printing takes no lock
	cfg := config("https://login.example/token")
	holder := struct{ S *Source }{s}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for _, v := range []any{cfg, &cfg, s, holder} {
			text := fmt.Sprintf(verb, v)
			for _, secret := range []string{canary, fmt.Sprintf("%x", canary), `"` + token + `"`, "token:" + token} {
				if strings.Contains(text, secret) {
					t.Errorf("%s shows a secret: %s", verb, text)
				}
			}
		}
	}
}
