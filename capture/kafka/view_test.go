package kafka_test

import (
	"context"
	"testing"

	"github.com/sluicebox/sluicebox/capture/kafka"
	"github.com/sluicebox/sluicebox/store"
)

// queried is a view that keeps its last query.
type queried struct {
	store.View
	last store.UnsettledQuery
}

func (v *queried) Pages(_ context.Context, q store.UnsettledQuery, _ int, _ func([]store.Item) error) error {
	v.last = q
	return nil
}

// A view of many partitions reads no payloads that a claim reads again. The rows of an outbox with routes come
// whole, because its table may lose them before each leg has sent them.
func TestPayloadsOfAShard(t *testing.T) {
	single := &store.Outbox{Name: "shop"}
	legs := &store.Outbox{Name: "shop", Routes: []store.Route{{Name: "a"}, {Name: "b"}}}
	bound := store.ReadLimit{Rows: 10, Bytes: 1000}
	for _, c := range []struct {
		partitions int
		outbox     *store.Outbox
		omitted    bool
	}{{1, single, false}, {64, single, true}, {64, legs, false}} {
		of := &queried{}
		view := kafka.ShardView(of, 0, c.partitions)
		if _, err := view.Unsettled(t.Context(), bound.Query(c.outbox)); err != nil {
			t.Fatal(err)
		}
		if of.last.NoPayload != c.omitted {
			t.Errorf("%d partitions, %d routes: payloads are omitted: %t, want %t", c.partitions, len(c.outbox.Routes), of.last.NoPayload, c.omitted)
		}
	}
}
