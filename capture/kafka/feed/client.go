package feed

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicebox/sluicebox/capture/kafka/internal/topic"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
)

// options returns the options that the order of records rests on. They win over the
// caller's options; connect refuses options of the caller that they cannot undo.
func (f *Feeder) options() []kgo.Opt {
	return []kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.StopProducerOnDataLossDetected(), // else the client would begin new numbers behind a gap
		kgo.ProducerLinger(0),
		kgo.ProducerBatchMaxBytes(int32(f.cfg.MaxRecordBytes + topic.BatchBytes)),
		kgo.MaxBufferedRecords(math.MaxInt32), // session.room limits the bytes
		kgo.MaxBufferedBytes(0),
		kgo.RecordRetries(math.MaxInt), // an outage of Kafka ends no session
		kgo.RecordDeliveryTimeout(0),
		kgo.WithHooks(&f.status),
	}
}

// connect returns a client, which connects when it is used.
func (f *Feeder) connect() (*kgo.Client, error) {
	client, err := kgo.NewClient(append(slices.Clone(f.cfg.Client), f.options()...)...)
	if err != nil {
		return nil, &store.SetupError{Problem: "feed: " + err.Error(), Remedy: "correct the options of the client"}
	}
	for name, opt := range map[string]any{
		"DisableIdempotentWrite":             kgo.DisableIdempotentWrite,
		"AllowIdempotentProduceCancellation": kgo.AllowIdempotentProduceCancellation,
		"TransactionalID":                    kgo.TransactionalID,
		"ManualFlushing":                     kgo.ManualFlushing,
		"DefaultProduceTopicAlways":          kgo.DefaultProduceTopicAlways,
	} {
		if v := client.OptValue(opt); v != nil && v != false && v != "" {
			client.Close()
			return nil, &store.SetupError{Problem: fmt.Sprintf("feed: the client has the option %s, with which records are lost or out of order", name), Remedy: "remove it"}
		}
	}
	return client, nil
}

// Diagnose implements store.Diagnoser. It checks the topic, also while no session runs.
func (f *Feeder) Diagnose(ctx context.Context) ([]store.Finding, error) {
	client, err := f.connect()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return topic.Diagnose(ctx, kadm.NewClient(client), f.spec()), nil
}

// Check returns the first fault of the topic. It is a *store.SetupError if the topic has other settings
// than the rows need.
func (f *Feeder) Check(ctx context.Context) error {
	client, err := f.connect()
	if err != nil {
		return err
	}
	defer client.Close()
	d, err := topic.Describe(ctx, kadm.NewClient(client), f.spec())
	if err == nil {
		err = store.FaultError(d.Findings)
	}
	return err
}

// Create creates the topic if it is missing, and checks it. It has three replicas, or as many as there
// are brokers.
func (f *Feeder) Create(ctx context.Context) (created bool, err error) {
	client, err := f.connect()
	if err != nil {
		return false, err
	}
	defer client.Close()
	created, err = topic.Create(ctx, kadm.NewClient(client), f.spec())
	if err != nil {
		return false, err
	}
	return created, f.awaitTopic(ctx)
}

// newTopicTimeout is how long a broker may not know of a topic that the controller has just created.
const newTopicTimeout = 30 * time.Second

// awaitTopic checks a topic that exists, once the broker that answers knows of it.
func (f *Feeder) awaitTopic(ctx context.Context) error {
	pause := backoff.Doubling{Min: 20 * time.Millisecond, Max: time.Second}
	for began := time.Now(); ; {
		err := f.Check(ctx)
		if !errors.Is(err, kerr.UnknownTopicOrPartition) || time.Since(began) > newTopicTimeout {
			return err
		}
		if sleep := backoff.Sleep(ctx, pause.Next()); sleep != nil {
			return sleep
		}
	}
}

func (f *Feeder) spec() topic.Spec {
	return topic.Spec{Name: f.cfg.Topic, Partitions: f.cfg.Partitions, RecordBytes: f.cfg.MaxRecordBytes}
}
