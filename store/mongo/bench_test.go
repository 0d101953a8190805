package mongo_test

import (
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// BenchmarkRows claims and completes batches of documents, each in a transaction committed
// by a majority. It also measures two plain updates of the same documents for comparison.
func BenchmarkRows(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := newRig(b, servers.Mongo(b), flowBox())
			next := 0
			var claiming, settling, plain time.Duration
			for b.Loop() {
				b.StopTimer()
				claims, outcomes, ids := make([]store.ClaimRow, n), make([]store.Outcome, n), make([]string, n)
				docs := make([]bson.D, 2*n)
				at := time.Now()
				for i := range n {
					next++
					ids[i] = fmt.Sprint("row ", next)
					docs[i], docs[n+i] = pending(ids[i]), pending("plain "+ids[i])
					claims[i] = row(ids[i])
					outcomes[i] = rigs.Outcome(ids[i], store.Completed)
					outcomes[i].At = at
					ids[i] = "plain " + ids[i]
				}
				if _, err := r.docs().InsertMany(b.Context(), docs, options.InsertMany().SetOrdered(false)); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				began := time.Now()
				r.claim(b, claims...)
				claimed := time.Now()
				r.settle(b, outcomes...)
				settled := time.Now()
				for _, status := range []string{"PROCESSING", "COMPLETED"} {
					filter := bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}, {Key: "status", Value: bson.D{{Key: "$in", Value: bson.A{"PENDING", "PROCESSING"}}}}}
					set := bson.D{{Key: "$set", Value: bson.D{{Key: "status", Value: status}, {Key: "processedAt", Value: at}}}}
					if _, err := r.docs().UpdateMany(b.Context(), filter, set); err != nil {
						b.Fatal(err)
					}
				}
				claiming, settling, plain = claiming+claimed.Sub(began), settling+settled.Sub(claimed), plain+time.Since(settled)
			}
			b.ReportMetric(float64(claiming.Microseconds())/float64(b.N), "µs/claim")
			b.ReportMetric(float64(settling.Microseconds())/float64(b.N), "µs/settle")
			b.ReportMetric(float64(plain.Microseconds())/float64(2*b.N), "µs/plain")
		})
	}
}

const (
	benchRows  = 20_000
	benchLanes = 1000
	benchCall  = 1000 // rows of one call
)

func benchItems() []store.Item {
	items := make([]store.Item, benchRows)
	for i := range items {
		items[i] = store.Item{
			Ref: store.Ref{Outbox: "events", ID: fmt.Sprintf("0HZXEQ5Y%05d", i)}, Kind: "EVENT", Group: store.GroupOf(fmt.Sprint(i * 7 % benchLanes)),
			Seq: store.NewSeq(1, int64(i+1)), PayloadSize: 300, Committed: time.Now(),
		}
	}
	return items
}

// BenchmarkSpill spills rows in 1000 lanes, reads them back and deletes them.
func BenchmarkSpill(b *testing.B) {
	r := newRig(b, servers.Mongo(b), flowBox())
	items, refs := benchItems(), make([]store.SpilledRef, benchRows)
	for i := range items {
		refs[i] = store.SpilledRef{Ref: items[i].Ref, Seq: items[i].Seq}
	}
	phases := newPhases(b, "spill", "lanes", "read", "delete")
	for b.Loop() {
		for from := 0; from < benchRows; from += benchCall {
			if err := r.store.Spill(ctx(b), r.epoch, items[from:from+benchCall]); err != nil {
				b.Fatal(err)
			}
		}
		phases.end()
		if err := r.store.SpilledLanes(ctx(b), func(store.SpilledLane) {}); err != nil {
			b.Fatal(err)
		}
		phases.end()
		for lane := range benchLanes {
			key := items[lane].Lane()
			lists, err := r.store.ReadSpilled(ctx(b), []store.SpilledRange{{Outbox: "events", Lane: key.Hash()}}, 100)
			if err != nil || len(lists[0]) != benchRows/benchLanes {
				b.Fatalf("%d rows of a lane, %v", len(lists[0]), err)
			}
		}
		phases.end()
		for from := 0; from < benchRows; from += benchCall {
			if err := r.store.DeleteSpilled(ctx(b), r.epoch, refs[from:from+benchCall]); err != nil {
				b.Fatal(err)
			}
		}
		phases.end()
	}
	phases.report()
}

// BenchmarkReplay copies rows of a replay in 1000 lanes and finishes them.
func BenchmarkReplay(b *testing.B) {
	r := newRig(b, servers.Mongo(b), flowBox())
	if err := r.store.RequestReplay(ctx(b), "job", "{}"); err != nil {
		b.Fatal(err)
	}
	rows, done := make([]store.ReplayRow, benchRows), make([]store.FinishedRow, benchRows)
	for i, it := range benchItems() {
		it.Seq = 0
		rows[i] = store.ReplayRow{N: int64(i + 1), Item: it}
		done[i] = store.FinishedRow{N: int64(i + 1), Lane: it.Lane(), ID: it.ID}
	}
	phases := newPhases(b, "copy", "lanes", "finish")
	for b.Loop() {
		for from := 0; from < benchRows; from += benchCall {
			if err := r.store.CopyRows(ctx(b), r.epoch, "job", rows[from:from+benchCall], store.ReplayCursor{Skip: from}); err != nil {
				b.Fatal(err)
			}
		}
		phases.end()
		if lanes, err := r.store.ReplayLanes(ctx(b), "job", 0, 2*benchLanes); err != nil || len(lanes) != benchLanes {
			b.Fatalf("%d lanes, %v", len(lanes), err)
		}
		phases.end()
		for from := 0; from < benchRows; from += benchCall / 10 {
			if err := r.store.FinishRows(ctx(b), r.epoch, "job", done[from:from+benchCall/10]); err != nil {
				b.Fatal(err)
			}
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
	return &phases{b: b, names: names, took: make([]time.Duration, len(names)), since: time.Now()}
}

// end ends a part.
func (p *phases) end() {
	now := time.Now()
	p.took[p.next%len(p.names)] += now.Sub(p.since)
	p.next++
	p.since = now
}

func (p *phases) report() {
	for i, name := range p.names {
		p.b.ReportMetric(float64(p.took[i].Milliseconds())/float64(p.b.N), "ms/"+name)
	}
}
