package feed

import (
	"fmt"
	"math"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicebox/sluicebox/store"
)

// batchBytes is what a batch of one record has beside its value: 61 bytes of header, and some for the
// lengths.
const batchBytes = 1 << 10

// options returns the options that the order of records rests on. They win over the
// caller's options; connect refuses options of the caller that they cannot undo.
func (f *Feeder) options() []kgo.Opt {
	return []kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.StopProducerOnDataLossDetected(), // else the client would begin new numbers behind a gap
		kgo.ProducerLinger(0),
		kgo.ProducerBatchMaxBytes(int32(f.cfg.MaxRecordBytes + batchBytes)),
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
