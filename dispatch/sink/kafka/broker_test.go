package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// testTimeout bounds a call to the cluster.
const testTimeout = time.Minute

// cluster is a cluster with an administrator.
type cluster struct {
	*servers.KafkaCluster
	admin  *kadm.Client
	client *kgo.Client
	topics atomic.Int64
}

func newCluster(t testing.TB, brokers int, settings map[string]string) *cluster {
	t.Helper()
	c := &cluster{KafkaCluster: servers.Kafka(t, brokers, settings)}
	var err error
	if c.client, err = kgo.NewClient(kgo.SeedBrokers(c.Addresses()...), kgo.MetadataMinAge(10*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.client.Close)
	c.admin = kadm.NewClient(c.client)
	return c
}

func (c *cluster) context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// topicOf is a topic of a test.
type topicOf struct {
	*cluster
	tb         testing.TB
	name       string
	partitions int32
}

// create creates a topic.
func (c *cluster) create(t testing.TB, partitions int32, settings map[string]*string) *topicOf {
	t.Helper()
	to := &topicOf{cluster: c, tb: t, name: fmt.Sprintf("orders-%d", c.topics.Add(1)), partitions: partitions}
	to.make(settings)
	return to
}

// make creates the topic, and returns once all brokers know it. A cluster that lacks a broker for
// a moment, because the machine is busy, is asked again.
func (to *topicOf) make(settings map[string]*string) {
	to.tb.Helper()
	ctx := to.context(to.tb)
	for {
		_, err := to.admin.CreateTopic(ctx, to.partitions, int16(len(to.Brokers)), settings, to.name)
		if err == nil || errors.Is(err, kerr.TopicAlreadyExists) {
			break
		}
		to.again(ctx, err)
	}
	for _, b := range to.Brokers {
		client, err := kgo.NewClient(kgo.SeedBrokers(b.Address), kgo.MetadataMinAge(10*time.Millisecond))
		if err != nil {
			to.tb.Fatal(err)
		}
		defer client.Close()
		for {
			all, err := kadm.NewClient(client).ListTopics(ctx, to.name)
			if err == nil && all[to.name].Err == nil && !hasNoLeader(all[to.name]) && givesProducerIDs(ctx, client) {
				break
			}
			to.again(ctx, err)
		}
	}
}

// givesProducerIDs reports whether a broker that has just started gives producer ids yet.
func givesProducerIDs(ctx context.Context, client *kgo.Client) bool {
	req := kmsg.NewPtrInitProducerIDRequest()
	req.ProducerID, req.ProducerEpoch = -1, -1
	resp, err := req.RequestWith(ctx, client)
	return err == nil && kerr.ErrorForCode(resp.ErrorCode) == nil
}

func hasNoLeader(d kadm.TopicDetail) bool {
	for _, p := range d.Partitions {
		if p.Leader < 0 || p.Err != nil {
			return true
		}
	}
	return len(d.Partitions) == 0
}

// again waits before the next look at the cluster, and fails the test if there is no time left.
func (to *topicOf) again(ctx context.Context, err error) {
	to.tb.Helper()
	select {
	case <-ctx.Done():
		to.tb.Fatalf("topic %s: %v", to.name, err)
	case <-time.After(20 * time.Millisecond):
	}
}

// config returns the configuration of a sink for the topic.
func (to *topicOf) config() Config {
	c := DefaultConfig()
	c.Brokers, c.Topic = to.Addresses(), to.name
	c.Headers = map[string]sink.Secret{"id": "{id}"}
	return c
}

// open opens a sink.
func open(t testing.TB, c Config) *Sink {
	t.Helper()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// records returns the records of the topic, those of each partition in their order.
func (to *topicOf) records() (all []*kgo.Record) {
	to.tb.Helper()
	ctx := to.context(to.tb)
	var ends kadm.ListedOffsets
	for {
		var err error
		if ends, err = to.admin.ListEndOffsets(ctx, to.name); err == nil {
			err = ends.Error()
		}
		if err == nil {
			break
		}
		to.again(ctx, err) // a new leader does not know them at once
	}
	from, left := map[int32]kgo.Offset{}, int64(0)
	for p, end := range ends[to.name] {
		from[p] = kgo.NewOffset().At(0)
		left += end.Offset
	}
	if left == 0 {
		return nil
	}
	consumer, err := kgo.NewClient(kgo.SeedBrokers(to.Addresses()...), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{to.name: from}))
	if err != nil {
		to.tb.Fatal(err)
	}
	defer consumer.Close()
	for left > 0 {
		fetched := consumer.PollFetches(ctx)
		if err := fetched.Err0(); err != nil {
			to.tb.Fatal(err)
		}
		all = append(all, fetched.Records()...)
		left -= int64(fetched.NumRecords())
	}
	return all
}

// Stored implements sinktest.Broker.
func (to *topicOf) Stored() (ids []string) {
	for _, r := range to.records() {
		ids = append(ids, header(r, "id"))
	}
	return ids
}

func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

// Stop implements sinktest.Broker.
func (to *topicOf) Stop() { to.Brokers[0].Stop("immediate") }

// Start implements sinktest.Broker.
func (to *topicOf) Start() { to.Brokers[0].Restart(nil) }
