package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/postgres"
	"github.com/sluicebox/sluicebox/store/storetest"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// BenchmarkRows claims and completes rows, n per call, in a table with completed rows.
func BenchmarkRows(b *testing.B) {
	const version, settled, pending = 15, 200_000, 300_000
	url := servers.Database(b, version)
	servers.Exec(b, url, flowTable, fmt.Sprintf(`
INSERT INTO outbox_events (id, type, message_group, payload, status, created_at)
SELECT lpad(i::text, 13, '0'), 'EVENT', (i %% 1000)::text, repeat('x', 300), CASE WHEN i < %d THEN 'COMPLETED' ELSE 'PENDING' END, now()
FROM generate_series(0, %d) i`, settled, settled+pending))
	st, err := postgres.New(postgres.Config{URL: url, Name: "rig", Outboxes: []store.Outbox{flowBox}})
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	epoch := rigs.InstallAndLead(b, st)
	next := 0
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("calls of %d", n), func(b *testing.B) {
			for b.Loop() {
				claims, outcomes := make([]store.ClaimRow, n), make([]store.Outcome, n)
				for i := range n {
					id := fmt.Sprintf("%013d", settled+next%pending)
					next++
					claims[i], outcomes[i] = row(id), outcome(id, store.Completed)
				}
				if _, err := st.Claim(b.Context(), epoch, time.Now(), claims); err != nil {
					b.Fatal(err)
				}
				if _, err := st.Settle(b.Context(), epoch, outcomes); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

// benchLeader returns a store that leads.
func benchLeader(b *testing.B, routes ...store.Route) (*postgres.Store, store.Epoch) {
	url := servers.Database(b, 15)
	servers.Exec(b, url, flowTable)
	box := flowBox
	box.Routes = routes
	st, err := postgres.New(postgres.Config{URL: url, Name: "rig", Outboxes: []store.Outbox{box}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(st.Close)
	return st, rigs.InstallAndLead(b, st)
}

func BenchmarkSpill(b *testing.B) {
	st, epoch := benchLeader(b)
	storetest.BenchmarkSpill(b, st, epoch)
}

func BenchmarkSpillOfLegs(b *testing.B) {
	st, epoch := benchLeader(b, storetest.BenchRoutes()...)
	storetest.BenchmarkSpillOfLegs(b, st, epoch)
}

func BenchmarkReplay(b *testing.B) {
	st, epoch := benchLeader(b)
	storetest.BenchmarkReplay(b, st, epoch)
}
