package blackbox

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// kafkaCopy is a topic as a destination.
type kafkaCopy struct {
	c        *chaos
	admin    *kadm.Client
	consumer *kgo.Client
	next     map[int32]int64 // record of each partition that the oracle gets next
}

// newKafkaCopy starts a broker with the topic. It gives the records its own times.
func (c *chaos) newKafkaCopy() *destination {
	c.t.Helper()
	cluster := servers.Kafka(c.t, 1, nil)
	client := func(options ...kgo.Opt) *kgo.Client {
		k, err := kgo.NewClient(append(options, kgo.SeedBrokers(cluster.Addresses()...))...)
		if err != nil {
			c.t.Fatal(err)
		}
		c.t.Cleanup(k.Close)
		return k
	}
	k := &kafkaCopy{c: c, admin: kadm.NewClient(client()), next: map[int32]int64{}}
	settings := map[string]*string{
		"message.timestamp.type": kadm.StringPtr("LogAppendTime"), "max.message.bytes": kadm.StringPtr(fmt.Sprint(brokerLimit)),
	}
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	if _, err := k.admin.CreateTopic(ctx, 3, 1, settings, "jobs"); err != nil {
		c.t.Fatal(err)
	}
	k.consumer = client(kgo.ConsumeTopics("jobs"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	return &destination{
		sink:   fmt.Sprintf("type: kafka, brokers: [%s], topic: jobs, headers: {id: '{id}'}", strings.Join(cluster.Addresses(), ", ")),
		server: cluster.Brokers[0],
		refuse: func() func() { k.inSync("2"); return func() { k.inSync("1") } },
		read:   k.read,
	}
}

// inSync sets how many replicas must have a record. The topic has one, so it takes no record with "2".
func (k *kafkaCopy) inSync(n string) {
	k.c.t.Helper()
	within(k.c.t, testTimeout, func() string {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		answers, err := k.admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "min.insync.replicas", Value: &n}}, "jobs")
		if err == nil {
			err = answers[0].Err
		}
		return failure(err)
	})
}

func (k *kafkaCopy) read() {
	k.c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	ends, err := k.admin.ListEndOffsets(ctx, "jobs")
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		k.c.t.Fatal(err)
	}
	behind := func() (is bool) {
		ends.Each(func(o kadm.ListedOffset) { is = is || k.next[o.Partition] < o.Offset })
		return is
	}
	for behind() {
		fetched := k.consumer.PollFetches(ctx)
		if ctx.Err() != nil {
			k.c.t.Fatalf("the topic's records are not read within %s: %v", testTimeout, fetched.Err0())
		}
		for _, r := range fetched.Records() {
			id := ""
			for _, h := range r.Headers {
				if h.Key == "id" {
					id = string(h.Value)
				}
			}
			k.c.acceptAt("kafka/"+id, r.Value, r.Timestamp)
			k.next[r.Partition] = r.Offset + 1
		}
	}
}

// newRabbitCopy starts a broker with a queue, and its consumer: the broker gives messages no time.
func (c *chaos) newRabbitCopy() *destination {
	c.t.Helper()
	r := &rabbitScene{scene: c.scene, server: servers.RabbitMQ(c.t, map[string]string{"max_message_size": fmt.Sprint(brokerLimit)})}
	r.declare()
	ctx, cancel := context.WithCancel(context.Background())
	var consumer sync.WaitGroup
	consumer.Go(func() {
		for ctx.Err() == nil {
			_ = c.consumeRabbit(ctx, r.server.URL) // the broker is down
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	c.t.Cleanup(func() { cancel(); consumer.Wait() })
	return &destination{
		sink:   fmt.Sprintf("type: rabbitmq, url: %q, exchange: events, routing-key: jobs", r.server.URL),
		server: r.server,
		refuse: func() func() { r.server.Block(); return r.server.Unblock },
		read:   func() {}, // the consumer does
	}
}

// consumeRabbit notes the messages of the queue until the connection ends. The broker sends again what it got no
// acknowledgement for: that is no second arrival.
func (c *chaos) consumeRabbit(ctx context.Context, url string) error {
	conn, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if err = ch.Qos(500, 0, false); err != nil {
		return err
	}
	deliveries, err := ch.Consume("events", "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	for m := range deliveries {
		if id := "rabbitmq/" + m.MessageId; !m.Redelivered || !c.has(id) {
			c.accept(id, m.Body, false)
		}
		if err = m.Ack(false); err != nil {
			return err
		}
	}
	return nil
}

// has reports whether an item has arrived.
func (w *truth) has(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.arrived[id]
}
