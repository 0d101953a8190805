package demobroker

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/kafka"
)

// kafkaPartitions is the number of partitions of a topic: some for each of a few brokers.
const kafkaPartitions = 12

// kafkaTopic is a topic of Kafka.
type kafkaTopic struct {
	client *kgo.Client
	at     *url.URL
	name   string
}

// kafkaConfig returns the configuration of a sink for an address with its parameters.
func kafkaConfig(at *url.URL, topic string) (c kafka.Config, err error) {
	c = kafka.DefaultConfig()
	c.Brokers, c.Topic = strings.Split(at.Host, ","), topic
	c.SASL.User = at.User.Username()
	password, _ := at.User.Password()
	c.SASL.Password = sink.Secret(password)
	parameters := at.Query()
	for name := range parameters {
		switch value := parameters.Get(name); name {
		case "mechanism":
			c.SASL.Mechanism = kafka.Mechanism(strings.ToLower(value))
		case "tls":
			if c.TLS, err = strconv.ParseBool(value); err != nil {
				return c, fmt.Errorf("tls is %q, must be true or false", value)
			}
		case "ca-file":
			c.CAFile = value
		case "cert-file":
			c.CertFile = value
		case "key-file":
			c.KeyFile = value
		default:
			return c, fmt.Errorf("unknown parameter %s; there are mechanism, tls, ca-file, cert-file and key-file", name)
		}
	}
	if c.SASL.User != "" && c.SASL.Mechanism == "" {
		return c, fmt.Errorf("no mechanism for the user; add ?mechanism=%s, %s or %s", kafka.MechanismSCRAM512, kafka.MechanismSCRAM256, kafka.MechanismPlain)
	}
	return c, c.Validate()
}

func checkKafka(at *url.URL) error {
	_, err := kafkaConfig(at, "x")
	return err
}

func cleanKafka(at *url.URL, err error) error {
	c, _ := kafkaConfig(at, "x") // it was valid
	return kafka.Clean(c, err)
}

// kafkaClient returns a client that connects as the sink does.
func kafkaClient(at *url.URL, opts ...kgo.Opt) (*kgo.Client, error) {
	c, err := kafkaConfig(at, "x")
	if err != nil {
		return nil, err
	}
	own, err := kafka.ClientOptions(c)
	if err != nil {
		return nil, err
	}
	return kgo.NewClient(append(own, opts...)...)
}

func createKafka(ctx context.Context, at *url.URL, topic string, _ bool) (Topic, error) {
	client, err := kafkaClient(at, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, err
	}
	const defaultReplicas = -1
	if _, err := kadm.NewClient(client).CreateTopic(ctx, kafkaPartitions, defaultReplicas, nil, topic); err != nil {
		client.Close()
		return nil, err
	}
	return &kafkaTopic{client, at, topic}, nil
}

// listKafka returns the names of the topics with a prefix.
func listKafka(ctx context.Context, at *url.URL, prefix string) (names []string, err error) {
	client, err := kafkaClient(at)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	all, err := kadm.NewClient(client).ListTopics(ctx)
	for _, name := range all.Names() {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	return names, err
}

func removeKafka(ctx context.Context, at *url.URL, topic string) error {
	client, err := kafkaClient(at)
	if err != nil {
		return err
	}
	defer client.Close()
	_, err = kadm.NewClient(client).DeleteTopic(ctx, topic)
	return err
}

// Sink implements Topic.
func (t *kafkaTopic) Sink() (s config.Sink, secrets map[string]string) {
	c, _ := kafkaConfig(t.at, t.name) // it was valid when the topic was created
	secrets = map[string]string{}
	if c.SASL.Password != "" {
		secrets["sasl.password"] = string(c.SASL.Password)
	}
	return config.Sink{Type: config.SinkKafka, Kafka: c, CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile}, secrets
}

// Keys implements Topic.
func (t *kafkaTopic) Keys() []string {
	c, _ := kafkaConfig(t.at, t.name) // as above
	var brokers []string
	for _, broker := range c.Brokers {
		brokers = append(brokers, config.Quote(broker))
	}
	keys := []string{"type: kafka", "brokers: [" + strings.Join(brokers, ", ") + "]", "topic: " + t.name}
	if c.TLS {
		keys = append(keys, "tls: true")
	}
	for _, f := range []struct{ key, file string }{{"ca-file", c.CAFile}, {"cert-file", c.CertFile}, {"key-file", c.KeyFile}} {
		if f.file != "" {
			keys = append(keys, f.key+": "+config.Quote(f.file))
		}
	}
	if s := c.SASL; s.Mechanism != "" {
		keys = append(keys, fmt.Sprintf("sasl: {mechanism: %s, user: %s, password: %s}", s.Mechanism, config.Quote(s.User), config.Quote(string(s.Password))))
	}
	return keys
}

// Read implements Topic.
func (t *kafkaTopic) Read(ctx context.Context, record func(payload []byte)) error {
	for {
		fetched := t.client.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		var errs []error
		fetched.EachError(func(_ string, _ int32, err error) { errs = append(errs, err) })
		if err := errors.Join(errs...); err != nil {
			return err
		}
		fetched.EachRecord(func(r *kgo.Record) { record(r.Value) })
	}
}

// Remove implements Topic.
func (t *kafkaTopic) Remove(ctx context.Context) error {
	_, err := kadm.NewClient(t.client).DeleteTopic(ctx, t.name)
	return err
}

// Close implements Topic.
func (t *kafkaTopic) Close() { t.client.Close() }

// kafkaProducer is a client with the settings of the sink: it waits for all replicas and gathers
// nothing.
type kafkaProducer struct{ client *kgo.Client }

func produceKafka(at *url.URL, topic string) (Producer, error) {
	client, err := kafkaClient(at, kgo.DefaultProduceTopic(topic), kgo.ProducerLinger(0),
		kgo.ProducerBatchCompression(kgo.NoCompression()))
	if err != nil {
		return nil, err
	}
	return &kafkaProducer{client}, nil
}

// Send implements Producer.
func (p *kafkaProducer) Send(ctx context.Context, rows []Row) error {
	records := make([]*kgo.Record, len(rows))
	for i, r := range rows {
		records[i] = &kgo.Record{Key: r.Key, Value: r.Payload}
	}
	return p.client.ProduceSync(ctx, records...).FirstErr()
}

// Close implements Producer.
func (p *kafkaProducer) Close() { p.client.Close() }
