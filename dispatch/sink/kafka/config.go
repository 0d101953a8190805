package kafka

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/event"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/oauth"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/template"
	"github.com/sluicebox/sluicebox/store"
)

// Key is what the key of a record is, which decides its partition.
type Key string

// Keys of a record.
const (
	KeyGroup Key = "group" // the message group
	KeyID    Key = "id"    // the row's id
	KeyNone  Key = "none"
)

// Compression is the codec of the batches.
type Compression string

// Codecs.
const (
	CompressionNone   Compression = "none"
	CompressionGzip   Compression = "gzip"
	CompressionSnappy Compression = "snappy"
	CompressionLZ4    Compression = "lz4"
	CompressionZstd   Compression = "zstd"
)

func (c Compression) codec() kgo.CompressionCodec {
	switch c {
	case CompressionGzip:
		return kgo.GzipCompression()
	case CompressionSnappy:
		return kgo.SnappyCompression()
	case CompressionLZ4:
		return kgo.Lz4Compression()
	case CompressionZstd:
		return kgo.ZstdCompression()
	}
	return kgo.NoCompression()
}

// A request has at most so many rows, and so many bytes of payload if it has several.
const (
	maxItems = 10_000
	maxBytes = 1 << 20
)

// OAuth configures a client that fetches its bearer tokens by the client credentials grant.
type OAuth = oauth.Config

// Config configures the topics of one cluster. The zero value of each field except Brokers and
// Topic stands for its default. The tags are the keys of the program's configuration file.
type Config struct {
	// Brokers are the addresses, host:port, to find the cluster by.
	Brokers []string `yaml:"brokers" single:"true" doc:"Required. Addresses of the cluster, host:port. The relay learns the other brokers from these."`

	// Topic is a template. Topics are never created.
	Topic string `yaml:"topic" template:"true" doc:"Required. The topic, which may have fields of the row: {id}, {kind}, {group}, {type}, {attr.NAME}. It must exist."`

	// Key is KeyGroup by default, which keeps the order of groups in the topic.
	Key Key `yaml:"key" doc:"The key of the records. group: the message group, so that its rows share a partition, in order. id: the row's id. none: no key; rows go to any partition." enum:"group,id,none"`

	// Compression is CompressionNone by default.
	Compression Compression `yaml:"compression" doc:"The compression of the record batches." enum:"none,gzip,snappy,lz4,zstd"`

	// MaxRequestBytes is the most bytes of a batch, and so of a record. 0 reads it from the topic.
	MaxRequestBytes int `yaml:"-"`

	// TLS uses TLS. A CAFile or a CertFile does so too.
	TLS bool `yaml:"tls" doc:"Whether to connect with TLS. ca-file and cert-file imply it."`

	SASL SASL `yaml:"sasl" doc:"The credentials."`

	// Token and OAuth are for the mechanism oauthbearer.
	Token sink.Secret `yaml:"-"`
	OAuth OAuth       `yaml:"-"`

	// Format is event.FormatRaw by default. It stands for that of Settings.
	Format event.Format `yaml:"format" doc:"raw: the value is the payload. cloudevents: the same, and headers describe it as a CloudEvent. cloudevents-structured: the value is a CloudEvent in JSON with the payload as its data. debezium: the record of Debezium's outbox event router." enum:"raw,cloudevents,cloudevents-structured,debezium"`

	Debezium Debezium `yaml:"debezium" doc:"What format: debezium takes over from the configuration of the connector."`

	event.Settings  `yaml:",inline"`
	sink.Connection `yaml:"-"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return Config{}.withDefaults() }

func (c Config) withDefaults() Config {
	c.Key = cmp.Or(c.Key, KeyGroup)
	c.Compression = cmp.Or(c.Compression, CompressionNone)
	c.Format = cmp.Or(c.Format, event.FormatRaw)
	c.Debezium = c.Debezium.withDefaults()
	c.ContentType = cmp.Or(c.ContentType, event.DefaultSettings().ContentType)
	c.RequestTimeout = cmp.Or(c.RequestTimeout, 30*time.Second)
	c.Client = cmp.Or(c.Client, "sluicebox")
	return c
}

// Validate reports every invalid value by its configuration key. The errors show no secret.
func (c *Config) Validate() error {
	var bad store.FieldErrors
	if len(c.Brokers) == 0 {
		bad.Add("brokers", "is not set; write the addresses of the cluster, for example [kafka-1:9092, kafka-2:9092]")
	}
	for i, broker := range c.Brokers {
		if host, port, err := net.SplitHostPort(broker); err != nil || host == "" || !isPort(port) {
			must := "must be host:port such as kafka-1:9092"
			if strings.Contains(broker, ",") {
				must += "; write several as a list: [kafka-1:9092, kafka-2:9092]"
			}
			bad.Add(fmt.Sprintf("brokers[%d]", i), "is %q, %s", broker, must)
		}
	}
	c.checkTopic(&bad)
	if keys := []Key{KeyGroup, KeyID, KeyNone}; c.Key != "" && !slices.Contains(keys, c.Key) {
		bad.Add("key", "is %q, must be one of %q", string(c.Key), keys)
	}
	codecs := []Compression{CompressionNone, CompressionGzip, CompressionSnappy, CompressionLZ4, CompressionZstd}
	if c.Compression != "" && !slices.Contains(codecs, c.Compression) {
		bad.Add("compression", "is %q, must be one of %q", string(c.Compression), codecs)
	}
	if c.MaxRequestBytes < 0 {
		bad.Add("max-request-bytes", "is %d, must be at least 1", c.MaxRequestBytes)
	}
	c.checkSASL(&bad)
	c.checkFormat(&bad)
	c.Connection.Check(&bad)
	return bad.Err()
}

func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}

// checkTopic checks the topic. The values of fields are checked in each row.
func (c *Config) checkTopic(bad *store.FieldErrors) {
	if c.Topic == "" {
		bad.Add("topic", "is not set; write the name of the topic, for example orders or orders.{kind}")
		return
	}
	t, err := template.Parse(c.Topic)
	if err != nil {
		bad.Add("topic", "%s", err)
		return
	}
	for _, text := range t.Literals() {
		if wrong := checkTopicName(text); wrong != "" && (t.Fixed() || text != "" && text != "." && text != "..") {
			bad.Add("topic", "is %q, which %s", c.Topic, wrong)
			return
		}
	}
}

// Limits returns the bounds of a request with rows of a kind.
//
// All rows of a lane share a partition if the key is the group; see the package comment.
// Otherwise they may go to several, and a row behind a failed one may be stored.
func (c *Config) Limits(string) sink.Limits {
	l := sink.Limits{Mode: sink.Prefix, Endpoint: c.Topic, MaxItems: maxItems, MaxBytes: maxBytes}
	if c.MaxRequestBytes > 0 {
		l.MaxBytes = min(maxBytes, c.MaxRequestBytes)
	}
	if cmp.Or(c.Key, KeyGroup) != KeyGroup {
		l.Mode = sink.PerItem
	}
	if t := template.MustParse(c.Topic); !t.Fixed() {
		l.OwnEndpoints = true
		l.EndpointOf = func(m *sink.Message) string {
			name, _ := topicName(&t, m)
			return name
		}
	}
	return l
}

// Fields returns the attributes and the group that a valid configuration sends, by key. A row
// without a group has no key, so the key is not among them.
func (c *Config) Fields() []sink.Field {
	all := append(template.FieldsOf("topic", c.Topic, true), c.Settings.Fields()...)
	if d := c.Debezium.withDefaults(); c.Format == FormatDebezium {
		all = append(all, d.fields()...)
	}
	return all
}
