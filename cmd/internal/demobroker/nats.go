package demobroker

import (
	"context"
	"net/url"
	"strings"

	natsio "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/nats"
)

// natsStream is a stream of JetStream with the subjects NAME.>.
type natsStream struct {
	conn   *natsio.Conn
	js     jetstream.JetStream
	stream jetstream.Stream
	at     *url.URL
	name   string
}

func createNATS(ctx context.Context, at *url.URL, topic string, _ bool) (Topic, error) {
	conn, err := natsio.Connect(at.String())
	if err != nil {
		return nil, err
	}
	s := &natsStream{conn: conn, at: at, name: topic}
	if s.js, err = jetstream.New(conn); err == nil {
		s.stream, err = s.js.CreateStream(ctx, jetstream.StreamConfig{Name: topic, Subjects: []string{topic + ".>"}})
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return s, nil
}

// atNATS calls a function with the streams of a server.
func atNATS(at *url.URL, call func(js jetstream.JetStream) error) error {
	conn, err := natsio.Connect(at.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	return call(js)
}

// listNATS returns the names of the streams with a prefix.
func listNATS(ctx context.Context, at *url.URL, prefix string) (names []string, err error) {
	err = atNATS(at, func(js jetstream.JetStream) error {
		all := js.StreamNames(ctx)
		for name := range all.Name() {
			if strings.HasPrefix(name, prefix) {
				names = append(names, name)
			}
		}
		return all.Err()
	})
	return names, err
}

func removeNATS(ctx context.Context, at *url.URL, topic string) error {
	return atNATS(at, func(js jetstream.JetStream) error { return js.DeleteStream(ctx, topic) })
}

// Sink implements Topic.
func (s *natsStream) Sink() (to config.Sink, secrets map[string]string) {
	c := nats.DefaultConfig()
	address := s.address()
	c.URL, c.Subject, c.Stream = sink.Secret(address), s.name+".{group}", s.name
	secrets = map[string]string{"url": address}
	for _, l := range s.login() {
		switch l.key {
		case "user":
			c.User = l.value
		case "password":
			c.Password = sink.Secret(l.value)
			secrets[l.key] = l.value
		case "token":
			c.Token = sink.Secret(l.value)
			secrets[l.key] = l.value
		}
	}
	return config.Sink{Type: config.SinkNATS, NATS: c}, secrets
}

func cleanNATS(at *url.URL, err error) error {
	s, _ := (&natsStream{at: at, name: "x"}).Sink()
	return nats.Clean(s.NATS, err)
}

// address returns the URL without a login, which a sink has in keys of its own.
func (s *natsStream) address() string {
	at := *s.at
	at.User = nil
	return at.String()
}

// loginKey is a key of a sink with a part of a login.
type loginKey struct{ key, value string }

// login returns the login of the URL as keys of a sink. A name alone is a token, as for the client.
func (s *natsStream) login() []loginKey {
	if s.at.User == nil {
		return nil
	}
	name := s.at.User.Username()
	if password, given := s.at.User.Password(); given {
		return []loginKey{{"user", name}, {"password", password}}
	}
	return []loginKey{{"token", name}}
}

// Keys implements Topic.
func (s *natsStream) Keys() []string {
	all := []string{"type: nats", "url: " + config.Quote(s.address()), "subject: " + config.Quote(s.name+".{group}"), "stream: " + s.name}
	for _, l := range s.login() {
		all = append(all, l.key+": "+config.Quote(l.value))
	}
	return all
}

// Read implements Topic.
func (s *natsStream) Read(ctx context.Context, record func(payload []byte)) error {
	consumer, err := s.stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return err
	}
	reading, err := consumer.Consume(func(m jetstream.Msg) { record(m.Data()) })
	if err != nil {
		return err
	}
	<-ctx.Done()
	reading.Stop()
	<-reading.Closed()
	return nil
}

// Remove implements Topic.
func (s *natsStream) Remove(ctx context.Context) error {
	return s.js.DeleteStream(ctx, s.name)
}

// Close implements Topic.
func (s *natsStream) Close() { s.conn.Close() }

// natsProducer publishes to one subject of a stream, with a Nats-Msg-Id as the sink does: without one a
// row is stored twice when its answer is lost.
type natsProducer struct {
	conn    *natsio.Conn
	js      jetstream.JetStream
	subject string
}

func produceNATS(at *url.URL, topic string) (Producer, error) {
	conn, err := natsio.Connect(at.String())
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(conn)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &natsProducer{conn, js, topic + ".floor"}, nil
}

// Send implements Producer.
func (p *natsProducer) Send(ctx context.Context, rows []Row) error {
	stored := make([]jetstream.PubAckFuture, len(rows))
	for i, r := range rows {
		var err error
		if stored[i], err = p.js.PublishAsync(p.subject, r.Payload, jetstream.WithMsgID(string(r.Key))); err != nil {
			return err
		}
	}
	for _, s := range stored {
		select {
		case <-s.Ok():
		case err := <-s.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Close implements Producer.
func (p *natsProducer) Close() { p.conn.Close() }
