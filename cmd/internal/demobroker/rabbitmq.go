package demobroker

import (
	"context"
	"errors"
	"net/url"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/rabbitmq"
)

var errRefused = errors.New("the broker refused a message")

// rabbitExchange is a topic exchange of RabbitMQ with one queue for all its messages.
type rabbitExchange struct {
	conn    *amqp.Connection
	channel *amqp.Channel
	at      *url.URL
	name    string // of both
}

// dialRabbit returns a connection with a channel.
func dialRabbit(at *url.URL) (*amqp.Connection, *amqp.Channel, error) {
	conn, err := amqp.Dial(at.String())
	if err != nil {
		return nil, nil, err
	}
	channel, err := conn.Channel()
	if err != nil {
		_ = conn.Close() // err matters more
		return nil, nil, err
	}
	return conn, channel, nil
}

// createRabbit creates an exchange and its queue. They end with the connection, unless they are to be
// kept: a program that is killed leaves nothing.
func createRabbit(_ context.Context, at *url.URL, topic string, keep bool) (Topic, error) {
	conn, channel, err := dialRabbit(at)
	if err != nil {
		return nil, err
	}
	x := &rabbitExchange{conn, channel, at, topic}
	err = channel.ExchangeDeclare(topic, amqp.ExchangeTopic, true, !keep, false, false, nil)
	if err == nil {
		_, err = channel.QueueDeclare(topic, true, false, !keep, false, nil)
	}
	if err == nil {
		err = channel.QueueBind(topic, "#", topic, false, nil)
	}
	if err != nil {
		x.Close()
		return nil, err
	}
	return x, nil
}

// Sink implements Topic.
func (x *rabbitExchange) Sink() (s config.Sink, secrets map[string]string) {
	c := rabbitmq.DefaultConfig()
	c.URL, c.Exchange, c.RoutingKey = sink.Secret(x.at.String()), x.name, "{group}"
	return config.Sink{Type: config.SinkRabbitMQ, RabbitMQ: c}, map[string]string{"url": x.at.String()}
}

func cleanRabbit(at *url.URL, err error) error {
	s, _ := (&rabbitExchange{at: at, name: "x"}).Sink()
	return rabbitmq.Clean(s.RabbitMQ, err)
}

// Keys implements Topic.
func (x *rabbitExchange) Keys() []string {
	return []string{"type: rabbitmq", "url: " + config.Quote(x.at.String()), "exchange: " + x.name, "routing-key: '{group}'"}
}

// Read implements Topic.
func (x *rabbitExchange) Read(ctx context.Context, record func(payload []byte)) error {
	messages, err := x.channel.ConsumeWithContext(ctx, x.name, "", true, false, false, false, nil)
	if err != nil {
		return err
	}
	for m := range messages {
		record(m.Body)
	}
	if ctx.Err() == nil {
		return amqp.ErrClosed
	}
	return nil
}

// Remove implements Topic.
func (x *rabbitExchange) Remove(context.Context) error {
	if _, err := x.channel.QueueDelete(x.name, false, false, false); err != nil {
		return err
	}
	return x.channel.ExchangeDelete(x.name, false, false)
}

// Close implements Topic.
func (x *rabbitExchange) Close() { _ = x.conn.Close() }

// rabbitProducer publishes with confirms on one channel.
type rabbitProducer struct {
	conn     *amqp.Connection
	mu       sync.Mutex // a channel publishes one message at a time
	channel  *amqp.Channel
	exchange string
}

func produceRabbit(at *url.URL, topic string) (Producer, error) {
	conn, channel, err := dialRabbit(at)
	if err != nil {
		return nil, err
	}
	if err := channel.Confirm(false); err != nil {
		_ = conn.Close() // err matters more
		return nil, err
	}
	return &rabbitProducer{conn: conn, channel: channel, exchange: topic}, nil
}

// Send implements Producer.
func (p *rabbitProducer) Send(ctx context.Context, rows []Row) error {
	confirms := make([]*amqp.DeferredConfirmation, len(rows))
	p.mu.Lock()
	for i, r := range rows {
		var err error
		message := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: r.Payload}
		if confirms[i], err = p.channel.PublishWithDeferredConfirmWithContext(ctx, p.exchange, "floor", true, false, message); err != nil {
			p.mu.Unlock()
			return err
		}
	}
	p.mu.Unlock()
	for _, c := range confirms {
		if stored, err := c.WaitContext(ctx); err != nil {
			return err
		} else if !stored {
			return errRefused
		}
	}
	return nil
}

// Close implements Producer.
func (p *rabbitProducer) Close() { _ = p.conn.Close() }
