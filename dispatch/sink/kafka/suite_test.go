package kafka

import (
	"bytes"
	"errors"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

const wrongPassword = "not-the-password"

// The suite of sinks of brokers, on one real broker, with a topic for each test.
func TestSuite(t *testing.T) {
	servers.RequireKafka(t) // a skip within the suite would end the wrong test
	// Started within the suite, which checks that nothing of it is left.
	start := sync.OnceValue(func() *cluster { return newCluster(t, 1, nil) })
	sinktest.RunBroker(t, sinktest.BrokerHarness{
		Kind: "EVENT", Mode: sink.Prefix, Secrets: []string{wrongPassword, servers.KafkaPassword},
		New: func(tb testing.TB) (sink.Sink, sinktest.Broker) {
			to := start().create(tb, 3, nil)
			return open(tb, to.config()), to
		},
		Faults: []sinktest.Fault{
			{Name: "too large", Class: sink.Rejected, Final: true, Message: func(m *sink.Message) { m.Payload = bytes.Repeat([]byte("x"), 2<<20) }},
			{Name: "invalid record", Class: sink.Rejected, Sink: compacted},
			{Name: "no topic", Class: sink.Misconfigured, Break: deleteTopic},
			{Name: "no grant", Class: sink.Misconfigured, Sink: func(tb testing.TB, b sinktest.Broker) sink.Sink {
				return open(tb, b.(*topicOf).saslConfig(MechanismPlain, servers.KafkaPassword))
			}},
			{Name: "wrong password", Class: sink.Misconfigured, Sink: func(tb testing.TB, b sinktest.Broker) sink.Sink {
				return open(tb, b.(*topicOf).saslConfig(MechanismPlain, wrongPassword))
			}},
			{Name: "unknown user", Class: sink.Misconfigured, Sink: func(tb testing.TB, b sinktest.Broker) sink.Sink {
				return open(tb, b.(*topicOf).saslConfig(MechanismSCRAM512, wrongPassword))
			}},
			{Name: "no TLS there", Class: sink.Unavailable, Sink: func(tb testing.TB, b sinktest.Broker) sink.Sink {
				cfg := b.(*topicOf).config()
				cfg.TLS = true
				return open(tb, cfg)
			}},
			{Name: "untrusted", Class: sink.Misconfigured, Sink: func(tb testing.TB, b sinktest.Broker) sink.Sink {
				cfg := b.(*topicOf).config()
				cfg.TLS, cfg.Brokers = true, []string{b.(*topicOf).Brokers[0].TLS}
				return open(tb, cfg)
			}},
		},
	})
}

// saslConfig returns a configuration with credentials of the user relay.
func (to *topicOf) saslConfig(m Mechanism, password string) Config {
	cfg := to.config()
	cfg.Brokers = []string{to.Brokers[0].SASL}
	cfg.SASL = SASL{Mechanism: m, User: "relay", Password: sink.Secret(password)}
	return cfg
}

// compacted returns a sink without keys for a topic that requires them.
func compacted(tb testing.TB, b sinktest.Broker) sink.Sink {
	to := b.(*topicOf).create(tb, 1, map[string]*string{"cleanup.policy": kadm.StringPtr("compact")})
	cfg := to.config()
	cfg.Key = KeyNone
	return open(tb, cfg)
}

func deleteTopic(tb testing.TB, b sinktest.Broker) (repair func()) {
	to := b.(*topicOf)
	if _, err := to.admin.DeleteTopic(to.context(tb), to.name); err != nil {
		tb.Fatal(err)
	}
	for ctx := to.context(tb); ; to.again(ctx, nil) {
		if all, err := to.admin.ListTopics(ctx, to.name); err == nil && errors.Is(all[to.name].Err, kerr.UnknownTopicOrPartition) {
			break
		}
	}
	return func() { to.make(nil) }
}
