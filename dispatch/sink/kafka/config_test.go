package kafka

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/event"
)

// Each invalid value is reported by its key, and no error shows a secret.
func TestValidate(t *testing.T) {
	const secret = "canary-secret"
	for name, tt := range map[string]struct {
		change func(c *Config)
		keys   []string
	}{
		"valid":            {func(*Config) {}, nil},
		"nothing":          {func(c *Config) { *c = Config{} }, []string{"brokers", "topic"}},
		"no list":          {func(c *Config) { c.Brokers = []string{"k1:9092,k2:9092"} }, []string{"brokers[0]"}},
		"no port":          {func(c *Config) { c.Brokers = []string{"k1:9092", "k2", "k3:0", ":9092"} }, []string{"brokers[1]", "brokers[2]", "brokers[3]"}},
		"topic":            {func(c *Config) { c.Topic = "order events" }, []string{"topic"}},
		"dots":             {func(c *Config) { c.Topic = ".." }, []string{"topic"}},
		"long topic":       {func(c *Config) { c.Topic = strings.Repeat("x", 250) }, []string{"topic"}},
		"text in a topic":  {func(c *Config) { c.Topic = "a/{kind}" }, []string{"topic"}},
		"a dot in a topic": {func(c *Config) { c.Topic = "{kind}.{attr.tenant}" }, nil},
		"unknown field":    {func(c *Config) { c.Topic = "{kid}" }, []string{"topic"}},
		"words":            {func(c *Config) { c.Key, c.Compression, c.Format = "k", "c", "f" }, []string{"key", "compression", "format"}},
		"size":             {func(c *Config) { c.MaxRequestBytes = -1 }, []string{"max-request-bytes"}},
		"key without cert": {func(c *Config) { c.KeyFile = "k" }, []string{"cert-file"}},
		"mechanism":        {func(c *Config) { c.SASL.Mechanism = "gssapi" }, []string{"sasl.mechanism"}},
		"no credentials":   {func(c *Config) { c.SASL.Mechanism = MechanismSCRAM512 }, []string{"sasl.user", "sasl.password"}},
		"no mechanism":     {func(c *Config) { c.SASL = SASL{User: "u", Password: secret} }, []string{"sasl.user", "sasl.password"}},
		"no token":         {func(c *Config) { c.SASL.Mechanism = MechanismOAuthBearer }, []string{"oauth"}},
		"token alone":      {func(c *Config) { c.Token = secret }, []string{"token"}},
		"two tokens": {func(c *Config) {
			c.SASL.Mechanism, c.Token, c.OAuth = MechanismOAuthBearer, secret, OAuth{TokenURL: "https://t", ClientID: "c", ClientSecret: secret}
		}, []string{"token"}},
		"no endpoint": {func(c *Config) {
			c.SASL.Mechanism, c.OAuth = MechanismOAuthBearer, OAuth{ClientID: "c", ClientSecret: secret}
		}, []string{"oauth.token-url"}},
		"password beside": {func(c *Config) { c.SASL = SASL{Mechanism: MechanismOAuthBearer, Password: secret}; c.Token = secret }, []string{"sasl.password"}},
		"session": {func(c *Config) {
			c.SASL = SASL{Mechanism: MechanismPlain, User: "u", Password: secret, Session: secret}
		}, []string{"sasl.session-token"}},
		"AWS":               {func(c *Config) { c.SASL = SASL{Mechanism: MechanismAWS, User: "u", Password: secret, Session: secret} }, nil},
		"event without one": {func(c *Config) { c.Format = event.FormatCloudEvents }, []string{"cloudevents-source"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := DefaultConfig()
			c.Brokers, c.Topic = []string{"k1:9092"}, "orders"
			tt.change(&c)
			err := c.Validate()
			var keys []string
			for line := range strings.Lines(text(err)) {
				key, _, _ := strings.Cut(line, " ")
				keys = append(keys, strings.TrimSuffix(key, ":"))
			}
			if !slices.Equal(keys, tt.keys) {
				t.Errorf("the keys are %q, want %q: %v", keys, tt.keys, err)
			}
			if strings.Contains(fmt.Sprint(err), secret) {
				t.Errorf("an error shows a secret: %v", err)
			}
		})
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestLimits(t *testing.T) {
	c := Config{Brokers: []string{"k1:9092"}, Topic: "orders", MaxRequestBytes: 1000}
	if l := c.Limits(""); l.Mode != sink.Prefix || l.Endpoint != "orders" || l.EndpointOf != nil || l.MaxBytes != 1000 {
		t.Errorf("the limits are %+v", l)
	}
	c.Key = KeyNone
	if l := c.Limits(""); l.Mode != sink.PerItem {
		t.Errorf("without keys the mode is %d", l.Mode)
	}
	c.Topic, c.Headers = "{kind}-{attr.tenant}", map[string]sink.Secret{"g": "{group}"}
	want := []sink.Field{{Key: "topic", Attribute: "kind", Required: true}, {Key: "topic", Attribute: "tenant", Required: true}, {Key: "headers.g"}}
	if got := c.Fields(); !slices.Equal(got, want) {
		t.Errorf("the fields are %v, want %v", got, want)
	}
}

// A file that is missing is reported as such, because the same configuration may work later.
func TestNewReportsFiles(t *testing.T) {
	c := Config{Brokers: []string{"k1:9092"}, Topic: "orders"}
	c.CAFile = "nowhere.pem"
	failed := (*sink.FileError)(nil)
	if _, err := New(c); !errors.As(err, &failed) || failed.Key != "ca-file" {
		t.Errorf("got %v, want an error of ca-file", err)
	}
}

// A printed sink shows no secret.
func TestSinkHidesSecrets(t *testing.T) {
	const secret = "canary-secret"
	c := Config{Brokers: []string{"k1:9092"}, Topic: "orders", SASL: SASL{Mechanism: MechanismPlain, User: "u", Password: secret}}
	c.Headers = map[string]sink.Secret{"key": secret}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if printed := fmt.Sprintf(format, s); strings.Contains(printed, secret) {
			t.Errorf("%s shows a secret: %s", format, printed)
		}
	}
}
