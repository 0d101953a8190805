package feed

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicebox/sluicebox/store"
)

// The caller's options cannot weaken the order: a client refuses them, or has the feeder's.
func TestOptionsOfTheCaller(t *testing.T) {
	connect := func(opts ...kgo.Opt) (*kgo.Client, error) {
		f, err := New(Config{Client: append(opts, kgo.SeedBrokers("127.0.0.1:1")), Topic: "t", Partitions: 1})
		if err != nil {
			t.Fatal(err)
		}
		return f.connect()
	}
	for name, opt := range map[string]kgo.Opt{
		"DisableIdempotentWrite": kgo.DisableIdempotentWrite(), "TransactionalID": kgo.TransactionalID("x"),
		"AllowIdempotentProduceCancellation": kgo.AllowIdempotentProduceCancellation(),
		"ManualFlushing":                     kgo.ManualFlushing(), "DefaultProduceTopicAlways": kgo.DefaultProduceTopicAlways(),
	} {
		_, err := connect(opt)
		var setup *store.SetupError
		if !errors.As(err, &setup) || !strings.Contains(err.Error(), name) {
			t.Errorf("the option %s led to %v", name, err)
		}
	}
	client, err := connect(kgo.RecordRetries(1), kgo.RecordDeliveryTimeout(time.Second), kgo.RequiredAcks(kgo.AllISRAcks()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if n, d := client.OptValue(kgo.RecordRetries), client.OptValue(kgo.RecordDeliveryTimeout); n.(int64) < 1<<32 || d.(time.Duration) != 0 {
		t.Errorf("records have %v tries in %v", n, d)
	}
}

// A payload that is larger than a record stays in its table, unless legs need it after the table has lost it.
func TestPayloadsOfLegs(t *testing.T) {
	for routes, whole := range map[int]bool{0: false, 1: true} {
		box := store.Outbox{Name: "shop", Routes: []store.Route{{Name: "a"}}[:routes]}
		f, err := New(Config{Topic: "t", Partitions: 1, Outboxes: []store.Outbox{box}})
		if err != nil {
			t.Fatal(err)
		}
		if most := f.cfg.maxPayload(); most == 0 != whole {
			t.Errorf("%d routes: payloads up to %d bytes, want all: %t", routes, most, whole)
		}
	}
}
