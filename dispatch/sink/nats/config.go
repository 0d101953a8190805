package nats

import (
	"cmp"
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

// Batch is how the rows of a lane are sent.
type Batch string

// Values of Batch.
const (
	// BatchNone sends one message of a lane, and the next once that is acknowledged.
	BatchNone Batch = "none"

	// BatchAtomic sends the waiting messages of a lane as one atomic batch.
	BatchAtomic Batch = "atomic"
)

const (
	// maxItems is how many messages a request has in BatchNone, and maxRun how many of a lane that
	// shares it. All of them wait for the slowest.
	maxItems, maxRun = 500, 8

	// maxBatch is the largest atomic batch of a server with default limits (ADR-50).
	maxBatch = 1000

	// maxRequestBytes bounds a request. A server keeps a batch in memory until its end.
	maxRequestBytes = 4 << 20

	// defaultTimeout bounds a request unless request-timeout is set.
	defaultTimeout = 30 * time.Second
)

// Config configures the streams of one NATS system. The tags are the keys of the program's
// configuration file.
type Config struct {
	// URL is the addresses of one or several servers, separated by commas.
	URL sink.Secret `yaml:"url" doc:"Required. The servers: nats://host[:port], or tls://host[:port] for TLS; several with commas between them." placeholder:"nats://127.0.0.1:4222"`

	// Subject is the template of the subjects. A value of the row stays within its token.
	Subject string `yaml:"subject" template:"true" doc:"Required. The subject of the messages, which may have fields of the row: {id}, {kind}, {group}, {type}, {attr.NAME}. A value stays within its token: dots, blanks, * and > in it are percent-encoded, for example order.paid as order%2Epaid."`

	// Stream is the stream that must store the messages, a template. Empty accepts any.
	Stream string `yaml:"stream" template:"true" doc:"The stream that must store the messages (Nats-Expected-Stream), which may have fields of the row; each stream then has a circuit breaker of its own. Empty: any stream that has the subject."`

	// Batch is BatchNone, the default, or BatchAtomic.
	Batch Batch `yaml:"batch" doc:"none: one message of a message group at a time. atomic: the waiting messages of a group as one atomic batch, which needs NATS 2.12.1 and allow_atomic in the stream." enum:"none,atomic"`

	CredsFile string      `yaml:"creds-file" doc:"File of credentials with a JWT and an NKey seed (.creds)."`
	NKeyFile  string      `yaml:"nkey-file" doc:"File of an NKey seed."`
	User      string      `yaml:"user" doc:"The user name."`
	Password  sink.Secret `yaml:"password" doc:"The password of user. Prefer a reference: ${file:/run/secrets/nats} or ${env:NAME}."`
	Token     sink.Secret `yaml:"token" doc:"The token, if the servers have one for all clients. Prefer a reference: ${file:/run/secrets/nats} or ${env:NAME}."`

	event.Settings  `yaml:",inline"`
	sink.Connection `yaml:"-"`
}

// DefaultConfig returns the defaults. URL and Subject remain to be set.
func DefaultConfig() Config { return Config{Batch: BatchNone, Settings: event.DefaultSettings()} }

// Validate reports every invalid value by its configuration key. The errors show no secret.
func (c *Config) Validate() error {
	var bad store.FieldErrors
	c.validateServers(&bad)
	if err := checkSubject(c.Subject); err != "" {
		bad.Add("subject", "%s", err)
	}
	if err := checkStream(c.Stream); err != "" {
		bad.Add("stream", "%s", err)
	}
	if c.Batch != "" && c.Batch != BatchNone && c.Batch != BatchAtomic {
		bad.Add("batch", "is %q, must be %s or %s", string(c.Batch), BatchNone, BatchAtomic)
	}
	c.validateCredentials(&bad)
	c.Connection.Check(&bad)
	c.Settings.Check(&bad)
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		if strings.HasPrefix(strings.ToLower(name), "nats-") {
			bad.Add("headers."+name, "cannot be set: names starting with Nats- are instructions to the server")
		}
	}
	return bad.Err()
}

// validateServers checks the addresses. The errors never quote them, because they may have a
// password.
func (c *Config) validateServers(bad *store.FieldErrors) {
	if c.URL == "" {
		bad.Add("url", "is not set; set it to the address of a server, for example nats://127.0.0.1:4222")
		return
	}
	for i, server := range c.servers() {
		u, err := url.Parse(server)
		switch {
		case err != nil || u.Hostname() == "":
			bad.Add("url", "has server %d that is no address such as nats://127.0.0.1:4222", i+1)
		case u.Scheme != "nats" && u.Scheme != "tls":
			bad.Add("url", "has server %d with the scheme %q, must be nats or tls", i+1, u.Scheme)
		case u.User != nil:
			bad.Add("url", "has server %d with a user; put it in user and password, or in token", i+1)
		case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
			bad.Add("url", "has server %d with a text behind the port; remove it", i+1)
		}
	}
}

// servers returns the addresses.
func (c *Config) servers() []string {
	servers := strings.Split(string(c.URL), ",")
	for i := range servers {
		servers[i] = strings.TrimSpace(servers[i])
	}
	return servers
}

// validateCredentials checks that there is one way to log in at most.
func (c *Config) validateCredentials(bad *store.FieldErrors) {
	first := ""
	for _, way := range []struct{ key, value string }{
		{"creds-file", c.CredsFile}, {"nkey-file", c.NKeyFile}, {"user", c.User}, {"token", string(c.Token)},
	} {
		switch {
		case way.value == "":
		case first != "":
			bad.Add(way.key, "is set beside %s; a connection has one of them", first)
		default:
			first = way.key
		}
	}
	if c.Password != "" && c.User == "" {
		bad.Add("user", "is not set; password needs it")
	}
}

// Limits returns the Limits of a sink with this configuration, which must be valid. They are the
// same for every kind.
func (c *Config) Limits(string) sink.Limits {
	limits := sink.Limits{Mode: sink.Prefix, MaxItems: maxItems, MaxRun: maxRun, MaxBytes: maxRequestBytes}
	if c.Batch == BatchAtomic {
		limits.MaxItems, limits.MaxRun = maxBatch, 0
	}
	stream := template.MustParse(c.Stream)
	if stream.Fixed() {
		limits.Endpoint = c.Stream
		return limits
	}
	limits.OwnEndpoints = true
	limits.EndpointOf = func(m *sink.Message) string {
		name, _ := streamOf(&stream, m)
		return name
	}
	return limits
}

// Fields returns the attributes and the group that a valid configuration sends, by key.
func (c *Config) Fields() (all []sink.Field) {
	all = append(all, template.FieldsOf("subject", c.Subject, true)...)
	all = append(all, template.FieldsOf("stream", c.Stream, true)...)
	return append(all, c.Settings.Fields()...)
}

// timeout returns the bound of a request.
func (c *Config) timeout() time.Duration { return cmp.Or(c.RequestTimeout, defaultTimeout) }
