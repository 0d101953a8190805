package postgres

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkAssemble decodes transactions of n rows of 200 bytes into items. Besides
// reading the socket, that is all the work of capture for a row.
func BenchmarkAssemble(b *testing.B) {
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprintf("transactions of %d", n), func(b *testing.B) {
			a := testAssembler()
			a.tx.MaxRows = 1000
			if _, _, err := a.message(relationOf(10, "public", "events", events...)); err != nil {
				b.Fatal(err)
			}
			messages := [][]byte{begin(0x100, 7)}
			for i := range n {
				messages = append(messages, insertOf(10, fmt.Sprintf("%013d", i), strings.Repeat("x", 200), fmt.Sprint("group-", i), "0"))
			}
			messages = append(messages, commitAt(0x100, 0x130))
			b.ReportAllocs()
			rows := 0
			for b.Loop() {
				for _, m := range messages {
					batch, ready, err := a.message(m)
					if err != nil {
						b.Fatal(err)
					}
					if ready {
						rows += len(batch.Items)
					}
				}
			}
			if rows != n*b.N {
				b.Fatalf("%d rows of %d", rows, n*b.N)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(rows), "ns/row")
		})
	}
}
