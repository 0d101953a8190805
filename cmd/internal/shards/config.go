package shards

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/kafka"
	"github.com/sluicebox/sluicebox/store"
)

// Roles of a process.
const (
	RoleCapture  = "capture"
	RoleDispatch = "dispatch"
)

const (
	// MaxPartitions is the most shards: each costs sessions of the database.
	MaxPartitions = 1000
	// minSessionTimeout is a few heartbeats of a member.
	minSessionTimeout = time.Second
)

// Config is the section scale. The tags are the keys of the configuration file.
type Config struct {
	Engine     string   `yaml:"engine" doc:"Required. What stands between capture and dispatch." enum:"kafka"`
	Brokers    []string `yaml:"brokers" single:"true" doc:"Required. Addresses of the cluster, host:port. The relay learns the other brokers from these."`
	Topic      string   `yaml:"topic" doc:"Required. The topic between capture and dispatch. Only this relay may write it. Its name is also that of the consumer group. sluicebox init creates it."`
	Partitions int      `yaml:"partitions" doc:"Required. The partitions of the topic, which is the number of shards, 1 to 1000. The topic may have more. For another number see scale.md."`
	Roles      []string `yaml:"roles" single:"true" doc:"What this process does. capture: one of the processes with this role reads the database's log and writes the topic, and the others stand by. dispatch: it sends the rows of its share of the partitions. Empty: both."`

	SessionTimeout time.Duration `yaml:"session-timeout" doc:"How long a process may be silent before the others take over its partitions. The brokers limit it: group.min.session.timeout.ms is 6s by default."`

	TLS      bool        `yaml:"tls" doc:"Whether to connect with TLS. ca-file and cert-file imply it."`
	CAFile   string      `yaml:"ca-file" doc:"PEM file of the CA certificates to trust for the cluster, instead of the system's."`
	CertFile string      `yaml:"cert-file" doc:"PEM file of the client certificate to show to the cluster, followed by its issuers."`
	KeyFile  string      `yaml:"key-file" doc:"PEM file of the key of the client certificate."`
	SASL     kafka.SASL  `yaml:"sasl" doc:"The credentials."`
	Token    sink.Secret `yaml:"token" doc:"Bearer token for sasl.mechanism: oauthbearer. Prefer a reference: ${file:/run/secrets/token} or ${env:NAME}."`
}

// DefaultConfig returns a section with default values.
func DefaultConfig() Config {
	return Config{SessionTimeout: 6 * time.Second}
}

// Has reports whether the process has a role. Without any it has both.
func (c *Config) Has(role string) bool { return len(c.Roles) == 0 || slices.Contains(c.Roles, role) }

// Files returns the certificates and the key.
func (c *Config) Files() []string { return []string{c.CAFile, c.CertFile, c.KeyFile} }

// Validate reports every invalid value by its key.
func (c *Config) Validate() error {
	var bad store.FieldErrors
	if c.Engine != "kafka" {
		bad.Add("engine", "is %q, must be kafka", c.Engine)
	}
	if c.Partitions < 1 || c.Partitions > MaxPartitions {
		bad.Add("partitions", "is %d, must be 1 to %d, and the number of the topic's partitions", c.Partitions, MaxPartitions)
	}
	for i, role := range c.Roles {
		switch {
		case role != RoleCapture && role != RoleDispatch:
			bad.Add(fmt.Sprintf("roles[%d]", i), "is %q, must be capture or dispatch", role)
		case slices.Contains(c.Roles[:i], role):
			bad.Add(fmt.Sprintf("roles[%d]", i), "is %q for the second time; remove it", role)
		}
	}
	if c.SessionTimeout < minSessionTimeout {
		bad.Add("session-timeout", "is %s, must be at least %s", c.SessionTimeout, minSessionTimeout)
	}
	if strings.ContainsAny(c.Topic, "{}") {
		bad.Add("topic", "is %q, which has a brace; the rows of all outboxes share one topic", c.Topic)
		return bad.Err()
	}
	of := c.cluster("")
	bad.AddErr(of.Validate())
	return bad.Err()
}

// cluster returns the cluster as that of a sink.
func (c *Config) cluster(client string) kafka.Config {
	of := kafka.DefaultConfig()
	of.Brokers, of.Topic, of.TLS, of.SASL, of.Token = c.Brokers, c.Topic, c.TLS, c.SASL, c.Token
	of.Connect(sink.Connection{CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile, Client: cmp.Or(client, "sluicebox")})
	return of
}

// options returns the options of a client of the cluster.
func (c *Config) options(client string) ([]kgo.Opt, error) {
	options, err := kafka.ClientOptions(c.cluster(client))
	if err != nil {
		return nil, &store.SetupError{Problem: "scale: " + err.Error(), Remedy: "correct the section scale"}
	}
	return options, nil
}
