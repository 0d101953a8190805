package nats_test

import (
	"context"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/nats"
	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds a wait for a server.
const patience = time.Minute

// canary is a password that no detail may show.
const canary = "canary-7f3d2a91c4"

// broker is a server with the stream ORDERS.
type broker struct {
	tb testing.TB
	*servers.NATSServer
	login natsgo.Option // of admin; nil for its password
}

// startBroker starts a server with a stream for orders.*, which change may alter.
func startBroker(tb testing.TB, version servers.NATSVersion, change func(*jetstream.StreamConfig)) *broker {
	tb.Helper()
	b := &broker{tb: tb, NATSServer: version.Start(tb, map[string]string{"max_payload": "64KB"})}
	b.createStream(version, change)
	return b
}

// createStream creates the stream.
func (b *broker) createStream(version servers.NATSVersion, change func(*jetstream.StreamConfig)) {
	b.tb.Helper()
	config := jetstream.StreamConfig{
		Name: "ORDERS", Subjects: []string{"orders.>"}, Storage: jetstream.FileStorage,
		Duplicates: 2 * time.Minute, Discard: jetstream.DiscardNew, AllowAtomicPublish: version != servers.NATS29,
	}
	if change != nil {
		change(&config)
	}
	b.update(config)
}

// admin calls a function with a connection of its own.
func (b *broker) admin(call func(ctx context.Context, js jetstream.JetStream) error) {
	b.tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.tb.Context()), patience)
	defer cancel()
	closed := make(chan struct{})
	login := b.login
	if login == nil {
		login = natsgo.UserInfo("admin", "admin")
	}
	nc, err := natsgo.Connect(b.URL, login, natsgo.ClosedHandler(func(*natsgo.Conn) { close(closed) }))
	if err != nil {
		b.tb.Fatal(err)
	}
	defer func() { nc.Close(); <-closed }()
	js, err := jetstream.New(nc)
	if err == nil {
		err = call(ctx, js)
	}
	if err != nil {
		b.tb.Fatal(err)
	}
}

// update creates or changes the stream.
func (b *broker) update(config jetstream.StreamConfig) {
	b.tb.Helper()
	b.admin(func(ctx context.Context, js jetstream.JetStream) error {
		_, err := js.CreateOrUpdateStream(ctx, config)
		return err
	})
}

// change alters the stream.
func (b *broker) change(alter func(*jetstream.StreamConfig)) {
	b.tb.Helper()
	b.admin(func(ctx context.Context, js jetstream.JetStream) error {
		stream, err := js.Stream(ctx, "ORDERS")
		if err != nil {
			return err
		}
		config := stream.CachedInfo().Config
		alter(&config)
		_, err = js.UpdateStream(ctx, config)
		return err
	})
}

func (b *broker) Stop() { b.NATSServer.Stop("immediate") }

func (b *broker) Start() { b.Restart(nil) }

// messages returns the stored messages.
func (b *broker) messages() (all []jetstream.Msg) {
	b.tb.Helper()
	b.admin(func(ctx context.Context, js jetstream.JetStream) (err error) {
		all, err = readAll(ctx, js)
		return err
	})
	return all
}

// readAll returns the messages of the stream.
func readAll(ctx context.Context, js jetstream.JetStream) (all []jetstream.Msg, err error) {
	stream, err := js.Stream(ctx, "ORDERS")
	if err != nil {
		return nil, err
	}
	consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy})
	if err != nil {
		return nil, err
	}
	for left := int(stream.CachedInfo().State.Msgs); left > 0; {
		batch, err := consumer.Fetch(min(left, 500), jetstream.FetchMaxWait(patience))
		if err != nil {
			return nil, err
		}
		for m := range batch.Messages() {
			all = append(all, m)
			left--
		}
		if batch.Error() != nil {
			return nil, batch.Error()
		}
	}
	return all, nil
}

// Stored implements sinktest.Broker.
func (b *broker) Stored() []string { return msgIDs(b.messages()) }

// msgIDs returns the Nats-Msg-Id of messages.
func msgIDs(all []jetstream.Msg) (ids []string) {
	for _, m := range all {
		ids = append(ids, m.Headers().Get(jetstream.MsgIDHeader))
	}
	return ids
}

// config returns the configuration of a sink.
func (b *broker) config() nats.Config {
	c := nats.DefaultConfig()
	c.URL, c.Subject, c.Stream = sink.Secret(b.URL), "orders.{group}", "ORDERS"
	c.RequestTimeout = 20 * time.Second
	return c
}

func newSink(tb testing.TB, c nats.Config) *nats.Sink {
	tb.Helper()
	s, err := nats.New(c)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s
}

// changed returns the function for a fault of the configuration.
func changed(alter func(b *broker, c *nats.Config)) func(testing.TB, sinktest.Broker) sink.Sink {
	return func(tb testing.TB, given sinktest.Broker) sink.Sink {
		b := given.(*broker)
		c := b.config()
		alter(b, &c)
		return newSink(tb, c)
	}
}

// permitted restarts the server with a user of these permissions.
func permitted(permissions string) func(b *broker, c *nats.Config) {
	return func(b *broker, c *nats.Config) {
		b.Restart(map[string]string{"authorization": `{users: [{user: admin, password: admin}, {user: relay, password: ` + canary + `, permissions: ` + permissions + `}]}`})
		c.User, c.Password = "relay", canary
	}
}

// faults are the ways to fail at a server.
func faults() []sinktest.Fault {
	return []sinktest.Fault{
		{Name: "above max_payload", Class: sink.Rejected, Final: true, Message: func(m *sink.Message) { m.Payload = make([]byte, 64<<10) }},
		{Name: "no value in the subject", Class: sink.Rejected, Message: func(m *sink.Message) { m.Group.Name = "" }},
		{Name: "above max_msg_size", Class: sink.Rejected, Final: true, Message: func(m *sink.Message) { m.Payload = make([]byte, 40<<10) }},
		{Name: "stream full", Class: sink.Unavailable, Break: func(_ testing.TB, given sinktest.Broker) (repair func()) {
			b := given.(*broker)
			b.change(func(c *jetstream.StreamConfig) { c.MaxBytes = 1 })
			return func() { b.change(func(c *jetstream.StreamConfig) { c.MaxBytes = -1 }) }
		}},
		{Name: "frozen", Class: sink.Unavailable, Sink: changed(func(b *broker, c *nats.Config) {
			b.Freeze()
			b.tb.Cleanup(b.Thaw)
			c.RequestTimeout = 300 * time.Millisecond
		})},
		{Name: "no stream", Class: sink.Misconfigured, Sink: changed(func(_ *broker, c *nats.Config) { c.Subject = "other.{group}" })},
		{Name: "another stream", Class: sink.Misconfigured, Sink: changed(func(_ *broker, c *nats.Config) { c.Stream = "OTHER" })},
		{Name: "wrong password", Class: sink.Misconfigured, Sink: changed(func(b *broker, c *nats.Config) {
			permitted(`{}`)(b, c)
			c.Password = canary + "x"
		})},
		{Name: "no permission to publish", Class: sink.Misconfigured, Sink: changed(permitted(`{publish: {deny: "orders.>"}}`))},
		{Name: "no permission to subscribe", Class: sink.Misconfigured, Sink: changed(permitted(`{subscribe: {deny: "_INBOX.>"}}`))},
		{Name: "no JetStream", Class: sink.Misconfigured, Sink: changed(func(b *broker, _ *nats.Config) { b.Restart(map[string]string{"jetstream": "-"}) })},
		{Name: "no trust", Class: sink.Misconfigured, Sink: changed(func(b *broker, c *nats.Config) {
			b.TLS(false)
			c.URL = sink.Secret("tls" + b.URL[len("nats"):])
		})},
	}
}

func TestSuite(t *testing.T) {
	for _, c := range []struct {
		name    string
		version servers.NATSVersion
		batch   nats.Batch
	}{
		{"none", servers.NATS, nats.BatchNone},
		{"atomic", servers.NATS, nats.BatchAtomic},
		{"before batches", servers.NATS29, nats.BatchNone},
	} {
		t.Run(c.name, func(t *testing.T) {
			sinktest.RunBroker(t, sinktest.BrokerHarness{
				Kind: "EVENT", Mode: sink.Prefix, Faults: faults(), Secrets: []string{canary},
				New: func(tb testing.TB) (sink.Sink, sinktest.Broker) {
					b := startBroker(tb, c.version, func(s *jetstream.StreamConfig) { s.MaxMsgSize = 32 << 10 })
					config := b.config()
					config.Batch = c.batch
					return newSink(tb, config), b
				},
			})
		})
	}
}
