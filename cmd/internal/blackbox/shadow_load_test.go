package blackbox

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/shadow"
)

// A shadow beside a processor under load reports each row of the table once, and each that the processor
// sent out of order. The longer run, of 30 s:
//
//	SLUICEBOX_TEST_ROWS=30000 go test -v -run TestShadowUnderLoad ./cmd/internal/blackbox
func TestShadowUnderLoad(t *testing.T) {
	t.Parallel()
	const perSecond, groups, workers = 1000, 10, 16
	c := shadowCases()[0]
	onEverydayDatabase(t, c.on, func(t *testing.T, source string, db *sql.DB) {
		run(t, db, c.create)
		r := start(t, fmt.Sprintf(shadowConfig, nameFor(source), c.account(t, source, db), adminKey, "id"))
		r.waitFor("shadow started")
		rows, p := many(t, 1000), &reorderer{watchedOrders: sqlOrders{db}}
		began := time.Now()
		rate := p.workAt(t, rows, perSecond, groups, workers)
		took := time.Since(began)

		var inTable, sent int
		if err := db.QueryRowContext(t.Context(), "SELECT count(*), count(*) FILTER (WHERE state = 'sent') FROM orders_outbox").Scan(&inTable, &sent); err != nil {
			t.Fatal(err)
		}
		outOfOrder := p.outOfOrder(rows)
		if inTable != rows || sent != rows || outOfOrder == 0 {
			t.Fatalf("the table has %d rows and %d are sent, %d of them out of order; want %d, and some out of order", inTable, sent, outOfOrder, rows)
		}
		want := shadow.Counts{Seen: inTable, Taken: sent, Delivered: sent, OutOfOrder: outOfOrder}
		var o shadow.OutboxReport
		within(t, testTimeout, func() string {
			o = shadowReport(t, r)
			got := o.Counts
			got.LaneFree, got.Stuck, got.Unreached = 0, 0, 0 // they depend on the speed of the machine
			if got != want || o.Open != 0 {
				return fmt.Sprintf("the shadow reports %+v with %d open rows, want %+v", got, o.Open, want)
			}
			return ""
		})
		t.Logf("%d rows in %s, %.0f rows/s: the shadow reports all, %d out of order; captured %s, delivered %s",
			rows, took.Round(time.Millisecond), rate, outOfOrder, percentiles(&o.Captured), percentiles(&o.DeliveredLatency))
		expectStop(t, r)
	})
}

func percentiles(l *shadow.Latency) string {
	return fmt.Sprintf("p50 %.3f s, p99 %.3f s, max %.3f s", l.P50, l.P99, l.Max)
}
