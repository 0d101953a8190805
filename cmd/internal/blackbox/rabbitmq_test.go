package blackbox

import (
	"fmt"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// rabbitScene is a scene with a RabbitMQ server.
type rabbitScene struct {
	*scene
	server *servers.RabbitMQServer
}

// queue calls a function with a channel.
func (s *rabbitScene) queue(call func(ch *amqp.Channel) error) {
	s.t.Helper()
	conn, err := amqp.Dial(s.server.URL)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err == nil {
		err = call(ch)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// declare creates the exchange and a queue with all its messages.
func (s *rabbitScene) declare() {
	s.t.Helper()
	s.queue(func(ch *amqp.Channel) error {
		if err := ch.ExchangeDeclare("events", "topic", true, false, false, false, nil); err != nil {
			return err
		}
		if _, err := ch.QueueDeclare("events", true, false, false, false, nil); err != nil {
			return err
		}
		return ch.QueueBind("events", "#", "events", false, nil)
	})
}

// messages returns the stored messages in order.
func (s *rabbitScene) messages() (all []sinktest.Received) {
	s.t.Helper()
	s.queue(func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive("events", true, false, false, false, nil)
		if err != nil || q.Messages == 0 {
			return err
		}
		deliveries, err := ch.Consume("events", "", true, false, false, false, nil)
		if err != nil {
			return err
		}
		for m := range deliveries {
			if all = append(all, sinktest.Received{ID: m.MessageId, Payload: m.Body}); len(all) == q.Messages {
				return nil
			}
		}
		return fmt.Errorf("got %d of %d messages", len(all), q.Messages)
	})
	return all
}

// The server is killed, frozen and blocked by an alarm, and the relay is killed, while rows are
// written. All rows are stored, the first arrivals of each group in order, and none has paid for it.
// By hand:
//
//	SLUICEBOX_TEST_CRASHES=20 go test -v -run 'TestRabbitMQFaults' ./cmd/internal/blackbox
func TestRabbitMQFaults(t *testing.T) {
	t.Parallel()
	aPostgres(t, "", func(sc *scene) {
		s := &rabbitScene{scene: sc, server: servers.RabbitMQ(sc.t, nil)}
		s.declare()
		keys := fmt.Sprintf("type: rabbitmq, url: %q, exchange: events, routing-key: '{group}', request-timeout: 1s", s.server.URL)
		s.brokerFaults(keys, []brokerFault{
			{func() { s.server.Stop("immediate") }, func() { s.server.Restart(nil) }},
			{s.server.Freeze, s.server.Thaw},
			{s.server.Block, s.server.Unblock},
			{func() { s.server.Stop("fast") }, func() { s.server.Restart(nil) }},
		}, s.messages)
	})
}
