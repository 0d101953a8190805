package servers

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A cluster keeps its topics over a crash and a restart, and replaces a leader that is gone.
func TestKafka(t *testing.T) {
	t.Parallel()
	for name, brokers := range map[string]int{"one": 1, "three": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			c := Kafka(t, brokers, nil)
			t.Logf("%d brokers started in %s", brokers, time.Since(began).Round(time.Millisecond))
			client, err := kgo.NewClient(kgo.SeedBrokers(c.Addresses()...), kgo.DefaultProduceTopic("orders"))
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
			defer cancel()
			if _, err := kadm.NewClient(client).CreateTopic(ctx, 1, int16(brokers), nil, "orders"); err != nil {
				t.Fatal(err)
			}
			produce := func(text string, offset int64) {
				t.Helper()
				r, err := client.ProduceSync(ctx, kgo.StringRecord(text)).First()
				if err != nil || r.Offset != offset {
					t.Fatalf("record %s: offset %d, %v, want %d", text, r.Offset, err, offset)
				}
			}
			produce("a", 0)
			for _, b := range c.Brokers {
				b.Stop("immediate")
				if brokers == 1 {
					b.Restart(nil)
				}
				produce("b", int64(b.id))
				if brokers > 1 {
					b.Restart(nil)
				}
			}
		})
	}
}
