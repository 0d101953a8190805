package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

const (
	benchOutbox = "events"
	benchRows   = 20_000
	benchLanes  = 1000
	benchCall   = 1000 // rows of one call
)

// benchItems returns rows in benchLanes lanes. No table has them.
func benchItems() []store.Item {
	items := make([]store.Item, benchRows)
	for i := range items {
		items[i] = store.Item{
			Ref: store.Ref{Outbox: benchOutbox, ID: fmt.Sprintf("%013d", i)}, Kind: "EVENT", Group: store.GroupOf(fmt.Sprint(i % benchLanes)),
			Seq: store.NewSeq(1, int64(i+1)), PayloadSize: 300,
		}
	}
	return items
}

// BenchmarkSpill spills rows of the outbox "events" in 1000 lanes, counts the lanes, reads 100
// of them back, and deletes the rows: half of them with the outcomes of rows that are gone.
func BenchmarkSpill(b *testing.B, st Store, epoch store.Epoch) {
	items, at := benchItems(), time.Now()
	phases := newPhases(b, "spill", "lanes", "read", "delete", "settle")
	for b.Loop() {
		var refs []store.SpilledRef
		var outcomes []store.Outcome
		for i := range items {
			it := &items[i]
			it.Seq += benchRows // as in a relay, which gives no number twice
			refs = append(refs, store.SpilledRef{Ref: it.Ref, Seq: it.Seq})
			outcomes = append(outcomes, store.Outcome{Ref: it.Ref, Status: store.Completed, At: at, SpilledSeq: it.Seq})
		}
		phases.start()
		for from := 0; from < benchRows; from += benchCall {
			phases.check(st.Spill(b.Context(), epoch, items[from:from+benchCall]))
		}
		phases.end()
		phases.check(st.SpilledLanes(b.Context(), func(store.SpilledLane) {}))
		phases.end()
		for i := range 100 {
			lists, err := st.ReadSpilled(b.Context(), []store.SpilledRange{{Outbox: benchOutbox, Lane: items[i].Lane().Hash()}}, 100)
			if phases.check(err); len(lists[0]) != benchRows/benchLanes {
				b.Fatalf("%d rows of a lane", len(lists[0]))
			}
		}
		phases.end()
		for from := 0; from < benchRows/2; from += benchCall {
			phases.check(st.DeleteSpilled(b.Context(), epoch, refs[from:from+benchCall]))
		}
		phases.end()
		for from := benchRows / 2; from < benchRows; from += benchCall {
			_, err := st.Settle(b.Context(), epoch, outcomes[from:from+benchCall])
			phases.check(err)
		}
		phases.end()
	}
	phases.report()
}

// BenchRoutes are the routes of the outbox of BenchmarkSpillOfLegs.
func BenchRoutes() []store.Route { return []store.Route{{Name: "bus"}, {Name: "hooks"}} }

// BenchmarkSpillOfLegs spills rows of a leg, with the record of each row, and settles the legs, which deletes both.
func BenchmarkSpillOfLegs(b *testing.B, st Store, epoch store.Epoch) {
	items, at := benchItems(), time.Now()
	phases := newPhases(b, "spill", "settle")
	for b.Loop() {
		records, ends := make([]store.LegRow, len(items)), make([]store.LegEnd, len(items))
		for i := range items {
			it := &items[i]
			row := store.Ref{Outbox: benchOutbox, ID: it.ID}
			it.Outbox, it.Seq = store.LegName(benchOutbox, "hooks"), it.Seq+benchRows
			records[i] = store.LegRow{Ref: row, Matched: []string{"bus", "hooks"}, Done: []string{"bus"}, Spilled: []string{"hooks"}}
			ends[i] = store.LegEnd{Of: row, Outcome: store.Outcome{Ref: it.Ref, Status: store.Completed, At: at, SpilledSeq: it.Seq}}
		}
		phases.start()
		for from := 0; from < benchRows; from += benchCall {
			phases.check(st.SpillLegs(b.Context(), epoch, items[from:from+benchCall], records[from:from+benchCall]))
		}
		phases.end()
		for from := 0; from < benchRows; from += benchCall {
			phases.check(st.SettleLegs(b.Context(), epoch, ends[from:from+benchCall]))
		}
		phases.end()
	}
	phases.report()
}

// BenchmarkReplay copies rows of a replay in 1000 lanes, finds its lanes and finishes it.
func BenchmarkReplay(b *testing.B, st Store, epoch store.Epoch) {
	phases := newPhases(b, "copy", "lanes", "finish")
	phases.check(st.RequestReplay(b.Context(), "job", "{}"))
	rows, done := make([]store.ReplayRow, benchRows), make([]store.FinishedRow, benchRows)
	for i, it := range benchItems() {
		rows[i] = store.ReplayRow{N: int64(i + 1), Item: it}
		done[i] = store.FinishedRow{Lane: it.Lane(), ID: it.ID}
	}
	for b.Loop() {
		for i := range rows {
			rows[i].N += benchRows
			done[i].N = rows[i].N
		}
		phases.start()
		for from := 0; from < benchRows; from += benchCall {
			phases.check(st.CopyRows(b.Context(), epoch, "job", rows[from:from+benchCall], store.ReplayCursor{Skip: from}))
		}
		phases.end()
		lanes, err := st.ReplayLanes(b.Context(), "job", 0, 2*benchLanes)
		if phases.check(err); len(lanes) != benchLanes {
			b.Fatalf("%d lanes", len(lanes))
		}
		phases.end()
		for from := 0; from < benchRows; from += benchCall / 10 {
			phases.check(st.FinishRows(b.Context(), epoch, "job", done[from:from+benchCall/10]))
		}
		phases.end()
	}
	phases.report()
}

// phases measures the parts of an iteration.
type phases struct {
	b     *testing.B
	names []string
	took  []time.Duration
	next  int
	since time.Time
}

func newPhases(b *testing.B, names ...string) *phases {
	return &phases{b: b, names: names, took: make([]time.Duration, len(names))}
}

// start begins the first part of an iteration.
func (p *phases) start() { p.next, p.since = 0, time.Now() }

// end ends a part, and the next begins.
func (p *phases) end() {
	now := time.Now()
	p.took[p.next] += now.Sub(p.since)
	p.next++
	p.since = now
}

func (p *phases) check(err error) {
	p.b.Helper()
	if err != nil {
		p.b.Fatal(err)
	}
}

func (p *phases) report() {
	for i, name := range p.names {
		p.b.ReportMetric(float64(p.took[i].Microseconds())/1000/float64(p.b.N), "ms/"+name)
	}
	p.b.ReportMetric(benchRows*float64(p.b.N)/p.b.Elapsed().Seconds(), "rows/s")
}
