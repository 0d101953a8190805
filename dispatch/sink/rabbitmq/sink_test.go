package rabbitmq_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/rabbitmq"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

func attribute(name, value string) store.Attributes {
	return store.Attributes{{Name: name, Value: value}}
}

// lanes returns one message of each of n lanes, whose ids are those of their groups.
func lanes(n int) (msgs []sink.Message) {
	for i := range n {
		msgs = append(msgs, sink.Message{
			ID: fmt.Sprint(i), Kind: "order.paid", Group: store.GroupOf(fmt.Sprint(i)), Payload: []byte(`{}`), Attempt: 1, Lane: i,
		})
	}
	return msgs
}

func deliver(t *testing.T, s *rabbitmq.Sink, msgs []sink.Message) sink.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	return s.Deliver(ctx, msgs)
}

// want delivers messages and fails the test unless their classes are those.
func want(t *testing.T, s *rabbitmq.Sink, msgs []sink.Message, classes ...sink.Class) sink.Result {
	t.Helper()
	res := deliver(t, s, msgs)
	for i := range msgs {
		if out := res.At(i); out.Class != classes[i%len(classes)] {
			t.Fatalf("message %s is %s (%s), want %s", msgs[i].ID, out.Class, out.Detail, classes[i%len(classes)])
		}
	}
	return res
}

// deliverUntil repeats a request until it is delivered.
func deliverUntil(t *testing.T, s *rabbitmq.Sink, msgs []sink.Message) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		res := deliver(t, s, msgs)
		if res.At(len(msgs)-1).Class == sink.Delivered {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not delivered: %s", res.At(0).Detail)
		}
		<-time.After(10 * time.Millisecond) // a lane waits longer
	}
}

// wantAll fails the test unless each of n messages is stored. Some may be stored again.
func wantAll(t *testing.T, b *broker, n int) {
	t.Helper()
	ids := b.Stored()
	for i := range n {
		if !slices.Contains(ids, fmt.Sprint(i)) {
			t.Errorf("message %d is not stored", i)
		}
	}
}

// A consumer gets the row as the format says, with the properties of AMQP.
func testMessage(t *testing.T, b *broker) {
	c := b.config()
	c.IDPrefix, c.RoutingKey = "shop-", "orders.{kind}"
	c.Format, c.CloudEventsSource = "cloudevents", "/shop"
	m := lanes(1)
	m[0].Committed, m[0].Replay = time.Unix(1700000000, 0), "job"
	m[0].Attributes = attribute("tenant", "é")
	want(t, newSink(t, c), m, sink.Delivered)
	got := b.messages()[0]
	if got.RoutingKey != "orders.order.paid" || got.MessageId != "shop-0" || got.ContentType != "application/json" ||
		got.DeliveryMode != amqp.Persistent || got.Timestamp.Unix() != 1700000000 || string(got.Body) != "{}" {
		t.Errorf("got %+v", got)
	}
	for name, value := range map[string]string{
		"tenant": "é", "Sluicebox-Replay": "job", "cloudEvents:id": "shop-0", "cloudEvents:type": "order.paid",
		"cloudEvents:source": "/shop", "cloudEvents:subject": "0", "cloudEvents:specversion": "1.0",
	} {
		if got.Headers[name] != value {
			t.Errorf("header %s is %q, want %q", name, got.Headers[name], value)
		}
	}
}

// A user may be denied one routing key, and the broker closes the channel for all. Only messages with
// that key fail.
func testDeniedKey(t *testing.T, b *broker) {
	c := b.config()
	c.URL = b.as("some", canary)
	c.RoutingKey = "orders.{kind}"
	msgs := lanes(9)
	for i := 1; i < len(msgs); i += 3 {
		msgs[i].Kind = "1"
	}
	want(t, newSink(t, c), msgs, sink.Delivered, sink.Misconfigured, sink.Delivered)
	for _, m := range b.messages() {
		if m.RoutingKey == "orders.1" {
			t.Errorf("message %s is stored", m.MessageId)
		}
	}
}

// Several messages are too large, and those between are stored. The next request knows the limit.
func testTooLarge(t *testing.T, b *broker) {
	s := newSink(t, b.config())
	msgs := lanes(9)
	for i := 1; i < len(msgs); i += 3 {
		msgs[i].Payload = make([]byte, maxSize+i)
	}
	for range 2 {
		res := want(t, s, msgs, sink.Delivered, sink.Rejected, sink.Delivered)
		if detail := res.At(1).Detail; !strings.Contains(detail, fmt.Sprint(maxSize)) {
			t.Errorf("got detail %q", detail)
		}
	}
	msgs[1].Payload = make([]byte, maxSize)
	want(t, s, msgs[1:2], sink.Delivered)
}

// The limit of the broker is raised while the sink is connected, and has channels with the limit of before.
// The next attempt delivers rows that were too large.
func testRaisedLimit(t *testing.T, b *broker) {
	const under = 100 << 10 // a size of which the sink sends many messages at once
	set := func(limit int) { b.Control(fmt.Sprintf("application:set_env(rabbit, max_message_size, %d).", limit)) }
	defer set(maxSize)
	for _, size := range []int{maxSize + 1, under} {
		set(size - 1)
		s := newSink(t, b.config())
		rabbitmq.SetLimitAge(s, 0)
		msgs := lanes(4)
		msgs[1].Payload = make([]byte, size)
		res := want(t, s, msgs, sink.Delivered, sink.Rejected, sink.Delivered, sink.Delivered)
		if out := res.At(1); !out.Final {
			t.Errorf("a large row is not rejected for good: %s", out.Detail)
		}
		want(t, s, lanes(4), sink.Delivered) // by a channel that is used again
		set(2 * maxSize)
		want(t, s, msgs, sink.Delivered)
	}
}

// A queue that is full in the middle of a request refuses the rest.
func testFull(t *testing.T, b *broker) {
	b.declare(amqp.Table{"x-max-length": 5, "x-overflow": "reject-publish"})
	s := newSink(t, b.config())
	res := deliver(t, s, lanes(9))
	stored := b.Stored()
	if len(stored) >= 9 {
		t.Fatalf("%d messages are in a queue of 5", len(stored))
	}
	for i := range 9 {
		out, class := res.At(i), sink.Unavailable
		if slices.Contains(stored, fmt.Sprint(i)) {
			class = sink.Delivered
		}
		if out.Class != class {
			t.Errorf("message %d is %s (%s), want %s", i, out.Class, out.Detail, class)
		}
	}
}

// A broker with an alarm takes no messages, and says why. No message is lost.
func testBlocked(t *testing.T, b *broker) {
	c := b.config()
	c.RequestTimeout = time.Second
	s := newSink(t, c)
	b.Block()
	defer b.Unblock()
	for range 2 {
		res := want(t, s, lanes(3), sink.Unavailable)
		if detail := res.At(0).Detail; !strings.Contains(detail, "low on memory") {
			t.Errorf("got detail %q", detail)
		}
	}
	if out := s.Probe(t.Context(), ""); out.Class != sink.Unavailable || !strings.Contains(out.Detail, "low on memory") {
		t.Errorf("the probe is %s (%s)", out.Class, out.Detail)
	}
	b.Unblock()
	deliverUntil(t, s, lanes(3))
	wantAll(t, b, 3)
}

// A broker that answers nothing is given up, and later found again.
func testFrozen(t *testing.T, b *broker) {
	c := b.config()
	c.RequestTimeout = 300 * time.Millisecond
	s := newSink(t, c)
	deliverUntil(t, s, lanes(1))
	b.Freeze()
	want(t, s, lanes(3), sink.Unavailable)
	want(t, s, lanes(3), sink.Unavailable)
	b.Thaw()
	deliverUntil(t, s, lanes(3))
	wantAll(t, b, 3)
}

// A message that no queue gets is not delivered, even if its answers come while the request ends.
func testLateAnswers(t *testing.T, b *broker) {
	c := b.config()
	c.RoutingKey = "nowhere"
	s := newSink(t, c)
	msgs := lanes(200)
	want(t, s, msgs[:1], sink.Misconfigured)
	returned := 0
	for range 60 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+rand.IntN(20_000))*time.Microsecond)
		res := s.Deliver(ctx, msgs)
		cancel()
		for i := range msgs {
			switch res.At(i).Class {
			case sink.Delivered:
				t.Fatalf("message %s is delivered, and no queue has it", msgs[i].ID)
			case sink.Misconfigured:
				returned++
			}
		}
	}
	if returned == 0 {
		t.Error("no request ends between answers")
	}
}

// Without mandatory a message that no queue gets is delivered.
func testNotMandatory(t *testing.T, b *broker) {
	c := b.config()
	c.RoutingKey, c.Mandatory = "other", false
	want(t, newSink(t, c), lanes(3), sink.Delivered)
	// and with the default exchange the routing key is the queue
	c.Exchange, c.RoutingKey, c.Mandatory = "", "events", true
	want(t, newSink(t, c), lanes(2), sink.Delivered)
	wantAll(t, b, 2)
	c.RoutingKey = "{kind}"
	msgs := lanes(3)
	msgs[0].Kind, msgs[2].Kind = "events", "events"
	want(t, newSink(t, c), msgs, sink.Delivered, sink.Misconfigured, sink.Delivered)
}

func testProbe(t *testing.T, b *broker) {
	c := b.config()
	out := newSink(t, c).Probe(t.Context(), "")
	if out.Class != sink.Delivered || !strings.Contains(out.Detail, "server 3.") || !strings.Contains(out.Detail, "vhost /") {
		t.Errorf("got %s (%s)", out.Class, out.Detail)
	}
	c.Exchange = "other"
	if out := newSink(t, c).Probe(t.Context(), ""); out.Class != sink.Misconfigured {
		t.Errorf("got %s (%s)", out.Class, out.Detail)
	}
}

// TLS trusts the CA of ca-file, and the certificate of cert-file is a login.
func TestTLS(t *testing.T) {
	server := servers.RabbitMQ(t, map[string]string{
		"auth_mechanisms.1": "PLAIN", "auth_mechanisms.2": "EXTERNAL", "ssl_cert_login_from": "common_name",
	})
	server.Control(`rabbit_auth_backend_internal:add_user(<<"localhost">>, <<"x">>, <<"test">>),
		rabbit_auth_backend_internal:set_permissions(<<"localhost">>, <<"/">>, <<".*">>, <<".*">>, <<".*">>, <<"test">>).`)
	server.Enable("rabbitmq_auth_mechanism_ssl")
	ca, cert, key := server.TLS()
	c := rabbitmq.DefaultConfig()
	c.URL, c.RoutingKey, c.Mandatory = sink.Secret(server.URL), "any", false
	want(t, newSink(t, c), lanes(1), sink.Misconfigured) // its CA is unknown
	c.CAFile = ca
	want(t, newSink(t, c), lanes(1), sink.Unavailable) // the server ends the handshake
	c.CertFile, c.KeyFile = cert, key
	want(t, newSink(t, c), lanes(1), sink.Delivered)
	c.URL = sink.Secret(strings.Replace(server.URL, "guest:guest@", "", 1))
	want(t, newSink(t, c), lanes(1), sink.Delivered)
}
