package redis

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/event"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/template"
	"github.com/sluicebox/sluicebox/store"
)

// Bounds of a request. A script holds up all other clients of the server while it runs.
const (
	maxItems = 500
	maxBytes = 1 << 20
)

// Fields of an entry that the sink sets.
const (
	fieldID   = "id"
	fieldData = "data"
)

// Config configures the streams of one server. The tags are the keys of the program's configuration
// file.
type Config struct {
	// URL is the address of the server, redis or rediss.
	URL sink.Secret `yaml:"url" doc:"Required. The server: redis://host[:port][/database], or rediss:// for TLS." placeholder:"redis://127.0.0.1:6379"`

	// Stream is the template of the streams.
	Stream string `yaml:"stream" template:"true" doc:"Required. The stream, which may have fields of the row: {id}, {kind}, {group}, {type}, {attr.NAME}; each stream then has a circuit breaker of its own."`

	// MaxLength trims the streams, 0 never.
	MaxLength int `yaml:"max-length" doc:"The length to which a stream is trimmed (MAXLEN ~): Redis removes the oldest entries beyond it, consumed or not. 0: never."`

	User     string      `yaml:"user" doc:"The user name. Empty: the default user."`
	Password sink.Secret `yaml:"password" doc:"The password of user. Prefer a reference: ${file:/run/secrets/redis} or ${env:NAME}."`

	event.Settings  `yaml:",inline"`
	sink.Connection `yaml:"-"`
}

// DefaultConfig returns the defaults. URL and Stream remain to be set.
func DefaultConfig() Config { return Config{Settings: event.DefaultSettings()} }

// Validate reports every invalid value by its configuration key. The errors show no secret.
func (c *Config) Validate() error {
	var bad store.FieldErrors
	if _, err := parseServer(string(c.URL)); err != "" {
		bad.Add("url", "%s", err)
	}
	switch t, err := template.Parse(c.Stream); {
	case c.Stream == "":
		bad.Add("stream", "is not set; set it to the name of the stream, for example orders or orders.{kind}")
	case err != nil:
		bad.Add("stream", "%s", err)
	case t.Fixed():
		if _, reason := streamOf(&t, &sink.Message{}); reason != "" {
			bad.Add("stream", "is invalid: %s", reason)
		}
	}
	if c.MaxLength < 0 {
		bad.Add("max-length", "is %d, must be at least 1, or 0 for no limit", c.MaxLength)
	}
	if c.User != "" && c.Password == "" {
		bad.Add("password", "is not set; user needs it")
	}
	c.Connection.Check(&bad)
	c.Settings.Check(&bad)
	for name := range c.Headers {
		if slices.Contains([]string{fieldID, fieldData}, strings.ToLower(name)) {
			bad.Add("headers."+name, "cannot be set: the relay sets the fields %s and %s", fieldID, fieldData)
		}
	}
	return bad.Err()
}

// server is a parsed address.
type server struct {
	addr     string
	database int
	tls      bool
}

// parseServer parses an address. fault never quotes it, because it may have a password.
func parseServer(raw string) (s server, fault string) {
	if raw == "" {
		return s, "is not set; set it to the address of the server, for example redis://127.0.0.1:6379"
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Hostname() == "":
		return s, "is no address such as redis://127.0.0.1:6379"
	case u.Scheme != "redis" && u.Scheme != "rediss":
		return s, "has the scheme " + strconv.Quote(u.Scheme) + ", must be redis or rediss"
	case u.User != nil:
		return s, "has a user or a password; put them in user and password"
	case u.RawQuery != "" || u.Fragment != "":
		return s, "must end with the database, without ? or #"
	}
	if database := strings.Trim(u.Path, "/"); database != "" {
		if s.database, err = strconv.Atoi(database); err != nil || s.database < 0 {
			return s, "has a database that is no number such as 0"
		}
	}
	s.addr, s.tls = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "6379")), u.Scheme == "rediss"
	return s, ""
}

// Limits returns the Limits of a sink with this configuration, which must be valid. They are the
// same for every kind.
func (c *Config) Limits(string) sink.Limits {
	limits := sink.Limits{Mode: sink.Prefix, MaxItems: maxItems, MaxBytes: maxBytes}
	stream := template.MustParse(c.Stream)
	if stream.Fixed() {
		limits.Endpoint, _ = streamOf(&stream, &sink.Message{})
		return limits
	}
	limits.OwnEndpoints = true
	limits.EndpointOf = func(m *sink.Message) string {
		name, _ := streamOf(&stream, m)
		return name
	}
	return limits
}

// maxName is the maximum length in bytes of the name of a stream. Redis has no limit of its own, but
// operators see the name.
const maxName = 512

// streamOf returns the stream of a message. reason is set if it can have none.
func streamOf(t *template.Template, m *sink.Message) (name, reason string) {
	name, missing := t.Text(m, event.AsIs)
	switch {
	case missing != "":
		return "", "row has no " + missing + ", which stream needs"
	case name == "":
		return "", "name of the stream is empty"
	case len(name) > maxName:
		return "", fmt.Sprintf("name of the stream has %d bytes, which exceeds %d", len(name), maxName)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return "", "name of the stream has a control character or is not UTF-8"
	}
	return name, ""
}

// Fields returns the attributes and the group that a valid configuration sends, by key.
func (c *Config) Fields() []sink.Field {
	return append(template.FieldsOf("stream", c.Stream, true), c.Settings.Fields()...)
}

// timeout returns the bound of a request.
func (c *Config) timeout() time.Duration { return cmp.Or(c.RequestTimeout, 30*time.Second) }
