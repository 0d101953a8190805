package blackbox

import (
	"fmt"
	"math/rand/v2"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// toRabbitMQ routes the events of a scene to a queue.
const toRabbitMQ = `
name: %s
source: {url: %q}
outboxes:
  - {table: outbox_events, layout: flowcatalyst, kind: EVENT, sink: mq}
sinks:
  mq: {type: rabbitmq, url: %q, exchange: events, routing-key: '{group}', request-timeout: 1s, backoff: {initial: 20ms, max: 200ms}}
admin: {listen: %s}
`

// rabbitScene is a relay that delivers to a RabbitMQ server.
type rabbitScene struct {
	*scene
	server  *servers.RabbitMQServer
	relay   *relay
	written int
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

// write writes some rows in several transactions.
func (s *rabbitScene) write() {
	s.t.Helper()
	for range 10 {
		n := 1 + rand.IntN(60)
		s.number(s.written+1, s.written+n, "i % 50")
		s.written += n
	}
}

// fails waits until a delivery fails as unavailable.
func (s *rabbitScene) fails(wrong func()) {
	s.t.Helper()
	const failures = `sluicebox_delivery_attempts_total{outcome="unavailable",sink="mq"}`
	before := s.relay.metric(failures)
	wrong()
	s.write()
	within(s.t, testTimeout, func() string {
		if s.relay.metric(failures) == before {
			return "no delivery fails"
		}
		return ""
	})
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
		s.config = fmt.Sprintf(toRabbitMQ, nameFor(s.database), s.database, s.server.URL, adminKey)
		if d, text, code := doctor(s.t, s.config); code != 0 {
			s.t.Errorf("doctor ends with %d: %s\n%+v", code, text, d)
		}
		s.relay = start(s.t, s.config)
		s.relay.waitFor("source connected")
		for range crashes(s.t, 1) {
			s.write()
			s.fails(func() { s.server.Stop("immediate") })
			s.server.Restart(nil)
			s.write()
			s.fails(s.server.Freeze)
			s.server.Thaw()
			s.write()
			s.fails(s.server.Block)
			s.server.Unblock()
			s.write()
			s.fails(func() { s.server.Restart(nil) })
			s.write()
			s.relay.kill()
			s.relay = start(s.t, s.config)
			s.relay.waitFor("source connected")
		}
		s.write()
		awaitZero(s.t, "rows are not COMPLETED", func() int {
			return count(s.t, s.conn, "SELECT count(*) FROM outbox_events WHERE status <> 'COMPLETED'")
		})
		stored := s.messages()
		again := checkNumbered(s.t, stored)
		if len(stored)-again != s.written {
			s.t.Errorf("%d messages are stored, %d of them again, want %d", len(stored), again, s.written)
		}
		if left := none(s.t, s.conn, "paid for the faults", "SELECT count(*) FROM outbox_events WHERE retry_count > 0"); left != "" {
			s.t.Error(left)
		}
		s.t.Logf("%d rows, %d again", s.written, again)
		expectStop(s.t, s.relay)
	})
}
