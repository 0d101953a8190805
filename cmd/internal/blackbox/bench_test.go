package blackbox

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// BenchmarkCommitToReceived measures the time from the return of a row's COMMIT
// to the writer until the receiver has read the row's request, at 300 rows a
// second in 50 groups, with claim and completion written and the server
// flushing each commit.
func BenchmarkCommitToReceived(b *testing.B) {
	const rate = 300
	for _, version := range servers.Versions() {
		b.Run(fmt.Sprintf("pg%d", version), func(b *testing.B) {
			database, conn := prepare(b, version, seedTables)
			to := sinktest.NewReceiver(b)
			start(b, preset(database, to.URL(), "")).waitFor("reading")
			rows := max(b.N, 10*rate)
			committed := make(map[string]time.Time, rows)
			tick := time.NewTicker(time.Second / rate)
			defer tick.Stop()
			for i := range rows {
				<-tick.C
				id := fmt.Sprintf("%013d", i)
				insert(b, conn, id, i%50)
				committed[id] = time.Now()
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := to.Wait(ctx, rows); err != nil {
				b.Fatal(err)
			}
			report(b, committed, to.Taken())
		})
	}
}

func insert(b *testing.B, conn *pgx.Conn, id string, group int) {
	b.Helper()
	_, err := conn.Exec(context.Background(), `INSERT INTO outbox_events (id, type, message_group, payload, status, created_at)
		VALUES ($1, 'EVENT', $2, $3, 'PENDING', now())`, id, fmt.Sprint("group-", group), fmt.Sprintf(`{"id": %q, "type": "order.created"}`, id))
	if err != nil {
		b.Fatal(err)
	}
}

func report(b *testing.B, committed map[string]time.Time, taken []sinktest.Received) {
	p50, p99 := quantiles(committed, taken)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(p50.Seconds()*1000, "p50-ms")
	b.ReportMetric(p99.Seconds()*1000, "p99-ms")
}

// BenchmarkDrain measures how fast the program delivers rows that were there
// before it streamed: 8000 rows in 100 groups, in requests of up to 100.
func BenchmarkDrain(b *testing.B) {
	const rows = 8000
	for _, version := range servers.Versions() {
		b.Run(fmt.Sprintf("pg%d", version), func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				database, _ := prepare(b, version, seedTables)
				to := sinktest.NewReceiver(b)
				r := start(b, preset(database, to.URL(), ""))
				r.waitFor("reading")
				b.StartTimer()
				servers.Exec(b, database, fmt.Sprintf(`INSERT INTO outbox_events (id, type, message_group, payload, status, created_at)
					SELECT lpad(i::text, 13, '0'), 'EVENT', 'group-' || i %% 100, format('{"id": "%%s", "n": %%s}', lpad(i::text, 13, '0'), i), 'PENDING', now()
					FROM generate_series(1, %d) i`, rows))
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				if err := to.Wait(ctx, rows); err != nil {
					b.Fatal(err)
				}
				cancel()
				b.StopTimer()
				r.kill()
			}
			b.ReportMetric(float64(rows)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}
