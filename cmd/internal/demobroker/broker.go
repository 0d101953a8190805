// Package demobroker gives a benchmark or a demonstration a topic of its own on a broker. A relay and the floor send rows
// there, and the benchmark reads them.
package demobroker

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
)

// Topic is a topic or a stream that was created for a benchmark.
type Topic interface {
	// Sink returns the keys of a relay's sink that sends rows here. Secrets has values that a
	// printed configuration hides, by key.
	Sink() (s config.Sink, secrets map[string]string)

	// Keys returns the same as lines of a configuration file, secrets included.
	Keys() []string

	// Read calls record with the payload of each message, from the first on, until the context
	// ends. It then returns nil.
	Read(ctx context.Context, record func(payload []byte)) error

	// Remove removes the topic.
	Remove(ctx context.Context) error

	// Close closes the connection.
	Close()
}

// Row is a row to send.
type Row struct{ Key, Payload []byte }

// Producer sends rows to a topic with the client that the sink uses.
type Producer interface {
	// Send returns once the broker has stored all rows.
	Send(ctx context.Context, rows []Row) error
	Close()
}

// kind is a kind of brokers.
type kind struct {
	create  func(ctx context.Context, at *url.URL, topic string, keep bool) (Topic, error)
	produce func(at *url.URL, topic string) (Producer, error)

	// clean returns an error without the password, which a broker may echo, and nil for nil.
	clean func(at *url.URL, err error) error

	// check checks the parameters of an address; nil if it has none.
	check func(at *url.URL) error

	// list returns the topics whose names have a prefix, remove removes one, and removal is a command
	// that does. They are nil if a program that is killed leaves none.
	list    func(ctx context.Context, at *url.URL, prefix string) ([]string, error)
	remove  func(ctx context.Context, at *url.URL, topic string) error
	removal func(at *url.URL, topic string) string
}

// kinds returns the kinds by the scheme of their addresses.
func kinds() map[string]kind {
	return map[string]kind{
		"amqp": {create: createRabbit, produce: produceRabbit, clean: cleanRabbit},
		"kafka": {
			create: createKafka, produce: produceKafka, clean: cleanKafka, check: checkKafka, list: listKafka, remove: removeKafka,
			removal: func(at *url.URL, topic string) string {
				return "kafka-topics --bootstrap-server " + at.Host + " --delete --topic " + topic
			},
		},
		"nats": {
			create: createNATS, produce: produceNATS, clean: cleanNATS, list: listNATS, remove: removeNATS,
			removal: func(at *url.URL, topic string) string { return "nats --server " + at.Host + " stream rm " + topic },
		},
	}
}

// requestTimeout bounds a request about a topic.
const requestTimeout = 10 * time.Second

// Forms lists the addresses for a text of an error.
func Forms() string {
	var all []string
	for _, scheme := range slices.Sorted(maps.Keys(kinds())) {
		all = append(all, scheme+"://host:port")
	}
	return strings.Join(all, ", ")
}

// parse returns the kind of a broker and its address.
func parse(address string) (kind, *url.URL, error) {
	at, err := url.Parse(address)
	if err != nil || at.Host == "" || kinds()[at.Scheme].create == nil {
		return kind{}, nil, fmt.Errorf("%s is not of the form %s", config.Redact(address), Forms())
	}
	k := kinds()[at.Scheme]
	if k.check != nil {
		if err := k.check(at); err != nil {
			return kind{}, nil, fmt.Errorf("%s: %w", config.Redact(address), err)
		}
	}
	return k, at, nil
}

// Check returns an error unless the address is that of a supported broker.
func Check(address string) error {
	_, _, err := parse(address)
	return err
}

// Leftovers returns the topics with a prefix that earlier programs kept, or left when they were killed.
func Leftovers(ctx context.Context, address, prefix string) ([]string, error) {
	k, at, err := parse(address)
	if err != nil || k.list == nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	names, err := k.list(ctx, at, prefix)
	if err != nil {
		return nil, fmt.Errorf("list topics: %w", k.clean(at, err))
	}
	return names, nil
}

// Remove removes one of Leftovers.
func Remove(ctx context.Context, address, name string) error {
	k, at, err := parse(address)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := k.remove(ctx, at, name); err != nil {
		return fmt.Errorf("remove topic %s: %w", name, k.clean(at, err))
	}
	return nil
}

// Removal returns a command that removes one of Leftovers.
func Removal(address, name string) string {
	k, at, err := parse(address)
	if err != nil {
		return ""
	}
	return k.removal(at, name)
}

// Create creates a topic. The caller removes it, unless it is to be kept.
func Create(ctx context.Context, address, name string, keep bool) (Topic, error) {
	k, at, err := parse(address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	t, err := k.create(ctx, at, name, keep)
	if err != nil {
		return nil, fmt.Errorf("create topic %s: %w", name, k.clean(at, err))
	}
	return &cleanTopic{t, func(err error) error { return k.clean(at, err) }}, nil
}

// cleanTopic is a topic whose errors show no password.
type cleanTopic struct {
	Topic
	clean func(error) error
}

func (t *cleanTopic) Read(ctx context.Context, record func(payload []byte)) error {
	return t.clean(t.Topic.Read(ctx, record))
}

func (t *cleanTopic) Remove(ctx context.Context) error { return t.clean(t.Topic.Remove(ctx)) }

// Produce returns a producer for a topic. It connects with the first Send.
func Produce(address, topic string) (Producer, error) {
	k, at, err := parse(address)
	if err != nil {
		return nil, err
	}
	p, err := k.produce(at, topic)
	if err != nil {
		return nil, k.clean(at, err)
	}
	return &cleanProducer{p, func(err error) error { return k.clean(at, err) }}, nil
}

// cleanProducer is a producer whose errors show no password.
type cleanProducer struct {
	Producer
	clean func(error) error
}

func (p *cleanProducer) Send(ctx context.Context, rows []Row) error {
	return p.clean(p.Producer.Send(ctx, rows))
}
