package sqlite_test

import (
	"fmt"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
	"github.com/sluicebox/sluicebox/store/ledger/ledgertest"
)

// TestLedger runs the suite of the ledger's backends.
func TestLedger(t *testing.T) {
	ledgertest.Run(t, func(t *testing.T) ledgertest.Database {
		d := ledgerDatabase{newFile(t)}
		if err := openStore(t, d.path, "first", 0, flowBox()).Install(ctx(t)); err != nil {
			t.Fatal(err)
		}
		return d
	})
}

type ledgerDatabase struct{ path string }

type ledgerBackend struct {
	ledger.Backend
	store.Leadership
}

// Open implements ledgertest.Database.
func (d ledgerDatabase) Open(t testing.TB, relay string) ledgertest.Backend {
	st := openStore(t, d.path, relay, 0, flowBox())
	return ledgerBackend{st.Backend(), st}
}

const (
	benchRows  = 20_000
	benchLanes = 1000
	benchCall  = 1000 // rows of one call
)

// BenchmarkSpill spills rows in 1000 lanes, reads them back and deletes them.
func BenchmarkSpill(b *testing.B) {
	r := newRig(b, flowTable, 0, flowBox())
	items := r.manySpillItems(benchRows, benchLanes)
	for b.Loop() {
		for from := 0; from < benchRows; from += benchCall {
			r.spill(b, items[from:from+benchCall]...)
		}
		for lane := range benchLanes {
			if n := len(r.spilled(b, laneOf(fmt.Sprint(lane)))); n != benchRows/benchLanes {
				b.Fatalf("%d rows of a lane", n)
			}
			if lane == 99 {
				break // each read opens a connection
			}
		}
		for from := 0; from < benchRows; from += benchCall {
			if err := r.store.DeleteSpilled(ctx(b), r.epoch, refsOf(items[from:from+benchCall])); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(benchRows*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}

// BenchmarkReplay copies rows of a replay in 1000 lanes and finishes them.
func BenchmarkReplay(b *testing.B) {
	r := newRig(b, flowTable, 0, flowBox())
	if err := r.store.RequestReplay(ctx(b), "job", "{}"); err != nil {
		b.Fatal(err)
	}
	rows, done := make([]store.ReplayRow, benchRows), make([]store.FinishedRow, benchRows)
	for i, it := range r.manySpillItems(benchRows, benchLanes) {
		rows[i] = store.ReplayRow{N: int64(i + 1), Item: it}
		done[i] = store.FinishedRow{N: int64(i + 1), Lane: it.Lane(), ID: it.ID}
	}
	for b.Loop() {
		for from := 0; from < benchRows; from += benchCall {
			if err := r.store.CopyRows(ctx(b), r.epoch, "job", rows[from:from+benchCall], store.ReplayCursor{Skip: from}); err != nil {
				b.Fatal(err)
			}
		}
		if lanes, err := r.store.ReplayLanes(ctx(b), "job", 0, 2*benchLanes); err != nil || len(lanes) != benchLanes {
			b.Fatalf("%d lanes, %v", len(lanes), err)
		}
		for from := 0; from < benchRows; from += benchCall / 10 {
			if err := r.store.FinishRows(ctx(b), r.epoch, "job", done[from:from+benchCall/10]); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(benchRows*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}
