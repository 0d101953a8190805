package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/postgres"
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

const (
	benchRows  = 20_000
	benchLanes = 1000
	benchCall  = 1000 // rows of one call
)

// newBenchStore returns a leading store, and rows in 1000 lanes.
func newBenchStore(b *testing.B) (st *postgres.Store, epoch store.Epoch, items []store.Item) {
	url := servers.Database(b, 15)
	servers.Exec(b, url, flowTable)
	st, err := postgres.New(postgres.Config{URL: url, Name: "rig", Outboxes: []store.Outbox{flowBox}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(st.Close)
	epoch = rigs.InstallAndLead(b, st)
	for n := range benchRows {
		it := spilledRow(fmt.Sprintf("%013d", n), store.NewSeq(epoch, int64(n+1)))
		it.Group = store.GroupOf(fmt.Sprint(n % benchLanes))
		items = append(items, it)
	}
	return st, epoch, items
}

// BenchmarkSpill spills rows, reads 100 lanes back, and deletes the rows: half of them with
// the outcomes of rows that are gone.
func BenchmarkSpill(b *testing.B) {
	st, epoch, items := newBenchStore(b)
	check := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		for from := 0; from < benchRows; from += benchCall {
			check(st.Spill(ctx(b), epoch, items[from:from+benchCall]))
		}
		for lane := range 100 {
			lists, err := st.ReadSpilled(ctx(b), []store.SpilledRange{laneOf(items[lane])}, benchRows)
			if check(err); len(lists[0]) != benchRows/benchLanes {
				b.Fatalf("%d rows of a lane", len(lists[0]))
			}
		}
		for from := 0; from < benchRows; from += benchCall {
			var refs []store.SpilledRef
			var outcomes []store.Outcome
			for _, it := range items[from : from+benchCall] {
				if len(refs) < benchCall/2 {
					refs = append(refs, store.SpilledRef{Ref: it.Ref, Seq: it.Seq})
				} else {
					outcomes = append(outcomes, spilledOutcome(it.ID, store.Completed, it.Seq))
				}
			}
			check(st.DeleteSpilled(ctx(b), epoch, refs))
			_, err := st.Settle(ctx(b), epoch, outcomes)
			check(err)
		}
	}
	b.ReportMetric(benchRows*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}

// BenchmarkReplay copies rows of a replay in 1000 lanes and finishes them.
func BenchmarkReplay(b *testing.B) {
	st, epoch, items := newBenchStore(b)
	if err := st.RequestReplay(ctx(b), "job", "{}"); err != nil {
		b.Fatal(err)
	}
	rows, done := make([]store.ReplayRow, benchRows), make([]store.FinishedRow, benchRows)
	for i, it := range items {
		rows[i] = store.ReplayRow{N: int64(i + 1), Item: it}
		done[i] = store.FinishedRow{N: int64(i + 1), Lane: it.Lane(), ID: it.ID}
	}
	for b.Loop() {
		for from := 0; from < benchRows; from += benchCall {
			if err := st.CopyRows(ctx(b), epoch, "job", rows[from:from+benchCall], store.ReplayCursor{Skip: from}); err != nil {
				b.Fatal(err)
			}
		}
		if lanes, err := st.ReplayLanes(ctx(b), "job", 0, 2*benchLanes); err != nil || len(lanes) != benchLanes {
			b.Fatalf("%d lanes, %v", len(lanes), err)
		}
		for from := 0; from < benchRows; from += benchCall / 10 {
			if err := st.FinishRows(ctx(b), epoch, "job", done[from:from+benchCall/10]); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(benchRows*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}
