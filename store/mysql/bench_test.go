package mysql_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/mysql"
	"github.com/sluicebox/sluicebox/store/storetest"
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

// benchLeader returns a store that leads.
func benchLeader(b *testing.B, f servers.Flavour, routes ...store.Route) (*mysql.Store, store.Epoch) {
	url := f.Database(b)
	servers.ExecMySQL(b, url, flowTable)
	box := flowBox()
	box.Routes = routes
	st, err := mysql.New(mysql.Config{URL: url, Name: "bench", Outboxes: []store.Outbox{box}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(st.Close)
	return st, rigs.InstallAndLead(b, st)
}

func BenchmarkSpill(b *testing.B) {
	for _, f := range servers.Flavours() {
		b.Run(string(f), func(b *testing.B) {
			st, epoch := benchLeader(b, f)
			storetest.BenchmarkSpill(b, st, epoch)
		})
	}
}

func BenchmarkSpillOfLegs(b *testing.B) {
	for _, f := range servers.Flavours() {
		b.Run(string(f), func(b *testing.B) {
			st, epoch := benchLeader(b, f, storetest.BenchRoutes()...)
			storetest.BenchmarkSpillOfLegs(b, st, epoch)
		})
	}
}

func BenchmarkReplay(b *testing.B) {
	for _, f := range servers.Flavours() {
		b.Run(string(f), func(b *testing.B) {
			st, epoch := benchLeader(b, f)
			storetest.BenchmarkReplay(b, st, epoch)
		})
	}
}
