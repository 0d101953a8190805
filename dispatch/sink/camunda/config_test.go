package camunda_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/camunda"
)

func TestConfig(t *testing.T) {
	url := func(u string) func(*camunda.Config) { return func(c *camunda.Config) { c.URL = sink.Secret(u) } }
	for name, tt := range map[string]struct {
		change func(*camunda.Config)
		want   string // "" for none
	}{
		"valid":                {func(*camunda.Config) {}, ""},
		"a path":               {url("https://h.example/cluster-1/"), ""},
		"no url":               {url(""), "url is not set; "},
		"no scheme":            {url("camunda.example:26500"), "url has no scheme http, https, grpc or grpcs"},
		"a user":               {url("https://relay:" + canary + "@h"), "url contains a user or password; put them in user and password"},
		"the path of the API":  {url("https://h/v2/"), "url ends with /v2, which the relay adds"},
		"a query":              {url("https://h/?a=" + canary), "url must end with the path"},
		"no time to live":      {func(c *camunda.Config) { c.TimeToLive = 0 }, "time-to-live is not set; "},
		"a tiny time to live":  {func(c *camunda.Config) { c.TimeToLive = time.Microsecond }, "time-to-live is 1µs, must be at least 1ms"},
		"a template":           {func(c *camunda.Config) { c.Name = "{typ}" }, "name has {typ} at character 1, did you mean {type}?"},
		"a variable":           {func(c *camunda.Config) { c.Variables = map[string]string{"a": "}"} }, "variables.a has a } without a {"},
		"a nameless variable":  {func(c *camunda.Config) { c.Variables = map[string]string{"": "a"} }, "variables has an empty name"},
		"another payload":      {func(c *camunda.Config) { c.Payload = "text" }, `payload is "text", must be variables or message`},
		"two names":            {func(c *camunda.Config) { c.Payload, c.Name = camunda.PayloadMessage, "a" }, "name is set, but with payload: message the payload has it"},
		"two ways to log in":   {func(c *camunda.Config) { c.Token, c.User, c.Password = canary, "a", canary }, "user is set beside a token; keep one"},
		"no password":          {func(c *camunda.Config) { c.User = "a" }, "password is not set; user needs it"},
		"no user":              {func(c *camunda.Config) { c.Password = canary }, "user is not set; password needs it"},
		"a colon":              {func(c *camunda.Config) { c.User, c.Password = "a:b", canary }, "user has a colon"},
		"a token of two lines": {func(c *camunda.Config) { c.Token = canary + "\n" }, "token contains a space, a line break"},
		"no token endpoint": {func(c *camunda.Config) { c.OAuth = camunda.OAuth{ClientID: "a", ClientSecret: canary} },
			"oauth.token-url is not set; "},
		"a negative size":    {func(c *camunda.Config) { c.MaxRequestBytes = -1 }, "max-request-bytes is -1"},
		"half a certificate": {func(c *camunda.Config) { c.CertFile = "a.pem" }, "key-file is not set; cert-file needs it"},
	} {
		cfg := config("https://camunda.example")
		tt.change(&cfg)
		text := ""
		if err := cfg.Validate(); err != nil {
			text = err.Error()
		}
		if text == "" != (tt.want == "") || !strings.Contains(text, tt.want) || strings.Contains(text, canary) {
			t.Errorf("%s: %q, want %q", name, text, tt.want)
		}
	}
}

// Fields names what a row must have. A row without a group has no key, and without the value of a
// variable not that variable.
func TestFields(t *testing.T) {
	cfg := config("https://h")
	cfg.TenantID, cfg.Variables = "{attr.tenant}", map[string]string{"a": "{attr.a}"}
	want := []sink.Field{
		{Key: "name", Attribute: "type", Required: true}, {Key: "correlation-key"},
		{Key: "tenant-id", Attribute: "tenant", Required: true}, {Key: "variables.a", Attribute: "a"},
	}
	got := cfg.Fields()
	if len(got) != len(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("field %d is %+v, want %+v", i, got[i], want[i])
		}
	}
}
