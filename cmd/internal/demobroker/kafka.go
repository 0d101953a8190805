package demobroker

import (
	"context"
	"errors"
	"net/url"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
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

func kafkaBrokers(at *url.URL) []string { return strings.Split(at.Host, ",") }

func createKafka(ctx context.Context, at *url.URL, topic string) (Topic, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(kafkaBrokers(at)...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
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

// Sink implements Topic.
func (t *kafkaTopic) Sink() (s config.Sink, secrets map[string]string) {
	c := kafka.DefaultConfig()
	c.Brokers, c.Topic = kafkaBrokers(t.at), t.name
	return config.Sink{Type: config.SinkKafka, Kafka: c}, nil
}

// Keys implements Topic.
func (t *kafkaTopic) Keys() []string {
	var brokers []string
	for _, broker := range kafkaBrokers(t.at) {
		brokers = append(brokers, config.Quote(broker))
	}
	return []string{"type: kafka", "brokers: [" + strings.Join(brokers, ", ") + "]", "topic: " + t.name}
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
	client, err := kgo.NewClient(kgo.SeedBrokers(kafkaBrokers(at)...), kgo.DefaultProduceTopic(topic), kgo.ProducerLinger(0),
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
