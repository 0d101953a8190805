package nats_test

import (
	"fmt"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/nats"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// BenchmarkDeliver measures requests of one sender: of many lanes with one message each, and of
// one lane with 100 messages. An operation is one message.
func BenchmarkDeliver(b *testing.B) {
	for _, c := range []struct {
		name           string
		batch          nats.Batch
		lanes, perLane int
	}{
		{"1 lane", nats.BatchNone, 1, 1},
		{"100 lanes", nats.BatchNone, 100, 1},
		{"12 lanes of 8", nats.BatchNone, 12, 8},
		{"1 lane atomic", nats.BatchAtomic, 1, 100},
		{"10 lanes atomic", nats.BatchAtomic, 10, 100},
	} {
		b.Run(c.name, func(b *testing.B) {
			config := startBroker(b, servers.NATS, nil).config()
			config.Batch = c.batch
			s := newSink(b, config)
			msgs := make([]sink.Message, c.lanes*c.perLane)
			for n := 0; b.Loop(); n++ {
				if n%len(msgs) != 0 {
					continue // sent with the message before
				}
				for i := range msgs {
					lane := i / c.perLane
					msgs[i] = sink.Message{ID: fmt.Sprint(n + i), Lane: lane, Group: store.GroupOf(fmt.Sprint(lane)), Payload: make([]byte, 200)}
				}
				if res := s.Deliver(b.Context(), msgs); res.At(len(msgs)-1).Class != sink.Delivered {
					b.Fatal(res.At(0).Detail)
				}
			}
		})
	}
}
