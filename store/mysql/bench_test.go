package mysql_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/mysql"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// BenchmarkRows claims and completes rows in batches. Each batch is a transaction, so its
// cost includes a durable commit.
func BenchmarkRows(b *testing.B) {
	for _, f := range servers.Flavours() {
		for _, n := range []int{1, 100} {
			b.Run(fmt.Sprintf("%s/%d", f, n), func(b *testing.B) {
				url := f.Database(b)
				servers.ExecMySQL(b, url, flowTable)
				db := servers.OpenMySQL(b, url)
				st, err := mysql.New(mysql.Config{URL: url, Name: "bench", Outboxes: []store.Outbox{flowBox()}})
				if err != nil {
					b.Fatal(err)
				}
				defer st.Close()
				epoch := rigs.InstallAndLead(b, st)
				next := 0
				var claiming, settling time.Duration

				for b.Loop() {
					b.StopTimer()
					claims, outcomes := make([]store.ClaimRow, n), make([]store.Outcome, n)
					at := time.Now()
					for i := range n {
						next++
						id := fmt.Sprint(next)
						if _, err := db.Exec("INSERT INTO outbox_events (id, payload) VALUES (?, '{}')", id); err != nil {
							b.Fatal(err)
						}
						claims[i].Ref = store.Ref{Outbox: "events", ID: id}
						outcomes[i] = store.Outcome{Ref: claims[i].Ref, Status: store.Completed, At: at}
					}

					b.StartTimer()
					began := time.Now()
					if _, err := st.Claim(b.Context(), epoch, at, claims); err != nil {
						b.Fatal(err)
					}

					claimed := time.Now()
					if _, err := st.Settle(b.Context(), epoch, outcomes); err != nil {
						b.Fatal(err)
					}
					claiming, settling = claiming+claimed.Sub(began), settling+time.Since(claimed)
				}

				b.ReportMetric(float64(claiming.Microseconds())/float64(b.N), "µs/claim")
				b.ReportMetric(float64(settling.Microseconds())/float64(b.N), "µs/settle")
			})
		}
	}
}

const (
	benchRows  = 20_000
	benchLanes = 1000
	benchCall  = 1000 // rows of one call
)

// benchItems returns rows to spill, in 1000 lanes.
func benchItems() []store.Item {
	items := make([]store.Item, benchRows)
	for i := range items {
		items[i] = store.Item{
			Ref: store.Ref{Outbox: "events", ID: fmt.Sprintf("%08x-%08x-row-%06d", uint32(i)*2654435761, i, i)}, Kind: "EVENT", Group: store.GroupOf(fmt.Sprint("group ", i%benchLanes)),
			Seq: store.NewSeq(1, int64(i+1)), PayloadSize: 200,
		}
	}
	return items
}

// benchLeader returns a store that leads.
func benchLeader(b *testing.B, f servers.Flavour) (*mysql.Store, store.Epoch) {
	url := f.Database(b)
	servers.ExecMySQL(b, url, flowTable)
	st, err := mysql.New(mysql.Config{URL: url, Name: "bench", Outboxes: []store.Outbox{flowBox()}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(st.Close)
	return st, rigs.InstallAndLead(b, st)
}

// BenchmarkSpill spills rows in 1000 lanes, reads a hundred lanes back and deletes the rows.
func BenchmarkSpill(b *testing.B) {
	for _, f := range servers.Flavours() {
		b.Run(string(f), func(b *testing.B) {
			st, epoch := benchLeader(b, f)
			items := benchItems()
			refs := make([]store.SpilledRef, len(items))
			for i := range items {
				refs[i] = store.SpilledRef{Ref: items[i].Ref, Seq: items[i].Seq}
			}
			var spilling, reading, deleting time.Duration
			for b.Loop() {
				for i := range items { // as in a relay, which gives no number twice
					items[i].Seq += benchRows
					refs[i].Seq = items[i].Seq
				}
				began := time.Now()
				for from := 0; from < benchRows; from += benchCall {
					if err := st.Spill(b.Context(), epoch, items[from:from+benchCall]); err != nil {
						b.Fatal(err)
					}
				}
				spilled := time.Now()
				for i := range 100 {
					lanes, err := st.ReadSpilled(b.Context(), []store.SpilledRange{{Outbox: "events", Lane: items[i].Lane().Hash()}}, 100)
					if err != nil || len(lanes[0]) != benchRows/benchLanes {
						b.Fatalf("%d rows, %v", len(lanes[0]), err)
					}
				}
				read := time.Now()
				for from := 0; from < benchRows; from += benchCall {
					if err := st.DeleteSpilled(b.Context(), epoch, refs[from:from+benchCall]); err != nil {
						b.Fatal(err)
					}
				}
				spilling, reading, deleting = spilling+spilled.Sub(began), reading+read.Sub(spilled), deleting+time.Since(read)
			}
			reportMillis(b, "spill", spilling)
			reportMillis(b, "read", reading)
			reportMillis(b, "delete", deleting)
		})
	}
}

// BenchmarkReplay copies rows of a replay in 1000 lanes, finds its lanes and finishes it.
func BenchmarkReplay(b *testing.B) {
	for _, f := range servers.Flavours() {
		b.Run(string(f), func(b *testing.B) {
			st, epoch := benchLeader(b, f)
			if err := st.RequestReplay(b.Context(), "job", "{}"); err != nil {
				b.Fatal(err)
			}
			rows, done := make([]store.ReplayRow, benchRows), make([]store.FinishedRow, benchRows)
			for i, it := range benchItems() {
				rows[i] = store.ReplayRow{N: int64(i + 1), Item: it}
				done[i] = store.FinishedRow{N: int64(i + 1), Lane: it.Lane(), ID: it.ID}
			}
			var copying, finding, finishing time.Duration
			for b.Loop() {
				for i := range rows {
					rows[i].N += benchRows
					done[i].N = rows[i].N
				}
				began := time.Now()
				for from := 0; from < benchRows; from += benchCall {
					if err := st.CopyRows(b.Context(), epoch, "job", rows[from:from+benchCall], store.ReplayCursor{Skip: from}); err != nil {
						b.Fatal(err)
					}
				}
				copied := time.Now()
				if lanes, err := st.ReplayLanes(b.Context(), "job", 0, 2*benchLanes); err != nil || len(lanes) != benchLanes {
					b.Fatalf("%d lanes, %v", len(lanes), err)
				}
				found := time.Now()
				for from := 0; from < benchRows; from += benchCall / 10 {
					if err := st.FinishRows(b.Context(), epoch, "job", done[from:from+benchCall/10]); err != nil {
						b.Fatal(err)
					}
				}
				copying, finding, finishing = copying+copied.Sub(began), finding+found.Sub(copied), finishing+time.Since(found)
			}
			reportMillis(b, "copy", copying)
			reportMillis(b, "lanes", finding)
			reportMillis(b, "finish", finishing)
		})
	}
}

func reportMillis(b *testing.B, what string, took time.Duration) {
	b.ReportMetric(float64(took.Microseconds())/1000/float64(b.N), "ms/"+what)
}
