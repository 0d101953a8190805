package mongo_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// BenchmarkStream reads documents that are already in the oplog, from the socket to the
// channel.
func BenchmarkStream(b *testing.B) {
	b.Run("single rows", func(b *testing.B) { benchmarkStream(b, false) })
	b.Run("100 rows in a transaction", func(b *testing.B) { benchmarkStream(b, true) })
}

func benchmarkStream(b *testing.B, together bool) {
	const per = 100

	d := newDatabase(b, servers.Mongo(b))
	src := newSource(b, d.config())
	defer src.Close()
	o := capturetest.OpenWithoutCheckpoint(b, src, d.tables())
	payload := strings.Repeat(`{"n": 1234567890}`, 20)
	for i := 0; i < b.N; i += per {
		var docs []any
		for j := range per {
			id := fmt.Sprintf("row-%09d", i+j)
			docs = append(docs, document(&d.outboxes(outboxName)[0], capturetest.Row{ID: id, Group: store.GroupOf(id[:9]), Payload: payload}))
		}
		ctx, end := b.Context(), func(bool) {}
		if together {
			ctx, end = d.transaction(b)
		}
		if _, err := d.db.Collection(events).InsertMany(ctx, docs); err != nil {
			b.Fatal(err)
		}
		end(true)
	}
	b.ReportAllocs()
	b.ResetTimer()
	if n := len(itemsOf(upToMark(b, src, o.From))); n < b.N {
		b.Errorf("%d rows came", n)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}
