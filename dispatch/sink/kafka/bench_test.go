package kafka

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// BenchmarkHotGroup sends the rows of one group, request by request, as its lane does. The rows
// have 500 bytes.
func BenchmarkHotGroup(b *testing.B) {
	to := newCluster(b, 1, nil).create(b, 3, nil)
	for _, compression := range []Compression{CompressionNone, CompressionZstd} {
		for _, run := range []int{1, 10, 100, 1000} {
			b.Run(fmt.Sprintf("%s/%d", compression, run), func(b *testing.B) {
				cfg := to.config()
				cfg.Compression = compression
				s := open(b, cfg)
				msgs := make([]sink.Message, run)
				for i := range msgs {
					msgs[i] = sink.Message{ID: fmt.Sprint(i), Group: store.GroupOf("hot"), Payload: bytes.Repeat([]byte(`{"a": 12}, `), 45)}
				}
				b.ReportAllocs()
				rows := 0
				for b.Loop() {
					if res := s.Deliver(context.Background(), msgs); res.At(0).Class != sink.Delivered {
						b.Fatal(res.At(0).Detail)
					}
					rows += run
				}
				b.ReportMetric(float64(rows)/b.Elapsed().Seconds(), "rows/s")
			})
		}
	}
}
