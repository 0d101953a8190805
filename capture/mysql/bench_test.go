package mysql_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// BenchmarkStream reads rows that are already in the binlog, from the socket to the
// channel.
func BenchmarkStream(b *testing.B) {
	for _, f := range servers.Flavours() {
		for _, per := range []int{1, 100} {
			b.Run(fmt.Sprintf("%s/%d rows in a transaction", f, per), func(b *testing.B) { benchmarkStream(b, f, per) })
		}
	}
}

func benchmarkStream(b *testing.B, f servers.Flavour, per int) {
	t := &testing.T{}
	d := newDatabaseOf(b, f, f.Database(b), createTable, outboxes)
	src := newSource(b, d.config())
	defer src.Close()
	o := capturetest.OpenWithoutCheckpoint(b, src, d.tables())
	d.db.SetMaxIdleConns(2)
	payload := strings.Repeat(`{"n": 1234567890}`, 20)
	for i := 0; i < b.N; i += per {
		var rows []capturetest.Row
		for j := range per {
			id := fmt.Sprintf("row-%09d", i+j)
			rows = append(rows, capturetest.Row{ID: id, Group: store.GroupOf(id[:9]), Payload: payload})
		}
		d.Begin(t, rows...)(true)
	}

	if err := src.Mark(b.Context(), "end"); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	if n := len(upToMark(b, src, o.From)); n < b.N {
		b.Errorf("%d rows came", n)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}
