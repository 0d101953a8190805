package postgres_test

import (
	"fmt"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/layouts"
	"github.com/sluicebox/sluicebox/store/outbox"
	"github.com/sluicebox/sluicebox/store/outbox/postgres"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// BenchmarkWriter measures new and repeated batches of 1 kB rows, by their size.
func BenchmarkWriter(b *testing.B) {
	url := servers.Database(b, servers.Versions()[0])
	preset, _ := layouts.Named("postbox")
	table, err := preset.Define(layouts.Postgres, "")
	if err != nil {
		b.Fatal(err)
	}
	servers.Exec(b, url, table.Statements...)
	w, err := postgres.NewWriter(url, "bench")
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	box := store.Outbox{Name: "box", Table: table.Table, Layout: *preset.Tables}
	row := outbox.Row{Kind: "EVENT", Group: []string{"1001", "orders"}, Payload: fmt.Appendf(nil, "{%q: %01000d}", "n", 1)}
	n := 0
	for _, rows := range []int{1, 10, 100, 500} {
		for _, repeated := range []bool{false, true} {
			b.Run(fmt.Sprintf("rows=%d/repeated=%t", rows, repeated), func(b *testing.B) {
				batch := make([]outbox.Row, rows)
				for b.Loop() {
					for i := range batch {
						if batch[i] = row; !repeated || n < rows {
							n++
						}
						batch[i].ID = fmt.Sprint(i)
						if !repeated {
							batch[i].ID = fmt.Sprint("new ", n)
						}
					}
					if _, err := w.Write(rigs.Context(b), &box, batch); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(rows*b.N)/b.Elapsed().Seconds(), "rows/s")
			})
		}
	}
}
