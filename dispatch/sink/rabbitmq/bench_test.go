package rabbitmq_test

import (
	"fmt"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// BenchmarkDeliver measures requests of one sender to a durable queue. An operation is one message.
func BenchmarkDeliver(b *testing.B) {
	shared := startBroker(b)
	for _, lanes := range []int{1, 100} {
		b.Run(fmt.Sprint(lanes, " lanes"), func(b *testing.B) {
			s := newSink(b, shared.fresh(b, nil).config())
			msgs := make([]sink.Message, lanes)
			for n := 0; b.Loop(); n++ {
				if n%len(msgs) != 0 {
					continue // sent with the message before
				}
				for i := range msgs {
					msgs[i] = sink.Message{ID: fmt.Sprint(n + i), Lane: i, Group: store.GroupOf(fmt.Sprint(i)), Payload: make([]byte, 200)}
				}
				if res := s.Deliver(b.Context(), msgs); res.At(len(msgs)-1).Class != sink.Delivered {
					b.Fatal(res.At(0).Detail)
				}
			}
		})
	}
}
