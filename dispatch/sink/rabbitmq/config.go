package rabbitmq

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/event"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/template"
	"github.com/sluicebox/sluicebox/store"
)

const (
	// maxLanes is how many messages a request has. All of them wait for the slowest.
	maxLanes = 256

	// maxRequestBytes bounds a request.
	maxRequestBytes = 4 << 20

	// maxShort is the maximum length in bytes of a short string of AMQP: a routing key, the name
	// of an exchange or of a header, and a property.
	maxShort = 255

	// defaultTimeout bounds a request unless request-timeout is set.
	defaultTimeout = 30 * time.Second
)

// Config configures an exchange. The tags are the keys of the program's configuration file.
type Config struct {
	// URL is the address of the broker, with the user and the virtual host.
	URL sink.Secret `yaml:"url" doc:"Required. The broker: amqp://user:password@host[:port][/vhost], or amqps:// for TLS. Without a user and with cert-file, the certificate is the login (EXTERNAL). Prefer a reference: ${file:/run/secrets/amqp} or ${env:NAME}." placeholder:"amqps://127.0.0.1:5671"`

	// Exchange is the name of the exchange; empty is the default exchange.
	Exchange string `yaml:"exchange" doc:"The exchange, which must exist. Empty: the default exchange, whose routing keys are the names of queues."`

	// RoutingKey is the template of the routing keys.
	RoutingKey string `yaml:"routing-key" template:"true" doc:"The routing key, which may have fields of the row: {id}, {kind}, {group}, {type}, {attr.NAME}. A value is inserted as it is, and its dots separate words. Required without an exchange."`

	// Mandatory makes a message that no queue gets a failure.
	Mandatory bool `yaml:"mandatory" doc:"A message that no queue gets is a failure and is sent again. false: it is delivered, and lost."`

	// Persistent makes durable queues keep the messages when the broker restarts.
	Persistent bool `yaml:"persistent" doc:"Durable queues keep the messages when the broker restarts."`

	event.Settings  `yaml:",inline"`
	sink.Connection `yaml:"-"`
}

// DefaultConfig returns the defaults. URL remains to be set, and Exchange or RoutingKey.
func DefaultConfig() Config {
	return Config{Mandatory: true, Persistent: true, Settings: event.DefaultSettings()}
}

// Validate reports every invalid value by its configuration key. The errors show no secret.
func (c *Config) Validate() error {
	var bad store.FieldErrors
	c.validateURL(&bad)
	if len(c.Exchange) > maxShort {
		bad.Add("exchange", "has %d bytes, at most %d are possible", len(c.Exchange), maxShort)
	}
	if _, err := template.Parse(c.RoutingKey); err != nil {
		bad.Add("routing-key", "%s", err)
	} else if c.RoutingKey == "" && c.Exchange == "" {
		bad.Add("routing-key", "is not set; set it to the name of a queue, or set exchange")
	}
	c.Connection.Check(&bad)
	c.Settings.Check(&bad)
	if len(c.ContentType) > maxShort {
		bad.Add("content-type", "has %d bytes, at most %d are possible", len(c.ContentType), maxShort)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		switch {
		case name == "CC", name == "BCC":
			bad.Add("headers."+name, "cannot be set: it is an instruction to the broker")
		case len(name)+len(prefix) > maxShort:
			bad.Add("headers."+name, "has a name of %d bytes, at most %d are possible", len(name), maxShort-len(prefix))
		}
	}
	return bad.Err()
}

// validateURL checks the address. The errors never quote it, because it may have a password.
func (c *Config) validateURL(bad *store.FieldErrors) {
	if c.URL == "" {
		bad.Add("url", "is not set; set it to the address of the broker, for example amqp://127.0.0.1:5672")
		return
	}
	u, err := url.Parse(string(c.URL))
	switch {
	case err != nil || u.Hostname() == "":
		bad.Add("url", "is no address such as amqp://user:password@127.0.0.1:5672/vhost; percent-encode special characters of the password")
	case u.Scheme != "amqp" && u.Scheme != "amqps":
		bad.Add("url", "has the scheme %q, must be amqp or amqps", u.Scheme)
	case u.RawQuery != "" || u.Fragment != "":
		bad.Add("url", "has parameters; remove them, and set ca-file, cert-file and key-file for TLS")
	case u.Scheme == "amqp" && c.CAFile+c.CertFile != "":
		bad.Add("url", "has the scheme amqp, which has no TLS; ca-file and cert-file need amqps")
	}
}

// Limits returns the Limits of a sink with this configuration, which must be valid. They are the
// same for every kind.
func (c *Config) Limits(string) sink.Limits {
	return sink.Limits{Mode: sink.PerItem, MaxItems: maxLanes, MaxBytes: maxRequestBytes, Endpoint: c.Exchange}
}

// Fields returns the attributes and the group that a valid configuration sends, by key.
func (c *Config) Fields() []sink.Field {
	return append(template.FieldsOf("routing-key", c.RoutingKey, true), c.Settings.Fields()...)
}

// timeout returns the bound of a request.
func (c *Config) timeout() time.Duration { return cmp.Or(c.RequestTimeout, defaultTimeout) }

// where returns the broker and the virtual host, for details.
func where(u *url.URL) string {
	return fmt.Sprintf("%s/%s", u.Host, strings.TrimPrefix(u.Path, "/"))
}
