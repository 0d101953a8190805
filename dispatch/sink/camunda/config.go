package camunda

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/ascii"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/event"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/httpsink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/oauth"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/template"
	"github.com/sluicebox/sluicebox/store"
)

// Payload is what the payload of a row is.
type Payload string

// Values of Payload.
const (
	// PayloadVariables: an object with the variables of the message.
	PayloadVariables Payload = "variables"

	// PayloadMessage: an object with name, correlationKey and variables of the message, as in the
	// REST API.
	PayloadMessage Payload = "message"
)

// Templates by default.
const (
	defaultName           = "{type}"
	defaultCorrelationKey = "{group}"
)

// defaultMaxBytes is the largest message of a gateway with default settings (network.maxMessageSize,
// 4 MB).
const defaultMaxBytes = 4 << 20

// OAuth configures a client that fetches its bearer tokens by the client credentials grant.
type OAuth = oauth.Config

// Config configures one gateway. The zero value of each field except URL and TimeToLive stands for
// its default. The tags are the keys of the program's configuration file.
type Config struct {
	// URL is the gateway. Its scheme chooses the API.
	URL sink.Secret `yaml:"url" doc:"Required. The gateway of Camunda 8: https://host[:port][/path] or http://… for its REST API, without /v2; grpcs://host[:port] or grpc://… for gRPC, with or without TLS." placeholder:"https://xxxxx"`

	// TimeToLive is how long Camunda keeps a message for which no process waits, and its
	// messageId. It has no default, because a message is lost at its end.
	TimeToLive time.Duration `yaml:"time-to-live" doc:"Required. How long Camunda keeps a message that no process waits for yet, for example 1h. After that the message is discarded, and its messageId forgotten."`

	// Payload is PayloadVariables by default.
	Payload Payload `yaml:"payload" doc:"variables: the payload is a JSON object with the variables of the message. message: the payload is a JSON object with name, correlationKey and variables." enum:"variables,message"`

	// Name, CorrelationKey and TenantID are templates. The first two are those of the payload with
	// PayloadMessage.
	Name           string `yaml:"name" template:"true" doc:"The name of the message, which may have fields of the row: {id}, {kind}, {group}, {type}, {attr.NAME}. Empty: {type}. Not with payload: message."`
	CorrelationKey string `yaml:"correlation-key" template:"true" doc:"The correlation key of the message, which may have fields of the row. Empty: {group}. A row without a group has no key, so it can only start a process. Not with payload: message."`
	TenantID       string `yaml:"tenant-id" template:"true" doc:"The tenant of the message, which may have fields of the row. Empty: the default tenant."`

	// Variables are added to those of the payload, as texts. A value is a template; a variable
	// whose field has no value in a row is left out.
	Variables map[string]string `yaml:"variables" template:"true" doc:"Variables of each message beside those of the payload, by name. A value is a text that may have fields of the row; without a value for one of them the variable is left out."`

	// IDPrefix is prepended to the row's id.
	IDPrefix string `yaml:"id-prefix" doc:"Prefix of the row's id in messageId, for two outboxes whose ids may be alike."`

	User     string      `yaml:"user" doc:"The user name, for HTTP Basic authentication."`
	Password sink.Secret `yaml:"password" doc:"The password of user. Prefer a reference: ${file:/run/secrets/camunda} or ${env:NAME}."`

	// Token is a fixed bearer token, OAuth fetches one.
	Token sink.Secret `yaml:"-"`
	OAuth OAuth       `yaml:"-"`

	// MaxRequestBytes is the largest request. 0 stands for 4 MiB, the gateway's own default.
	MaxRequestBytes int `yaml:"-"`

	sink.Connection `yaml:"-"`
}

// DefaultConfig returns the defaults. URL and TimeToLive remain to be set.
func DefaultConfig() Config { return Config{Payload: PayloadVariables} }

func (c Config) withDefaults() Config {
	c.Payload = cmp.Or(c.Payload, PayloadVariables)
	if c.Payload == PayloadVariables {
		c.Name, c.CorrelationKey = cmp.Or(c.Name, defaultName), cmp.Or(c.CorrelationKey, defaultCorrelationKey)
	}
	c.MaxRequestBytes = cmp.Or(c.MaxRequestBytes, defaultMaxBytes)
	return c
}

// Validate reports every invalid value by its configuration key. The errors show no secret.
func (c *Config) Validate() error {
	var bad store.FieldErrors
	c.validateURL(&bad)
	switch {
	case c.TimeToLive == 0:
		bad.Add("time-to-live", "is not set; set it to how long Camunda keeps a message that no process waits for, for example 1h")
	case c.TimeToLive < time.Millisecond:
		bad.Add("time-to-live", "is %s, must be at least 1ms", c.TimeToLive)
	}
	c.validateMessage(&bad)
	c.validateCredentials(&bad)
	if c.MaxRequestBytes < 0 {
		bad.Add("max-request-bytes", "is %d, must be at least 1", c.MaxRequestBytes)
	}
	events := event.Settings{IDPrefix: c.IDPrefix}
	events.CheckIDPrefix(&bad)
	c.Check(&bad)
	return bad.Err()
}

// validateURL checks the address.
func (c *Config) validateURL(bad *store.FieldErrors) {
	to, err := parseURL(string(c.URL))
	if err != nil {
		bad.AddErr(err)
		return
	}
	if to.Scheme == "grpc" && (c.CAFile != "" || c.CertFile != "") {
		bad.Add("url", "has the scheme grpc, which is without TLS; write grpcs for ca-file and cert-file")
	}
}

// parseURL parses the address. An error is a *store.FieldError.
func parseURL(raw string) (*url.URL, error) {
	invalid := func(format string, args ...any) (*url.URL, error) {
		return nil, &store.FieldError{Key: "url", Text: fmt.Sprintf(format, args...)}
	}
	if raw == "" {
		return invalid("is not set; set it to the address of the gateway, for example https://camunda.example:8080 or grpcs://camunda.example:26500")
	}
	if u, err := url.Parse(raw); err == nil && u.User != nil {
		return invalid("contains a user or password; put them in user and password")
	}
	if scheme, rest, _ := strings.Cut(raw, "://"); scheme == "grpc" || scheme == "grpcs" {
		// Another scheme, so that ParseAddress checks the rest.
		to, err := httpsink.ParseAddress("url", "http://"+rest, "user and password")
		if err != nil {
			return nil, err
		}
		if strings.Trim(to.Path, "/") != "" || to.RawQuery != "" || to.Fragment != "" {
			return invalid("has a text behind the port; gRPC has none, remove it")
		}
		to.Scheme = scheme
		return to, nil
	} else if scheme != "http" && scheme != "https" {
		return invalid("has no scheme http, https, grpc or grpcs")
	}
	to, err := httpsink.ParseAddress("url", raw, "user and password")
	switch {
	case err != nil:
		return nil, err
	case to.RawQuery != "" || to.Fragment != "":
		return invalid("must end with the path, without ? or #")
	case strings.HasSuffix(strings.TrimSuffix(to.Path, "/"), apiPath):
		return invalid("ends with %s, which the relay adds; remove it", apiPath)
	}
	return to, nil
}

// validateMessage checks the keys that make the message.
func (c *Config) validateMessage(bad *store.FieldErrors) {
	switch c.Payload {
	case "", PayloadVariables:
	case PayloadMessage:
		for _, f := range []struct{ key, value string }{{"name", c.Name}, {"correlation-key", c.CorrelationKey}} {
			if f.value != "" {
				bad.Add(f.key, "is set, but with payload: %s the payload has it; remove one of them", PayloadMessage)
			}
		}
	default:
		bad.Add("payload", "is %q, must be %s or %s", string(c.Payload), PayloadVariables, PayloadMessage)
	}
	for _, f := range []struct{ key, value string }{{"name", c.Name}, {"correlation-key", c.CorrelationKey}, {"tenant-id", c.TenantID}} {
		if _, err := template.Parse(f.value); err != nil {
			bad.Add(f.key, "%s", err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Variables)) {
		if _, err := template.Parse(c.Variables[name]); err != nil {
			bad.Add("variables."+name, "%s", err)
		}
		if name == "" {
			bad.Add("variables", "has an empty name")
		}
	}
}

// validateCredentials checks that there is one way to log in at most.
func (c *Config) validateCredentials(bad *store.FieldErrors) {
	settings := httpsink.Settings{Token: c.Token}
	bad.AddErr(httpsink.CheckSettings(&settings, "token"))
	bad.AddErr(c.OAuth.Check(c.Token, "token"))
	if c.OAuth.Enabled() && c.OAuth.TokenURL == "" {
		bad.Add("oauth.token-url", "is not set; set it to the address of the token endpoint")
	}
	switch {
	case c.User != "" && (c.Token != "" || c.OAuth.Enabled()):
		bad.Add("user", "is set beside a token; keep one")
	case c.User != "" && c.Password == "":
		bad.Add("password", "is not set; user needs it")
	case c.User == "" && c.Password != "":
		bad.Add("user", "is not set; password needs it")
	case strings.Contains(c.User, ":"):
		bad.Add("user", "has a colon, which HTTP Basic does not allow")
	}
}

// Limits returns the Limits of a sink with this configuration, which must be valid. They are the
// same for every kind.
func (c *Config) Limits(string) sink.Limits {
	return sink.Limits{Mode: sink.Atomic, MaxItems: 1, MaxBytes: math.MaxInt32}
}

// Fields returns the attributes and the group that a valid configuration sends, by key.
func (c *Config) Fields() (all []sink.Field) {
	full := c.withDefaults()
	all = template.FieldsOf("name", full.Name, true)
	for _, f := range template.FieldsOf("correlation-key", full.CorrelationKey, true) {
		f.Required = f.Attribute != "" // a row without a group has no key
		all = append(all, f)
	}
	all = append(all, template.FieldsOf("tenant-id", c.TenantID, true)...)
	for _, name := range slices.Sorted(maps.Keys(c.Variables)) {
		all = append(all, template.FieldsOf("variables."+name, c.Variables[name], false)...)
	}
	return all
}

// http returns the settings of the HTTP client and of the bearer token.
func (c *Config) http() httpsink.Settings {
	return httpsink.WithDefaults(httpsink.Settings{
		Token: c.Token, CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile, ErrorDetail: c.ErrorDetail,
		RequestTimeout: c.RequestTimeout, MaxConnections: c.Senders, UserAgent: c.userAgent(),
	})
}

// userAgent returns the name of the client, which the gateway may log.
func (c *Config) userAgent() string {
	if !ascii.Printable(c.Client) {
		return ""
	}
	return c.Client
}
