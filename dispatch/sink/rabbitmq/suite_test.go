package rabbitmq_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/rabbitmq"
	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	// patience bounds a wait for a server.
	patience = 30 * time.Second

	// canary is a password that no detail may show.
	canary = "canary-7f3d2a91c4"

	// maxSize is the server's max_message_size.
	maxSize = 256 << 10
)

// broker is a server with the topic exchange events, whose messages all go to the queue events.
type broker struct {
	tb testing.TB
	*servers.RabbitMQServer
}

// startBroker starts a server, which its tests share because a start takes seconds.
func startBroker(tb testing.TB) *broker {
	tb.Helper()
	b := &broker{tb, servers.RabbitMQ(tb, map[string]string{"max_message_size": fmt.Sprint(maxSize)})}
	// relay may do everything, reader nothing but read, and some publish to a single key.
	b.Control(`
		[begin
			rabbit_auth_backend_internal:add_user(User, <<"` + canary + `">>, <<"test">>),
			rabbit_auth_backend_internal:set_permissions(User, <<"/">>, <<"">>, Write, <<".*">>, <<"test">>)
		end || {User, Write} <- [{<<"relay">>, <<".*">>}, {<<"reader">>, <<"">>}, {<<"some">>, <<".*">>}]],
		rabbit_auth_backend_internal:set_topic_permissions(<<"some">>, <<"/">>, <<"events">>, <<"^[^1]*$">>, <<".*">>, <<"test">>).`)
	return b
}

// fresh returns the server for another test, with an empty queue of these arguments.
func (b *broker) fresh(tb testing.TB, arguments amqp.Table) *broker {
	tb.Helper()
	b = &broker{tb, b.RabbitMQServer}
	b.declare(arguments)
	return b
}

// admin calls a function with a channel of its own.
func (b *broker) admin(call func(ch *amqp.Channel) error) {
	b.tb.Helper()
	conn, err := amqp.Dial(b.URL)
	if err != nil {
		b.tb.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err == nil {
		err = call(ch)
	}
	if err != nil {
		b.tb.Fatal(err)
	}
}

// declare creates the exchange, and the queue anew.
func (b *broker) declare(arguments amqp.Table) {
	b.tb.Helper()
	b.admin(func(ch *amqp.Channel) error {
		if err := ch.ExchangeDeclare("events", "topic", true, false, false, false, nil); err != nil {
			return err
		}
		if _, err := ch.QueueDelete("events", false, false, false); err != nil {
			return err
		}
		if _, err := ch.QueueDeclare("events", true, false, false, false, arguments); err != nil {
			return err
		}
		return ch.QueueBind("events", "orders.#", "events", false, nil)
	})
}

func (b *broker) Stop() { b.RabbitMQServer.Stop("immediate") }

func (b *broker) Start() { b.Restart(nil) }

// messages returns the stored messages, and leaves them in the queue.
func (b *broker) messages() (all []amqp.Delivery) {
	b.tb.Helper()
	b.admin(func(ch *amqp.Channel) error {
		queue, err := ch.QueueDeclarePassive("events", true, false, false, false, nil)
		if err != nil || queue.Messages == 0 {
			return err
		}
		deliveries, err := ch.Consume("events", "reader", false, false, false, false, nil)
		if err != nil {
			return err
		}
		for m := range deliveries {
			if all = append(all, m); len(all) == queue.Messages {
				break
			}
		}
		if err := ch.Cancel("reader", false); err != nil {
			return err
		}
		return ch.Nack(0, true, true)
	})
	return all
}

// Stored implements sinktest.Broker.
func (b *broker) Stored() (ids []string) {
	b.tb.Helper()
	for _, m := range b.messages() {
		ids = append(ids, m.MessageId)
	}
	return ids
}

// config returns the configuration of a sink whose user is relay.
func (b *broker) config() rabbitmq.Config {
	c := rabbitmq.DefaultConfig()
	c.URL, c.Exchange, c.RoutingKey = b.as("relay", canary), "events", "orders.{group}"
	c.Headers = map[string]sink.Secret{"tenant": "{attr.tenant}"}
	c.RequestTimeout = patience
	return c
}

// as returns the address for a user.
func (b *broker) as(user, password string) sink.Secret {
	return sink.Secret(strings.Replace(b.URL, "guest:guest", user+":"+password, 1))
}

func newSink(tb testing.TB, c rabbitmq.Config) *rabbitmq.Sink {
	tb.Helper()
	s, err := rabbitmq.New(c)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s
}

// changed returns the function for a fault of the configuration.
func changed(alter func(b *broker, c *rabbitmq.Config)) func(testing.TB, sinktest.Broker) sink.Sink {
	return func(tb testing.TB, given sinktest.Broker) sink.Sink {
		b := given.(*broker)
		c := b.config()
		alter(b, &c)
		return newSink(tb, c)
	}
}

// faults are the ways to fail at a server.
func faults() []sinktest.Fault {
	return []sinktest.Fault{
		{Name: "above max_message_size", Class: sink.Rejected, Final: true, Message: func(m *sink.Message) { m.Payload = make([]byte, maxSize+1) }},
		{Name: "long routing key", Class: sink.Rejected, Message: func(m *sink.Message) { m.Group.Name = strings.Repeat("x", 256) }},
		{Name: "headers above frame_max", Class: sink.Rejected, Message: func(m *sink.Message) {
			m.Attributes = append(m.Attributes, attribute("tenant", strings.Repeat("x", 128<<10))...)
		}},
		{Name: "queue full", Class: sink.Unavailable, Break: func(_ testing.TB, given sinktest.Broker) (repair func()) {
			b := given.(*broker)
			b.declare(amqp.Table{"x-max-length": 0, "x-overflow": "reject-publish"})
			return func() { b.declare(nil) }
		}},
		{Name: "no queue", Class: sink.Misconfigured, Break: func(_ testing.TB, given sinktest.Broker) (repair func()) {
			b := given.(*broker)
			b.admin(func(ch *amqp.Channel) error { return ch.QueueUnbind("events", "orders.#", "events", nil) })
			return func() { b.declare(nil) }
		}},
		{Name: "frozen", Class: sink.Unavailable, Sink: changed(func(b *broker, c *rabbitmq.Config) {
			b.Freeze()
			b.tb.Cleanup(b.Thaw)
			c.RequestTimeout = 300 * time.Millisecond
		})},
		{Name: "blocked", Class: sink.Unavailable, Sink: changed(func(b *broker, c *rabbitmq.Config) {
			b.Block()
			b.tb.Cleanup(b.Unblock)
			c.RequestTimeout = time.Second
		})},
		{Name: "no exchange", Class: sink.Misconfigured, Sink: changed(func(_ *broker, c *rabbitmq.Config) { c.Exchange = "other" })},
		{Name: "wrong password", Class: sink.Misconfigured, Sink: changed(func(b *broker, c *rabbitmq.Config) { c.URL = b.as("relay", canary+"x") })},
		{Name: "no virtual host", Class: sink.Misconfigured, Sink: changed(func(_ *broker, c *rabbitmq.Config) { c.URL += "/other" })},
		{Name: "no permission to write", Class: sink.Misconfigured, Sink: changed(func(b *broker, c *rabbitmq.Config) { c.URL = b.as("reader", canary) })},
	}
}

func TestBroker(t *testing.T) {
	var shared *broker // starts within the suite, which wants everything of it to end
	sinktest.RunBroker(t, sinktest.BrokerHarness{
		Kind: "EVENT", Mode: sink.PerItem, Faults: faults(), Secrets: []string{canary},
		New: func(tb testing.TB) (sink.Sink, sinktest.Broker) {
			if shared == nil {
				shared = startBroker(t)
			}
			b := shared.fresh(tb, nil)
			return newSink(tb, b.config()), b
		},
	})
	for name, test := range map[string]func(*testing.T, *broker){
		"Message": testMessage, "Denied key": testDeniedKey, "Too large": testTooLarge, "Raised limit": testRaisedLimit, "Full": testFull,
		"Blocked": testBlocked, "Frozen": testFrozen, "Late answers": testLateAnswers, "Not mandatory": testNotMandatory, "Probe": testProbe,
	} {
		t.Run(name, func(t *testing.T) { test(t, shared.fresh(t, nil)) })
	}
}
